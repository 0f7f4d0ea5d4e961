"""One data-parallel rank of an engine: its requests, batches and copies, judged on its own blocks.

Ranks schedule apart: load ids and steps are counted in each, and no block of one serves another.
"""

from __future__ import annotations

from collections.abc import Callable

from kvready.advisor.capacity import PromptLengths
from kvready.advisor.compute import GENERIC_PRIOR, ComputePrior
from kvready.advisor.conditions import Traffic
from kvready.advisor.copy_account import CopyAccount
from kvready.advisor.forecast_writer import Moment, OnForecast
from kvready.advisor.forecaster import Forecaster
from kvready.advisor.gateway_arrivals import GatewayArrivals
from kvready.advisor.hits import HitAccount
from kvready.advisor.inventory import Inventory
from kvready.advisor.ledger import Ledger, Pair
from kvready.advisor.link_use import LinkUse
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors
from kvready.advisor.requests import RequestState, RequestTracker
from kvready.advisor.service_account import ServiceAccount
from kvready.advisor.shadow import Shadow, ShadowTotals
from kvready.advisor.shadow_feed import ShadowFeed
from kvready.advisor.steps import StepTimeline
from kvready.advisor.totals import Totals
from kvready.advisor.waits import WaitState, split_wait
from kvready.advisor.window_tracker import WindowTracker
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    EngineDescribed,
    FirstToken,
    LoadChecked,
    LoadDecided,
    LoadFinished,
    LoadStarted,
    Observed,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    Tier,
)
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets

ASSUMED_CHUNK_TOKENS = 512


class Shared:
    """What all ranks of an engine add to."""

    def __init__(
        self,
        on_pair: Callable[[Pair], None],
        priors: LoadPriors = NO_PROFILE,
        on_forecast: OnForecast | None = None,
        compute_prior: ComputePrior = GENERIC_PRIOR,
        windows: WindowTracker | None = None,
        targets: ServiceTargets = NO_TARGETS,
    ) -> None:
        self.windows = windows or WindowTracker()
        self.inventory = Inventory()
        self.ledger = Ledger()
        self.totals = Totals()
        self.traffic = Traffic(targets)
        self.shadow = ShadowTotals()
        self.service = ServiceAccount(targets)
        self.copies = CopyAccount()
        self.lengths = PromptLengths()
        self.gateway = GatewayArrivals()
        self.on_pair = on_pair
        self.on_forecast = on_forecast
        self.priors = priors
        self.compute_prior = compute_prior


class EngineRank:
    """Takes what one rank's observer saw, in ingest order."""

    def __init__(self, rank: int, shared: Shared) -> None:
        self.rank = rank
        self.engine: EngineDescribed | None = None
        self.revision = 0  # rises with whatever was seen here
        self.requests = RequestTracker()
        self.steps = StepTimeline()
        self.forecaster = Forecaster(
            shared.ledger,
            self.requests,
            shared.on_pair,
            rank,
            shared.priors,
            shared.on_forecast,
            shared.compute_prior,
        )
        self.hits = HitAccount(
            shared.inventory,
            self.requests,
            self.steps,
            shared.totals,
            self._recompute_seconds,
            rank,
        )
        forecaster = self.forecaster
        self.shadow = ShadowFeed(
            Shadow(self.requests, forecaster.lookahead, forecaster.compute, shared.shadow),
            shared.inventory,
            self.hits.pending,
            rank,
        )
        self.link = LinkUse()
        self._service = shared.service
        self._copies = shared.copies
        self._gateway = shared.gateway
        self._lengths = shared.lengths
        self._windows = shared.windows
        self._inventory = shared.inventory
        self._totals = shared.totals
        self._traffic = shared.traffic

    def take(self, record: Observed, moment: Moment) -> None:
        """One more fact."""
        self.revision += 1
        match record:
            case BatchPlanned():
                self._batch_planned(record, moment)
            case BatchFinished():
                self._batch_finished(record, moment)
            case LoadDecided():
                self._load_decided(record, moment)
            case LoadStarted():
                self.requests.start(record.load_id, record.started_seconds)
                self.link.started(record.load_id, record.started_seconds)
            case LoadFinished():
                self._load_finished(record, moment)
            case LoadChecked():
                self._totals.checked_loads += 1
                self._totals.mismatched_loads += record.mismatched
            case EngineDescribed():
                self.engine = record
                self.forecaster.describe(record)
                self.link.describe(record.has_mover_times)
            case RequestArrived():
                self._arrived(record, moment)
            case RequestDeferred():
                self._deferred(record, moment)
            case RequestScheduled():
                self._scheduled(record, moment)
            case RequestPreempted():
                self._preempted(record)
            case FirstToken():
                self._first_token(record, moment)
            case RequestFinished():
                self._request_finished(record, moment)

    def tick(self, moment: Moment, is_heard: bool = True) -> None:
        """Let time pass. `is_heard`: the rank's own stream is whole."""
        self.link.tick(moment[1], is_heard)
        for load_id in self.requests.forget_stale_copies(moment[1]):
            self.revision += 1
            self._lose_load(load_id, moment)

    def restart(self, moment: Moment) -> None:
        """The engine restarted: nothing that was under way has an outcome."""
        for load_id in list(self.requests.copies):
            self.forecaster.censor_load(load_id, moment)
        for state in self.requests.live.values():
            self._service.lost(state)
        for request_id in self.requests.forget_all():
            self.forecaster.censor(request_id, moment)
            self.forecaster.inflight.gone(request_id, moment)
        self.forecaster.restart(moment)
        self.hits.restart()
        self.link.restart()
        self.shadow.restart()

    def _arrived(self, record: RequestArrived, moment: Moment) -> None:
        for gone in self.requests.make_room():
            self._forget(gone, moment)
        state = self.requests.arrive(record)
        if state.arrived is not record:
            return
        state.upstream = self._gateway.join(record.request_id)
        self._totals.arrivals += 1
        live_blocks = {tier: self._inventory.live_blocks(tier) for tier in Tier}
        reuse_tokens = self._traffic.arrive(record, live_blocks)
        if self.engine is None or self.engine.supported_kv_state:
            self.hits.arrive(state)
        else:
            self._totals.unknown_residency += 1
        self._service.arrive(state, reuse_tokens)
        self._lengths.arrive(state)
        self.link.arrived(state)
        self._windows.arrived(self.rank, state, moment[1])
        self.shadow.arrived(state, moment)
        self.forecaster.arrived(state, moment)

    def _deferred(self, record: RequestDeferred, moment: Moment) -> None:
        self.requests.defer(record)
        state = self.requests.live.get(record.request_id)
        if state is not None and state.waits_on:
            self.forecaster.passed_over(state, record.deferred_seconds, moment)

    def _scheduled(self, record: RequestScheduled, moment: Moment) -> None:
        state = self.requests.schedule(record)
        if state is None or state.scheduled is not record:
            return
        self.link.settled(record.request_id)
        self.hits.admit(state)
        self.shadow.scheduled(record)
        self.forecaster.scheduled(state, record, moment)

    def _batch_planned(self, batch: BatchPlanned, moment: Moment) -> None:
        for gone in self.requests.clear_suspicion(batch):
            self._forget(gone, moment)
        self.shadow.batch_planned(batch, moment)
        self.steps.plan(batch, self.engine)
        self.link.planned(batch.planned_seconds, self.steps.has_room)
        self.hits.batch(batch)
        self.forecaster.batch_planned(batch, moment)

    def _batch_finished(self, record: BatchFinished, moment: Moment) -> None:
        self.steps.finish(record)
        self._totals.batches += 1
        self._totals.batch_seconds += record.duration_seconds
        batch = self.forecaster.batch_finished(record, moment)
        if batch is not None:
            self.requests.advance(batch)
            self.forecaster.batch_applied(batch, record, moment)
        self.shadow.batch_finished(record)

    def _load_decided(self, record: LoadDecided, moment: Moment) -> None:
        for load_id in self.requests.make_room_for_copy():
            self._lose_load(load_id, moment)
        copy = self.requests.decide(record)
        self.link.ordered(copy)
        self.forecaster.load_decided(copy, moment)
        self.shadow.load_decided(record)
        early = self.requests.take_early_finish(record)
        if early is not None:
            self._load_finished(early, moment)

    def _load_finished(self, record: LoadFinished, moment: Moment) -> None:
        copy = self.requests.ready(record)
        if copy is None:
            return
        self.link.ended(record.load_id, record.ready_seconds)
        shared_ratio = self.forecaster.load_finished(copy, record.method, moment)
        self._copies.finish(copy, record, shared_ratio)
        begin = copy.started_seconds or copy.decided.decided_seconds
        self._totals.add_copy(
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
        whole = record.first_token_seconds - state.arrived_seconds
        self._totals.unattributed_seconds += abs(whole - sum(wait.values()))
        self._totals.first_tokens += 1
        self._service.first_token(state, record)
        for name, seconds in wait.items():
            self._totals.wait_seconds[name] += seconds
        queued = wait.get(WaitState.QUEUE, 0.0)
        self._windows.first_token(self.rank, record.request_id, whole, queued)
        self.hits.first_token(state, record, wait)
        self.shadow.first_token(record.request_id)

    def _preempted(self, record: RequestPreempted) -> None:
        self.requests.preempt(record)
        self.hits.preempt(record.request_id)
        state = self.requests.live.get(record.request_id)
        if state is not None:
            self.shadow.preempted(state)

    def _request_finished(self, record: RequestFinished, moment: Moment) -> None:
        self._totals.requests[record.outcome] += 1
        state = self.requests.finish(record.request_id)
        self._service.finish(state, record)
        if state is not None:
            self._windows.finished(self.rank, state, record)
            self._forget(state, moment)

    def _forget(self, state: RequestState, moment: Moment) -> None:
        """A request is gone, however it ended."""
        self.link.settled(state.arrived.request_id)
        if state.first_token_seconds is None:
            self.forecaster.censor(state.arrived.request_id, moment)
        self.forecaster.inflight.gone(state.arrived.request_id, moment)
        self.forecaster.led_anew(self.hits.finish(state), moment)
        self.shadow.finished(state.arrived.request_id)

    def _lose_load(self, load_id: int, moment: Moment) -> None:
        """A copy's end will not be seen."""
        self.link.ended(load_id, moment[1])
        self.forecaster.censor_load(load_id, moment)

    def _recompute_seconds(self, new_tokens: int, context_tokens: int) -> float:
        chunk = self.engine.batch_token_limit if self.engine else 0
        return self.forecaster.compute.recompute_seconds(
            new_tokens, context_tokens, chunk or ASSUMED_CHUNK_TOKENS
        )
