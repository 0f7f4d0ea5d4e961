"""Carries a rank's facts to its waiting queue, and to the tape of the pass or episode at hand."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.forecast_writer import Moment
from kvready.advisor.inventory import Inventory
from kvready.advisor.requests import RequestState
from kvready.advisor.shadow import Shadow, Voided
from kvready.advisor.transient import TransientBlocks
from kvready.advisor.waiting_queue import Match, WaitingQueue
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    LoadDecided,
    RequestScheduled,
    Tier,
    TierCleared,
)


class ShadowFeed:
    """One rank's. What earlier requests bring is kept by whoever judges hits."""

    def __init__(
        self, shadow: Shadow, inventory: Inventory, transient: TransientBlocks, rank: int
    ) -> None:
        self._shadow = shadow
        self._inventory = inventory
        self._transient = transient
        self._rank = rank
        self._queue: WaitingQueue | None = None  # from the first request whose blocks are known

    def arrived(self, state: RequestState, moment: Moment) -> None:
        """A request came, and its promises are made."""
        arrived = state.arrived
        if not arrived.block_tokens:
            return
        if self._queue is None:
            self._queue = WaitingQueue(self._match, self._transient, arrived.block_tokens)
        self._queue.arrive(arrived.request_id, arrived.prompt_tokens, arrived.block_hashes)
        self._shadow.arrived(state, self._queue, moment)

    def batch_planned(self, batch: BatchPlanned, moment: Moment) -> None:
        """Before anybody else hears of it."""
        if self._queue is not None:
            self._shadow.batch_planned(batch, self._queue, moment)

    def batch_finished(self, record: BatchFinished) -> None:
        """A batch ended, and its first tokens are told."""
        self._shadow.batch_finished(record)

    def load_decided(self, record: LoadDecided) -> None:
        """The pass at hand ordered a copy."""
        tape = self._shadow.tape
        if tape is not None and (record.source, record.destination) == (Tier.HOST, Tier.HBM):
            tape.order_load(record.request_id, record.decided_seconds)

    def scheduled(self, record: RequestScheduled) -> None:
        """A request waits no longer."""
        if self._queue is not None:
            self._queue.leave(record.request_id)
        if self._shadow.tape is not None:
            self._shadow.tape.admit(record)

    def preempted(self, state: RequestState) -> None:
        """A request waits again, before all others."""
        arrived = state.arrived
        if self._queue is not None and arrived.block_tokens:
            chain = arrived.block_hashes
            self._queue.arrive(arrived.request_id, arrived.prompt_tokens, chain, first=True)
        tape = self._shadow.tape
        if tape is not None and arrived.request_id in tape.jobs:
            self._shadow.void(Voided.PREEMPTED)

    def first_token(self, request_id: str) -> None:
        """A request's blocks are there for others."""
        if self._shadow.tape is not None:
            self._shadow.tape.first_token(request_id)
        self._follow(request_id)

    def finished(self, request_id: str) -> None:
        """A request is gone, however it ended."""
        tape = self._shadow.tape
        if tape is not None:
            if request_id in tape.unfinished:
                self._shadow.void(Voided.ABORTED)
            else:
                tape.finish(request_id)
        if self._queue is not None:
            self._queue.leave(request_id)
        self._follow(request_id)

    def blocks(self, record: BlocksStored | BlocksRemoved | TierCleared) -> None:
        """The inventory has taken this."""
        if self._queue is None:
            return
        match record:
            case BlocksStored():
                self._queue.stored(record.block_hashes)
            case BlocksRemoved():
                self._queue.removed(record.block_hashes)
            case TierCleared():
                self._queue.renew_all()

    def renew_all(self) -> None:
        """The inventory may have forgotten much."""
        if self._queue is not None:
            self._queue.renew_all()

    def lost(self) -> None:
        """Records were lost: what is written down may be wrong."""
        self._shadow.void(Voided.LOST)

    def restart(self) -> None:
        """The engine restarted: nobody waits."""
        self._queue = None
        self.lost()

    def _follow(self, request_id: str) -> None:
        if self._queue is not None:
            self._queue.follow(request_id)

    def _match(self, chain: Sequence[int]) -> Match:
        return Match(*self._inventory.leading_blocks(chain, self._rank))
