"""Each request from arrival to end, as the records tell it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kvready.advisor.held_blocks import HeldBlocks
from kvready.advisor.inventory import TIERS
from kvready.advisor.waits import Interval, Timeline
from kvready.collectors.records import (
    BatchPlanned,
    DeferReason,
    FirstToken,
    LoadDecided,
    LoadFinished,
    RequestArrived,
    RequestDeferred,
    RequestPreempted,
    RequestScheduled,
    Surface,
    Tier,
)

if TYPE_CHECKING:
    from kvready.advisor.gateway_arrivals import Upstream
    from kvready.advisor.service_groups import ServiceGroup

MAX_LIVE_REQUESTS = 16_384
MAX_OPEN_LOADS = 16_384
MAX_COPIES_PER_REQUEST = 256
MAX_EARLY_FINISHES = 1_024
MAX_COPY_SECONDS = 60.0  # a copy unfinished for longer ended unseen
BATCHES_TO_CLEAR_SUSPICION = 8  # a running request may sit out a batch or two


class Copy:
    """A copy that was ordered; `ready_seconds` is None until it is usable."""

    __slots__ = ("backlog_seconds", "decided", "ready_seconds", "started_seconds", "step_seconds")

    def __init__(self, decided: LoadDecided) -> None:
        self.decided = decided
        self.started_seconds: float | None = None
        self.ready_seconds: float | None = None
        # What it was predicted to wait for when it was ordered.
        self.step_seconds = 0.0
        self.backlog_seconds = 0.0

    @property
    def is_backup(self) -> bool:
        """Whether it takes blocks away from HBM: no request waits for it."""
        return TIERS.index(self.decided.destination) > TIERS.index(self.decided.source)


class RequestState:
    """What is known of one live request. Tokens count from the start of its prompt."""

    __slots__ = (
        "arrived",
        "computed_tokens",
        "computing",
        "copies",
        "disk_tokens",
        "first_token_seconds",
        "group",
        "host_tokens",
        "leader",
        "nominal_tokens",
        "output_tokens",
        "promised_tokens",
        "remote_tokens",
        "resident_blocks",
        "scheduled",
        "upstream",
        "waits_on",
    )

    def __init__(self, arrived: RequestArrived) -> None:
        self.arrived = arrived
        self.copies: list[Copy] = []
        # (begin, copy): copies that it waits for although another request ordered them.
        self.waits_on: list[tuple[float, Copy]] = []
        self.computing: list[list[float | None]] = []
        self.scheduled: RequestScheduled | None = None
        self.first_token_seconds: float | None = None
        self.computed_tokens = 0
        self.output_tokens = 0
        self.nominal_tokens: int | None = None
        self.host_tokens = 0  # the part of the nominal hit that must be copied first
        self.disk_tokens = 0  # of that, what must be fetched into host memory before
        self.remote_tokens = 0  # of that, what is on no tier of this machine
        self.resident_blocks = 0  # at its arrival, in any tier
        self.promised_tokens = 0  # beyond it, what an earlier request is bringing
        self.leader = ""  # the request that brings the last of that
        self.group: ServiceGroup | None = None  # what its service is told apart by
        self.upstream: Upstream | None = None  # what a gateway told of it

    @property
    def arrived_seconds(self) -> float:
        """When it was first seen, on the most upstream surface."""
        if self.upstream is None:
            return self.arrived.arrived_seconds
        return min(self.upstream.arrived_seconds, self.arrived.arrived_seconds)

    @property
    def surface(self) -> Surface:
        """Where that was."""
        return self.arrived.surface if self.upstream is None else Surface.GATEWAY

    @property
    def is_running(self) -> bool:
        """Whether it was dispatched and not preempted since."""
        return bool(self.computing) and self.computing[-1][1] is None

    @property
    def remaining_prompt_tokens(self) -> int:
        """Prompt tokens that are neither computed nor found."""
        return max(0, self.arrived.prompt_tokens - self.computed_tokens)

    @property
    def nominal_tokens_by_tier(self) -> dict[Tier, int]:
        """Its nominal hit by the nearest tier of each block; nothing where that is unknown."""
        if self.nominal_tokens is None:
            return {}
        below = self.disk_tokens + self.remote_tokens
        return {
            Tier.HBM: self.nominal_tokens - self.host_tokens,
            Tier.HOST: self.host_tokens - below,
            Tier.DISK: self.disk_tokens,
            Tier.REMOTE: self.remote_tokens,
        }

    @property
    def expected_tokens(self) -> int:
        """Prompt tokens that it will find when its turn comes, as seen at its arrival."""
        found = (self.nominal_tokens or 0) + self.promised_tokens
        return min(found, max(0, self.arrived.prompt_tokens - 1))

    @property
    def promised_end_tokens(self) -> int:
        """Up to where its prompt is found once its leader has brought what it promised."""
        return self.resident_blocks * self.arrived.block_tokens + self.promised_tokens

    def has_computed(self, tokens: int) -> bool:
        """Whether so much of its prompt is there for others already."""
        return self.is_running and self.computed_tokens >= tokens

    @property
    def unfinished_copies(self) -> list[Copy]:
        """Copies towards HBM that it still needs."""
        return [copy for copy in self._needed() if copy.ready_seconds is None]

    def timeline(self, end_seconds: float) -> Timeline:
        """The facts that the wait split needs, up to `end_seconds`."""
        loads: list[Interval] = []
        fetches: list[Interval] = []
        for begin, copy in self._needed_since():
            end = copy.ready_seconds if copy.ready_seconds is not None else end_seconds
            into_hbm = copy.decided.destination is Tier.HBM
            (loads if into_hbm else fetches).append(Interval(begin, max(begin, end)))
        known = self.arrived.arrived_seconds
        return Timeline(
            arrived_seconds=self.arrived_seconds,
            known_to_scheduler_seconds=known
            if self.arrived.surface is Surface.SCHEDULER
            else self._first_scheduler_seconds(end_seconds),
            end_seconds=end_seconds,
            loads=loads,
            fetches=fetches,
            computing=[
                Interval(begin or 0.0, end if end is not None else end_seconds)
                for begin, end in self.computing
            ],
        )

    def _needed(self) -> list[Copy]:
        return self.copies + [copy for _, copy in self.waits_on]

    def _needed_since(self) -> list[tuple[float, Copy]]:
        own = [(copy.decided.decided_seconds, copy) for copy in self.copies]
        return own + self.waits_on

    def _first_scheduler_seconds(self, end_seconds: float) -> float:
        seen = [begin for begin, _ in self._needed_since()]
        if self.scheduled is not None:
            seen.append(self.scheduled.scheduled_seconds)
        return min(seen, default=end_seconds)


class RequestTracker:
    """All live requests, in arrival order, and the copies that serve them."""

    def __init__(self) -> None:
        self.live: OrderedDict[str, RequestState] = OrderedDict()
        self.copies: OrderedDict[int, Copy] = OrderedDict()
        self.held = HeldBlocks()
        self.shed = 0  # live requests forgotten at the bound
        self.unknown = 0  # records about requests that arrived before we attached
        # Copies whose end came before their order: the two are on different sockets.
        self._early: OrderedDict[int, LoadFinished] = OrderedDict()
        # After lost records: who may have ended unseen, until enough batches have named the living.
        self._suspects: set[str] = set()
        self._batches_since_loss = 0

    def get(self, request_id: str) -> RequestState | None:
        """The live request, or None (counted) if its arrival was never seen."""
        state = self.live.get(request_id)
        if state is None:
            self.unknown += 1
        return state

    def arrive(self, record: RequestArrived) -> RequestState:
        """A request appears. The most upstream surface is its arrival."""
        known = self.live.get(record.request_id)
        if known is not None:
            return known
        state = self.live[record.request_id] = RequestState(record)
        return state

    def make_room(self) -> list[RequestState]:
        """The oldest live request, forgotten, if one more would be too many."""
        if len(self.live) < MAX_LIVE_REQUESTS:
            return []
        self.shed += 1
        request_id, state = self.live.popitem(last=False)
        self.held.release(request_id)
        return [state]

    def decide(self, record: LoadDecided) -> Copy:
        """A copy was ordered for a request."""
        copy = self.copies[record.load_id] = Copy(record)
        state = self.live.get(record.request_id)
        if state is not None and not copy.is_backup and len(state.copies) < MAX_COPIES_PER_REQUEST:
            state.copies.append(copy)
            self._hold(state)
        return copy

    def make_room_for_copy(self) -> list[int]:
        """The oldest open copy's id, forgotten, if one more would be too many."""
        if len(self.copies) < MAX_OPEN_LOADS:
            return []
        return [self.copies.popitem(last=False)[0]]

    def start(self, load_id: int, started_seconds: float) -> Copy | None:
        """The mover took up a copy."""
        copy = self.copies.get(load_id)
        if copy is not None:
            copy.started_seconds = started_seconds
        return copy

    def ready(self, record: LoadFinished) -> Copy | None:
        """A copy became usable. None when its order was never seen."""
        copy = self.copies.pop(record.load_id, None)
        if copy is None:
            self._early[record.load_id] = record
            while len(self._early) > MAX_EARLY_FINISHES:
                self._early.popitem(last=False)
        else:
            copy.ready_seconds = record.ready_seconds
            if record.started_seconds is not None:
                copy.started_seconds = record.started_seconds
        return copy

    def take_early_finish(self, order: LoadDecided) -> LoadFinished | None:
        """The end of a copy, if it came before its order. One of an earlier engine's is dropped."""
        finish = self._early.pop(order.load_id, None)
        if finish is None or finish.ready_seconds < order.decided_seconds:
            return None
        return finish

    def forget_stale_copies(self, now_seconds: float) -> list[int]:
        """Copies that must have ended unseen; returns their ids."""
        stale = [
            load_id
            for load_id, copy in self.copies.items()
            if now_seconds - copy.decided.decided_seconds > MAX_COPY_SECONDS
        ]
        for load_id in stale:
            del self.copies[load_id]
        return stale

    def defer(self, record: RequestDeferred) -> None:
        """A request was passed over; for a load, it may be one that another request ordered."""
        state = self.get(record.request_id)
        if state is None or record.reason is not DeferReason.LOAD or state.unfinished_copies:
            return
        first_hash = state.arrived.block_hashes[:1]
        for copy in self.copies.values():
            owner = self.live.get(copy.decided.request_id)
            if owner is None or owner is state or copy.is_backup:
                continue
            if len(state.waits_on) >= MAX_COPIES_PER_REQUEST:
                return
            if first_hash and owner.arrived.block_hashes[:1] == first_hash:
                state.waits_on.append((record.deferred_seconds, copy))

    def schedule(self, record: RequestScheduled) -> RequestState | None:
        """A request entered a batch."""
        state = self.get(record.request_id)
        if state is None:
            return None
        if state.scheduled is None:
            state.scheduled = record
        if not state.is_running:
            state.computing.append([record.scheduled_seconds, None])
            self._hold(state)
        state.computed_tokens = record.hbm_tokens + record.loaded_tokens
        return state

    def preempt(self, record: RequestPreempted) -> None:
        """A running request lost its blocks."""
        state = self.get(record.request_id)
        if state is not None and state.is_running:
            state.computing[-1][1] = record.preempted_seconds
            state.computed_tokens = 0
            self.held.release(record.request_id)

    def advance(self, batch: BatchPlanned) -> None:
        """A batch finished: its members' tokens are computed."""
        for member in batch.members:
            state = self.live.get(member.request_id)
            if state is not None:
                state.computed_tokens = member.context_tokens + member.new_tokens
                if not member.is_prefill:
                    state.output_tokens += member.new_tokens

    def first_token(self, record: FirstToken) -> RequestState | None:
        """A request's prefill is over."""
        state = self.get(record.request_id)
        if state is None or state.first_token_seconds is not None:
            return None
        state.first_token_seconds = record.first_token_seconds
        return state

    def finish(self, request_id: str) -> RequestState | None:
        """A request ended; it is forgotten."""
        self.held.release(request_id)
        return self.live.pop(request_id, None)

    def suspect_all(self) -> None:
        """Records were lost: any live request may have ended unseen."""
        self._suspects = set(self.live)
        self._batches_since_loss = 0

    def clear_suspicion(self, batch: BatchPlanned) -> list[RequestState]:
        """A batch names who lives; returns those that enough batches did not name, forgotten."""
        if not self._suspects or batch.waiting_total > len(batch.waiting):
            return []
        self._suspects.difference_update(member.request_id for member in batch.members)
        self._suspects.difference_update(batch.waiting)
        self._batches_since_loss += 1
        if self._batches_since_loss < BATCHES_TO_CLEAR_SUSPICION:
            return []
        gone = [self.live.pop(name) for name in sorted(self._suspects) if name in self.live]
        self._suspects.clear()
        for state in gone:
            self.held.release(state.arrived.request_id)
        return gone

    def forget_all(self) -> list[str]:
        """The engine restarted: every live request is gone. Returns their ids."""
        gone = list(self.live)
        self.live.clear()
        self.copies.clear()
        self.held.clear()
        self._early.clear()
        self._suspects.clear()
        return gone

    def _hold(self, state: RequestState) -> None:
        self.held.hold(state.arrived.request_id, state.arrived.block_hashes)
