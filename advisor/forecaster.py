"""Writes a forecast for every wait before it happens, and closes it when it has happened."""

from __future__ import annotations

from collections.abc import Callable

from kvready.advisor.compute import GENERIC_PRIOR, ComputeModel, ComputePrior
from kvready.advisor.forecast_writer import ForecastWriter, Moment, OnForecast
from kvready.advisor.inflight import InflightForecasts
from kvready.advisor.interference import Interferences
from kvready.advisor.ledger import Ledger, Pair, Target
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors
from kvready.advisor.lookahead import Lookahead
from kvready.advisor.overlap import compute_seconds, usable_batch_seconds
from kvready.advisor.readiness import Mover, direction_of
from kvready.advisor.requests import Copy, RequestState, RequestTracker
from kvready.advisor.shape_cells import (
    compute_cell,
    queue_cell,
    request_cell,
    token_bin,
)
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    CopyMethod,
    EngineDescribed,
    FirstToken,
    OverlapMode,
    RequestScheduled,
    Tier,
)

FORECAST_COPIES = {Tier.HBM: Target.LOAD, Tier.HOST: Target.FETCH}  # by where they go
MAX_NEW_LEADERS = 16  # followers of one aborted leader that are forecast anew


class Forecaster:
    """One model per target; each learns from its own pairs."""

    def __init__(
        self,
        ledger: Ledger,
        requests: RequestTracker,
        on_pair: Callable[[Pair], None],
        rank: int = 0,
        priors: LoadPriors = NO_PROFILE,
        on_forecast: OnForecast | None = None,
        compute_prior: ComputePrior = GENERIC_PRIOR,
    ) -> None:
        self.compute = ComputeModel(compute_prior)
        self.mover = Mover(priors)
        self.lookahead = Lookahead(requests, self.compute, self.mover)
        self.writer = ForecastWriter(ledger, on_pair, rank, on_forecast)
        self.intervals = self.writer.intervals
        self.inflight = InflightForecasts(self.writer, self.lookahead, self.mover, requests)
        self.interference = Interferences()
        self.unforecast = 0  # arrivals whose first token cannot be told, or of unsupported state
        self.extrapolated = 0  # arrivals whose first token is farther off than a roll reaches
        self._requests = requests

    @property
    def free_blocks(self) -> int | None:
        """Of the engine's pool, as its last batch left it."""
        return self.lookahead.free_blocks

    def describe(self, engine: EngineDescribed) -> None:
        """The engine said what it is."""
        self.lookahead.engine = engine
        self.writer.supported_kv_state = engine.supported_kv_state
        self.mover.announce(engine.load_method, engine.gather_workers)

    # Loads -----------------------------------------------------------------------------------

    def load_decided(self, copy: Copy, moment: Moment) -> None:
        """Forecast a copy: until the mover takes it up, then its own service."""
        decided = copy.decided
        batch = self.lookahead.latest_batch(decided.decided_seconds)
        copy.step_seconds = self.compute.batch_seconds(batch.members) if batch else 0.0
        open_copies = self._requests.copies.values()
        copy.backlog_seconds = self.mover.backlog_seconds(
            direction_of(copy), open_copies, decided.decided_seconds, copy
        )
        target = FORECAST_COPIES.get(decided.destination)
        if target is None or copy.is_backup:
            return
        model = self.mover.model(decided.source, decided.destination)
        self.writer.write_copy(
            target,
            str(decided.load_id),
            decided.decided_seconds,
            decided.source,
            self.mover.ordered(copy, open_copies),
            model.version,
            moment,
        )

    def load_finished(self, copy: Copy, method: CopyMethod | None, moment: Moment) -> float | None:
        """Close a copy's forecast and learn from it, and from the mover that made it.

        Returns how much of its time others shared its link, as far as that is known.
        """
        assert copy.ready_seconds is not None
        decided = copy.decided
        target = FORECAST_COPIES.get(decided.destination)
        if target is not None and not copy.is_backup:
            whole_seconds = copy.ready_seconds - decided.decided_seconds
            self.writer.pair(target, str(decided.load_id), whole_seconds, moment)
        shared_ratio = self.mover.learn(copy, method, self._requests.copies.values())
        self.inflight.copied(decided.load_id, copy.ready_seconds, moment)
        return shared_ratio

    # Batches ---------------------------------------------------------------------------------

    def batch_planned(self, batch: BatchPlanned, moment: Moment) -> None:
        """Forecast how long the batch takes, with the loads that it waits for."""
        self.lookahead.plan(batch)
        self.inflight.planned(batch, moment)
        seconds = self.compute.batch_seconds(batch.members)
        mode, layers = self._overlap()
        if mode is not OverlapMode.BEFORE_ADMISSION:
            states = [self._requests.live.get(member.request_id) for member in batch.members]
            left = [self.lookahead.copies_left_seconds(one, moment) for one in states if one]
            seconds = usable_batch_seconds(mode, layers, max(left, default=0.0), seconds)
        prefill_tokens = sum(m.new_tokens for m in batch.members if m.is_prefill)
        self.writer.write(
            Target.BATCH_COMPUTE,
            str(batch.step),
            batch.planned_seconds,
            seconds,
            compute_cell(prefill_tokens),
            self.compute.version,
            moment,
        )

    def batch_finished(self, record: BatchFinished, moment: Moment) -> BatchPlanned | None:
        """Close the batch's forecast and learn from it; returns the plan that it carried out."""
        self.writer.pair(Target.BATCH_COMPUTE, str(record.step), record.duration_seconds, moment)
        planned = self.lookahead.planned
        batch = planned.pop(record.step, None)
        for step in [step for step in planned if step < record.step]:
            del planned[step]  # batches end in order: the end of this one was lost
            self.writer.censor(Target.BATCH_COMPUTE, str(step), moment)
        if batch is not None:
            self._learn_compute(batch, record)
        return batch

    def batch_applied(self, batch: BatchPlanned, record: BatchFinished, moment: Moment) -> None:
        """What a batch computed of prompts can be used from its end on."""
        for member in batch.members:
            state = self._requests.live.get(member.request_id)
            if state is not None and member.is_prefill:
                tokens = member.context_tokens + member.new_tokens
                self.inflight.progressed(state, tokens, record.finished_seconds, moment)

    def _learn_compute(self, batch: BatchPlanned, record: BatchFinished) -> None:
        """From the part of its duration that was compute, where that can be told."""
        mode, layers = self._overlap()
        load: float | None = 0.0
        if mode is not OverlapMode.BEFORE_ADMISSION:
            load = self._loaded_seconds(batch)
        if load is None:
            return
        seconds = compute_seconds(mode, layers, load, record.duration_seconds)
        if seconds is None:
            return
        if mode is OverlapMode.BEFORE_ADMISSION:  # else batches wait for loads of their own
            self._note_interference(batch, record)
        self.compute.learn(batch.members, seconds)

    def _note_interference(self, batch: BatchPlanned, record: BatchFinished) -> None:
        end = record.finished_seconds
        begin = end - record.duration_seconds
        loads = self.mover.spans_into_hbm(self._requests.copies.values(), begin, end)
        if loads is not None:
            predicted = self.compute.batch_seconds(batch.members)
            self.interference.observe(batch, record, predicted, loads)

    def _loaded_seconds(self, batch: BatchPlanned) -> float | None:
        """How long after its plan the last copy for a batch was usable; None: not known yet."""
        latest = batch.planned_seconds
        for member in batch.members:
            state = self._requests.live.get(member.request_id)
            for copy in state.copies if state is not None else ():
                if copy.ready_seconds is None:
                    return None
                latest = max(latest, copy.ready_seconds)
        return latest - batch.planned_seconds

    def _overlap(self) -> tuple[OverlapMode, int]:
        engine = self.lookahead.engine
        return (engine.overlap, engine.layers) if engine else (OverlapMode.BEFORE_ADMISSION, 1)

    # Requests --------------------------------------------------------------------------------

    def arrived(self, state: RequestState, moment: Moment) -> None:
        """Forecast from arrival: the queue, the first token, and what others bring meanwhile."""
        arrived = state.arrived
        rolled = self.lookahead.roll(state, moment, self.inflight.mark_of(state))
        elapsed = max(0.0, moment[1] - arrived.arrived_seconds)
        if rolled.scheduled_seconds is not None:
            ahead = sum(one.scheduled is None for one in self._requests.live.values()) - 1
            self.writer.write(
                Target.QUEUE,
                arrived.request_id,
                arrived.arrived_seconds,
                elapsed + rolled.scheduled_seconds,
                queue_cell(state, ahead),
                self.lookahead.version_of(rolled, rolled.scheduled_seconds),
                moment,
            )
        self.inflight.follow(state, rolled, arrived.arrived_seconds, moment)
        if rolled.first_token_seconds is None:
            self.unforecast += 1
            return
        self.extrapolated += rolled.first_token_seconds > rolled.horizon_seconds
        self.writer.write(
            Target.TTFT,
            arrived.request_id,
            arrived.arrived_seconds,
            elapsed + rolled.first_token_seconds,
            request_cell(state),
            self.lookahead.version_of(rolled, rolled.first_token_seconds),
            moment,
        )

    def led_anew(self, followers: list[RequestState], moment: Moment) -> None:
        """These wait for another leader now: the one before was aborted."""
        self.inflight.unwatched += max(0, len(followers) - MAX_NEW_LEADERS)
        for state in followers[:MAX_NEW_LEADERS]:
            mark = self.inflight.mark_of(state)
            if mark is not None:
                leader = self._requests.live[mark.request_id]
                rolled = self.inflight.rolled_to(leader, mark.tokens, moment)
                self.inflight.follow(state, rolled, moment[1], moment)

    def passed_over(self, state: RequestState, seconds: float, moment: Moment) -> None:
        """The scheduler passed over a request, maybe for loads that others ordered."""
        self.inflight.follow_copies(state, seconds, moment)

    def scheduled(self, state: RequestState, record: RequestScheduled, moment: Moment) -> None:
        """Close the queue's forecast; forecast the prefill, from first dispatch to first token."""
        self.writer.pair(
            Target.QUEUE,
            record.request_id,
            record.scheduled_seconds - state.arrived.arrived_seconds,
            moment,
        )
        self.inflight.progressed(state, state.computed_tokens, record.scheduled_seconds, moment)
        rolled = self.lookahead.roll(state, moment)
        seconds = rolled.first_token_seconds
        if seconds is None:
            return
        self.writer.write(
            Target.PREFILL,
            record.request_id,
            record.scheduled_seconds,
            max(0.0, moment[1] - record.scheduled_seconds) + seconds,
            token_bin(state.remaining_prompt_tokens),
            self.lookahead.version_of(rolled, seconds),
            moment,
        )

    def first_token(self, state: RequestState, record: FirstToken, moment: Moment) -> None:
        """Close the request's forecasts: its whole prompt is computed."""
        arrived = state.arrived
        self.inflight.progressed(state, arrived.prompt_tokens, record.first_token_seconds, moment)
        self.writer.pair(
            Target.TTFT,
            arrived.request_id,
            record.first_token_seconds - arrived.arrived_seconds,
            moment,
        )
        if state.scheduled is not None:
            self.writer.pair(
                Target.PREFILL,
                arrived.request_id,
                record.first_token_seconds - state.scheduled.scheduled_seconds,
                moment,
            )

    def censor(self, request_id: str, moment: Moment) -> None:
        """A request ended without a first token: its forecasts have no outcome."""
        for target in (Target.TTFT, Target.PREFILL, Target.QUEUE):
            self.writer.censor(target, request_id, moment)

    def censor_load(self, load_id: int, moment: Moment) -> None:
        """A copy will never finish: the engine restarted under it."""
        for target in FORECAST_COPIES.values():
            self.writer.censor(target, str(load_id), moment)
        self.inflight.copy_lost(load_id, moment)

    def restart(self, moment: Moment) -> None:
        """The engine restarted: batches that were planned have no outcome."""
        for step in self.lookahead.planned:
            self.writer.censor(Target.BATCH_COMPUTE, str(step), moment)
        self.lookahead.planned.clear()
