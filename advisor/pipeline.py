"""Records in, forecasts and pairs out: the one place where the parts are wired, in data order.

Pure and single-threaded. Everything follows from ingest order, so a replay at any speed repeats
every forecast and every pair.
"""

from __future__ import annotations

from collections.abc import Callable

from kvready.advisor.conditions import Traffic
from kvready.advisor.forecaster import Forecaster, Moment
from kvready.advisor.hits import HitAccount
from kvready.advisor.inventory import Inventory
from kvready.advisor.ledger import Ledger, Pair
from kvready.advisor.requests import RequestTracker
from kvready.advisor.steps import StepTimeline
from kvready.advisor.totals import Totals
from kvready.advisor.waits import split_wait
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    EngineDescribed,
    FirstToken,
    Ingested,
    LoadDecided,
    LoadFinished,
    LoadStarted,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
    TierCleared,
)

SCHEDULER_STREAM = "observer-scheduler"
MAX_NAMED_TAPS = 256


class Pipeline:
    """Feed it a recording or a live engine; read its parts at any moment between two records."""

    def __init__(self, on_pair: Callable[[Pair], None] | None = None) -> None:
        self.inventory = Inventory()
        self.requests = RequestTracker()
        self.ledger = Ledger()
        self.steps = StepTimeline()
        self.totals = Totals()
        self.traffic = Traffic()
        self.engine: EngineDescribed | None = None
        self.last_ingest = 0
        self.tap_states: dict[str, TapState] = {}  # by stream, as its last status said
        self.forecaster = Forecaster(self.ledger, self.requests, on_pair or _ignore)
        self.hits = HitAccount(
            self.inventory, self.requests, self.steps, self.totals, self._recompute_seconds
        )

    def ingest(self, item: Ingested) -> None:
        """Take the next record. Ingest numbers must rise."""
        self.last_ingest = item.ingest
        self.ledger.expire(item.received_seconds)
        self.forecaster.leans_on_degraded = self.degraded
        moment = (item.ingest, item.received_seconds)
        match item.record:
            case BatchPlanned() as batch:
                self._batch_planned(batch, moment)
            case BatchFinished() as finished:
                self._batch_finished(finished, moment)
            case BlocksStored() | BlocksRemoved() | TierCleared() as blocks:
                self.inventory.apply(blocks)
                if isinstance(blocks, BlocksStored):
                    self.hits.store(blocks)
            case LoadDecided() as decided:
                self._load_decided(decided, moment)
            case LoadStarted() as started:
                self.requests.start(started.load_id, started.started_seconds)
            case LoadFinished() as finished_load:
                self._load_finished(finished_load, moment)
            case TapStatus() as status:
                self._tap_status(status, moment)
            case EngineDescribed() as engine:
                self.engine = self.forecaster.engine = engine
            case Tick():
                for load_id in self.requests.forget_stale_copies(item.received_seconds):
                    self.forecaster.censor_load(load_id, moment)
            case request:
                self._request(request, moment)

    @property
    def degraded(self) -> bool:
        """Whether something is missing from what the taps delivered."""
        return self.inventory.degraded or any(
            state is not TapState.LIVE for state in self.tap_states.values()
        )

    def _request(
        self,
        record: RequestArrived
        | RequestDeferred
        | RequestScheduled
        | RequestPreempted
        | FirstToken
        | RequestFinished,
        moment: Moment,
    ) -> None:
        match record:
            case RequestArrived():
                self._arrived(record, moment)
            case RequestDeferred():
                self.requests.defer(record)
            case RequestScheduled():
                self._scheduled(record, moment)
            case RequestPreempted():
                self.requests.preempt(record)
            case FirstToken():
                self._first_token(record, moment)
            case RequestFinished():
                self._request_finished(record, moment)

    def _arrived(self, record: RequestArrived, moment: Moment) -> None:
        state = self.requests.arrive(record)
        if state.arrived is not record:
            return
        self.totals.arrivals += 1
        self.traffic.arrive(record, {tier: self.inventory.live_blocks(tier) for tier in Tier})
        self.hits.arrive(state)
        self.forecaster.arrived(state, moment)

    def _scheduled(self, record: RequestScheduled, moment: Moment) -> None:
        state = self.requests.schedule(record)
        if state is None or state.scheduled is not record:
            return
        self.hits.admit(state)
        self.forecaster.scheduled(state, record, moment)

    def _batch_planned(self, batch: BatchPlanned, moment: Moment) -> None:
        for request_id in self.requests.clear_suspicion(batch):
            self.forecaster.censor(request_id, moment)
        self.steps.plan(batch, self.engine)
        self.hits.batch(batch)
        self.forecaster.batch_planned(batch, moment)

    def _batch_finished(self, record: BatchFinished, moment: Moment) -> None:
        self.steps.finish(record)
        self.totals.batches += 1
        self.totals.batch_seconds += record.duration_seconds
        batch = self.forecaster.batch_finished(record, moment)
        if batch is not None:
            self.requests.advance(batch)

    def _load_decided(self, record: LoadDecided, moment: Moment) -> None:
        self.forecaster.load_decided(self.requests.decide(record), moment)
        early = self.requests.take_early_finish(record.load_id)
        if early is not None:
            self._load_finished(early, moment)

    def _load_finished(self, record: LoadFinished, moment: Moment) -> None:
        copy = self.requests.ready(record)
        if copy is None:
            return
        self.forecaster.load_finished(copy, moment)
        begin = copy.started_seconds or copy.decided.decided_seconds
        self.totals.add_copy(
            record.source,
            record.destination,
            copy.decided.payload_bytes,
            record.ready_seconds - begin,
        )

    def _first_token(self, record: FirstToken, moment: Moment) -> None:
        state = self.requests.first_token(record)
        if state is None:
            return
        self.forecaster.first_token(state, record, moment)
        wait = split_wait(state.timeline(record.first_token_seconds))
        whole = record.first_token_seconds - state.arrived.arrived_seconds
        self.totals.unattributed_seconds += abs(whole - sum(wait.values()))
        self.totals.first_tokens += 1
        for name, seconds in wait.items():
            self.totals.wait_seconds[name] += seconds
        self.hits.first_token(state, record, wait)

    def _request_finished(self, record: RequestFinished, moment: Moment) -> None:
        self.totals.requests[record.outcome] += 1
        state = self.requests.finish(record.request_id)
        if state is None:
            return
        if state.first_token_seconds is None:
            self.forecaster.censor(record.request_id, moment)
        self.hits.finish(state)

    def _tap_status(self, status: TapStatus, moment: Moment) -> None:
        self.inventory.apply(status)
        if status.tap in self.tap_states or len(self.tap_states) < MAX_NAMED_TAPS:
            self.tap_states[status.tap] = status.state
        # Only the scheduler's own stream speaks of requests. The others notice a restart on their
        # own time, when the new engine's first requests may be here already.
        if SCHEDULER_STREAM not in status.tap:
            return
        if status.event is TapEvent.EPOCH:
            self._engine_restarted(moment)
        elif status.event in (TapEvent.GAP, TapEvent.DROPPED):
            self.requests.suspect_all()

    def _engine_restarted(self, moment: Moment) -> None:
        """Nothing that was under way has an outcome."""
        for load_id in list(self.requests.copies):
            self.forecaster.censor_load(load_id, moment)
        for request_id in self.requests.forget_all():
            self.forecaster.censor(request_id, moment)
        self.forecaster.restart(moment)
        self.hits.restart()

    def _recompute_seconds(self, new_tokens: int, context_tokens: int) -> float:
        chunk = self.engine.batch_token_limit if self.engine else 0
        return self.forecaster.compute.recompute_seconds(new_tokens, context_tokens, chunk or 512)


def _ignore(pair: Pair) -> None:
    """Nobody listens for pairs."""
