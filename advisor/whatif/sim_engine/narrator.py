"""Tells a simulated engine's doings as the observer in a real engine would: the same records.

Grouped as there: one message a round of the scheduler, with the results of the batch before it; a
mover's own news at once; KV events once a step, when its results are in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kvready.advisor.whatif.sim_engine.clock import Clock
from kvready.advisor.whatif.sim_engine.kv_wire import CacheEvent, Removed, Stored, block_hash
from kvready.advisor.whatif.workload import SimRequest
from kvready.collectors.names import CopyMethod, DeferReason, Outcome, Surface, Tier
from kvready.collectors.records import (
    MAX_WAITING_IDS,
    AnyRecord,
    BatchFinished,
    BatchMember,
    BatchPlanned,
    EngineDescribed,
    FirstToken,
    LoadDecided,
    LoadFinished,
    LoadStarted,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestScheduled,
)

DESCRIBE_SECONDS = 1.0  # real ones, as the observer
MAX_OPEN_STEPS = 64


class Sink(Protocol):
    """Where a simulated engine's surfaces get what they show. Records in the host's seconds."""

    def scheduler(self, simulated_seconds: float, records: Sequence[AnyRecord]) -> None:
        """What the scheduler's loop tells at one go."""

    def mover(self, simulated_seconds: float, record: AnyRecord) -> None:
        """What the mover tells."""

    def cache(self, simulated_seconds: float, events: Sequence[CacheEvent]) -> int | None:
        """What became or stopped being findable; the message's number, None if none was sent."""

    def restart(self) -> None:
        """Another incarnation follows."""


class _Copy(NamedTuple):
    source: Tier
    destination: Tier
    payload_bytes: int
    fragments: int
    started_seconds: float | None = None


class Stopped(Exception):
    """The engine is to stop; raised out of whatever it was doing."""


class Narrator:
    """A watcher that makes records. Waits where its clock waits."""

    def __init__(
        self,
        described: EngineDescribed,
        clock: Clock,
        sink: Sink,
        method: Callable[[], CopyMethod],
        on_turn: Callable[[float], None],
        on_arrival: Callable[[str], None],
    ) -> None:
        """`on_turn` hears of each moment before anything is told of it; it may raise."""
        self._described = described
        self._clock = clock
        self._sink = sink
        self._method = method
        self._on_turn = on_turn
        self._on_arrival = on_arrival
        self._described_seconds = float("-inf")
        self._pending: list[AnyRecord] = []
        self._events: list[CacheEvent] = []
        self._copies: dict[int, _Copy] = {}
        self._deferred: dict[str, DeferReason] = {}
        self._begun: dict[int, float] = {}
        self._kv_sequence: int | None = None

    def arrived(self, now: float, request: SimRequest) -> None:
        """The scheduler took a request in."""
        self._pass(now)
        self._on_arrival(request.request_id)
        self._tell(
            RequestArrived(
                request_id=request.request_id,
                surface=Surface.SCHEDULER,
                arrived_seconds=now,
                prompt_tokens=request.prompt_tokens,
                block_hashes=tuple(map(block_hash, request.blocks)),
                block_tokens=self._described.block_tokens,
                output_token_limit=token_limit(request.output_tokens),
                request_class=request.request_class,
                tenant=request.tenant,
            )
        )

    def planned(
        self,
        now: float,
        step: int,
        members: Sequence[BatchMember],
        waiting: Sequence[str],
        free_blocks: int,
    ) -> None:
        """The scheduler chose a batch."""
        self._pass(now)
        self._describe(now)
        self._begun[step] = now
        while len(self._begun) > MAX_OPEN_STEPS:
            del self._begun[next(iter(self._begun))]
        self._tell(
            BatchPlanned(
                step=step,
                planned_seconds=now,
                planned_wall_seconds=now,
                members=tuple(members),
                waiting=tuple(waiting[:MAX_WAITING_IDS]),
                waiting_total=len(waiting),
                free_blocks=free_blocks,
            )
        )

    def ordered(
        self,
        now: float,
        load_id: int,
        request_id: str,
        source: Tier,
        destination: Tier,
        blocks: int,
    ) -> None:
        """A copy between tiers was ordered for a request."""
        engine = self._described
        tokens = blocks * engine.block_tokens
        copy = _Copy(
            source,
            destination,
            tokens * engine.kv_bytes_per_token,
            blocks * engine.host_fragments_per_block,
        )
        self._copies[load_id] = copy
        self._tell(
            LoadDecided(
                load_id=load_id,
                request_id=request_id,
                source=source,
                destination=destination,
                tokens=tokens,
                payload_bytes=copy.payload_bytes,
                fragments=copy.fragments,
                decided_seconds=now,
            )
        )

    def scheduled(self, now: float, request_id: str, hbm_tokens: int, loaded_tokens: int) -> None:
        """A request entered a batch for the first time."""
        self._deferred.pop(request_id, None)
        self._tell(RequestScheduled(request_id, now, hbm_tokens, loaded_tokens))

    def deferred(self, now: float, request_id: str, reason: DeferReason) -> None:
        """A waiting request was passed over; told when the reason is a new one."""
        if self._deferred.get(request_id) is not reason:
            self._deferred[request_id] = reason
            self._tell(RequestDeferred(request_id, now, reason))

    def planned_all(self, now: float) -> None:
        """The scheduler's round is over: what was gathered goes out."""
        self._pass(now)
        if not self._begun:
            self._publish_events(now)  # no step is under way whose end would
        records, self._pending = self._pending, []
        if records:
            self._sink.scheduler(now, records)

    def started(self, now: float, load_id: int) -> None:
        """The mover took up a copy."""
        self._pass(now)
        copy = self._copies.get(load_id)
        if copy is not None:
            self._copies[load_id] = copy._replace(started_seconds=now)
            record = LoadStarted(load_id, copy.source, copy.destination, now)
            self._sink.mover(now, self._clock.told(record))

    def ready(self, now: float, load_id: int) -> None:
        """A copy is usable at its destination."""
        self._pass(now)
        copy = self._copies.pop(load_id, None)
        if copy is None:
            return
        record = LoadFinished(
            load_id=load_id,
            source=copy.source,
            destination=copy.destination,
            started_seconds=copy.started_seconds,
            ready_seconds=now,
            payload_bytes=copy.payload_bytes,
            fragments=copy.fragments,
            method=self._method(),
        )
        self._sink.mover(now, self._clock.told(record))

    def stored(self, now: float, tier: Tier, blocks: Sequence[int], parent: int | None) -> None:
        """Blocks of one chain became findable."""
        if blocks:
            self._events.append(Stored(tier, tuple(blocks), parent))

    def removed(self, now: float, tier: Tier, blocks: Sequence[int]) -> None:
        """Blocks stopped being findable."""
        if blocks:
            self._events.append(Removed(tier, tuple(blocks)))

    def first_token(self, now: float, request_id: str) -> None:
        """A request's prompt is computed."""
        self._pass(now)
        self._tell(FirstToken(request_id, now))

    def finished(self, now: float, request_id: str, output_tokens: int) -> None:
        """A request ended."""
        self._pass(now)
        self._deferred.pop(request_id, None)
        self._tell(RequestFinished(request_id, now, Outcome.FINISHED, output_tokens))

    def ended(self, now: float, step: int) -> None:
        """A batch's results are in, and the step's KV events go out."""
        self._pass(now)
        self._publish_events(now)
        begun = self._begun.pop(step, now)
        self._tell(BatchFinished(step, now, now - begun, self._kv_sequence))

    def _pass(self, now: float) -> None:
        self._on_turn(now)
        if not self._clock.wait_until(now):
            raise Stopped

    def _describe(self, now: float) -> None:
        real_seconds = self._clock.monotonic(now)
        if real_seconds - self._described_seconds >= DESCRIBE_SECONDS:
            self._described_seconds = real_seconds
            self._pending.append(self._described)

    def _tell(self, record: AnyRecord) -> None:
        self._pending.append(self._clock.told(record))

    def _publish_events(self, now: float) -> None:
        if self._events:
            events, self._events = self._events, []
            sequence = self._sink.cache(now, events)
            self._kv_sequence = self._kv_sequence if sequence is None else sequence


def token_limit(output_tokens: int) -> int:
    """What a client asks for at most: the next power of two, which tells little."""
    return 1 << max(4, (output_tokens - 1).bit_length())
