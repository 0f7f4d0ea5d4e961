"""The story of one request or one batch, told by playing its records through the pipeline. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvready.advisor.ledger import Pair, Target
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.requests import RequestState
from kvready.advisor.tape import Decision
from kvready.advisor.waits import WaitState, split_wait
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    FirstToken,
    Ingested,
    LoadDecided,
    LoadFinished,
    Observed,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
)

MAX_EVENTS = 256  # of one story
MAX_PAIRS = 64
MAX_MEMBERS = 64  # of a batch, that are named


class Event(msgspec.Struct, frozen=True):
    """Something that happened. Seconds since the arrival, or the plan of the batch."""

    seconds: float
    says: str


class Passes(msgspec.Struct):
    """Passes of the scheduler that were compared with Strata's, while a request waited."""

    same: int = 0  # Strata would have done with it as the engine did
    sooner: int = 0  # it would have admitted it, or ordered its load, where the engine did not
    later: int = 0  # it would have held it, where the engine admitted it or loaded for it


class RequestStory(msgspec.Struct, frozen=True):
    """One request from arrival to end."""

    request_id: str
    rank: int
    events: list[Event]
    wait_seconds: dict[WaitState, float]  # empty: no first token
    ttft_seconds: float | None
    pairs: list[Pair]
    passes: Passes


class BatchStory(msgspec.Struct, frozen=True):
    """One batch: what it held, what it was foreseen to take, whom Strata would have taken."""

    step: int
    rank: int
    events: list[Event]
    pairs: list[Pair]
    compared: bool  # with Strata's; else there was no choice
    differs: list[str]


class RequestTeller:
    """Watches one request. Feed it every record, in order."""

    def __init__(self, pipeline: Pipeline, request_id: str) -> None:
        self._pipeline = pipeline
        self._id = request_id
        self._state: RequestState | None = None
        self._rank = 0
        self._events: list[Event] = []
        self._loads: set[str] = set()
        self._wait: dict[WaitState, float] = {}
        self._ttft_seconds: float | None = None
        self._pairs: list[Pair] = []
        self._passes = Passes()
        self._is_waiting = False
        pipeline.shadow.on_judged = self._judged

    def pair(self, pair: Pair) -> None:
        """A forecast was settled."""
        forecast = pair.forecast
        subject = forecast.subject.rpartition(f"{self._rank}:")[2] if self._rank else ""
        names = {forecast.subject, subject}
        is_load = forecast.target in (Target.LOAD, Target.FETCH) and names & self._loads
        is_own = self._id in names and forecast.target is not Target.BATCH_COMPUTE
        if (is_load or is_own) and len(self._pairs) < MAX_PAIRS:
            self._pairs.append(pair)

    def take(self, item: Ingested) -> None:
        """One more record."""
        record = item.record
        if isinstance(record, LoadDecided) and record.request_id == self._id:
            self._loads.add(str(record.load_id))
        self._pipeline.ingest(item)
        if not isinstance(record, Observed):
            return
        if isinstance(record, LoadFinished):
            if str(record.load_id) in self._loads and record.rank == self._rank:
                where = f"from {record.source} to {record.destination}"
                self._note(record.ready_seconds, f"its copy {where} was done")
        elif getattr(record, "request_id", None) == self._id:
            self._own(record)

    @property
    def story(self) -> RequestStory | None:
        """What was seen; None: no such request arrived."""
        if self._state is None:
            return None
        return RequestStory(
            request_id=self._id,
            rank=self._rank,
            events=self._events,
            wait_seconds=self._wait,
            ttft_seconds=self._ttft_seconds,
            pairs=self._pairs,
            passes=self._passes,
        )

    def _own(self, record: Observed) -> None:
        match record:
            case RequestArrived():
                self._arrived(record)
            case RequestDeferred():
                self._note(record.deferred_seconds, f"passed over: {record.reason}")
            case LoadDecided():
                where = f"from {record.source} to {record.destination}"
                what = f"{record.tokens:,} tokens, {record.payload_bytes:,} bytes"
                self._note(record.decided_seconds, f"a copy {where} was ordered: {what}")
            case RequestScheduled():
                self._is_waiting = False
                found = f"{record.hbm_tokens:,} tokens found, {record.loaded_tokens:,} loaded"
                self._note(record.scheduled_seconds, f"entered a batch: {found}")
            case RequestPreempted():
                self._is_waiting = True
                self._note(record.preempted_seconds, "lost its blocks and waits again")
            case FirstToken():
                self._first_token(record)
            case RequestFinished():
                self._is_waiting = False
                tokens = f"{record.output_tokens:,} tokens"
                self._note(record.finished_seconds, f"{record.outcome} after {tokens}")

    def _arrived(self, record: RequestArrived) -> None:
        rank = self._pipeline.ranks.get(record.rank)
        state = rank.requests.live.get(self._id) if rank else None
        if state is None or self._state is not None:
            return
        self._state, self._rank, self._is_waiting = state, record.rank, True
        known = state.nominal_tokens
        held = "nobody knows how many held" if known is None else f"{known:,} of them held"
        self._note(record.arrived_seconds, f"arrived: {record.prompt_tokens:,} tokens, {held}")
        if state.promised_tokens:
            says = f"{state.promised_tokens:,} more are being brought by {state.leader}"
            self._note(record.arrived_seconds, says)

    def _first_token(self, record: FirstToken) -> None:
        if self._state is None or self._wait:
            return
        self._wait = split_wait(self._state.timeline(record.first_token_seconds))
        self._ttft_seconds = record.first_token_seconds - self._state.arrived.arrived_seconds
        self._note(record.first_token_seconds, "first token")

    def _judged(self, actual: Decision, intended: Decision) -> None:
        if not self._is_waiting:
            return
        did = any(self._id in part for part in actual)
        would = any(self._id in part for part in intended)
        if did == would:
            self._passes.same += 1
        elif would:
            self._passes.sooner += 1
        else:
            self._passes.later += 1

    def _note(self, seconds: float, says: str) -> None:
        if self._state is not None and len(self._events) < MAX_EVENTS:
            since = seconds - self._state.arrived.arrived_seconds
            self._events.append(Event(since, says))


class BatchTeller:
    """Watches one batch. Feed it every record, in order."""

    def __init__(self, pipeline: Pipeline, step: int, rank: int = 0) -> None:
        self._pipeline = pipeline
        self._step = step
        self._rank = rank
        self._planned: BatchPlanned | None = None
        self._is_latest = False  # of those that were planned
        self._events: list[Event] = []
        self._pairs: list[Pair] = []
        self._compared: tuple[Decision, Decision] | None = None
        pipeline.shadow.on_judged = self._judged

    def pair(self, pair: Pair) -> None:
        """A forecast was settled."""
        forecast = pair.forecast
        name = f"{self._rank}:{self._step}" if self._rank else str(self._step)
        is_own = forecast.target is Target.BATCH_COMPUTE and forecast.subject == name
        if is_own and len(self._pairs) < MAX_PAIRS:
            self._pairs.append(pair)

    def take(self, item: Ingested) -> None:
        """One more record."""
        self._pipeline.ingest(item)
        record = item.record
        if isinstance(record, BatchPlanned) and record.rank == self._rank:
            self._is_latest = record.step == self._step
            if self._is_latest:
                self._plan(record)
        elif isinstance(record, BatchFinished) and self._planned is not None:
            self._finish(record, self._planned)

    @property
    def story(self) -> BatchStory | None:
        """What was seen; None: no such batch was planned."""
        if self._planned is None:
            return None
        differs = []
        if self._compared is not None:
            actual, intended = self._compared
            for says, mine, theirs in zip(
                ("admitted", "ordered loads for"), actual, intended, strict=True
            ):
                differs += [
                    f"the engine {says} {name}, Strata not" for name in sorted(mine - theirs)
                ]
                differs += [
                    f"Strata {says} {name}, the engine not" for name in sorted(theirs - mine)
                ]
        return BatchStory(
            step=self._step,
            rank=self._rank,
            events=self._events,
            pairs=self._pairs,
            compared=self._compared is not None,
            differs=differs[:MAX_EVENTS],
        )

    def _plan(self, batch: BatchPlanned) -> None:
        self._planned = batch
        members = batch.members
        prefills = sum(member.is_prefill for member in members)
        tokens = sum(member.new_tokens for member in members)
        what = f"{len(members)} requests, {prefills} of them prefill, {tokens:,} tokens"
        self._events.append(Event(0.0, f"planned: {what}; {batch.waiting_total:,} wait"))
        for member in members[:MAX_MEMBERS]:
            kind = "prefill" if member.is_prefill else "decode"
            says = f"{member.request_id}: {kind} of {member.new_tokens:,} after "
            self._events.append(Event(0.0, f"{says}{member.context_tokens:,} tokens"))

    def _finish(self, record: BatchFinished, planned: BatchPlanned) -> None:
        if (record.rank, record.step) == (self._rank, self._step):
            since = record.finished_seconds - planned.planned_seconds
            self._events.append(Event(since, f"took {record.duration_seconds:.4f} s"))

    def _judged(self, actual: Decision, intended: Decision) -> None:
        if self._is_latest:
            self._compared = actual, intended


def tell(teller: RequestTeller | BatchTeller, items: Iterable[Ingested]) -> None:
    """All records, in order."""
    for item in items:
        teller.take(item)
