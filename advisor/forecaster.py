"""Writes a forecast for every wait before it happens, and closes it when it has happened."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from kvready.advisor.compute import ComputeModel
from kvready.advisor.intervals import Interval, Intervals
from kvready.advisor.ledger import Forecast, Ledger, Pair, Target
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors
from kvready.advisor.readiness import INTO_HBM, Mover, direction_of
from kvready.advisor.requests import Copy, RequestState, RequestTracker
from kvready.advisor.rollforward import (
    ASSUMED_OUTPUT_TOKENS,
    Job,
    Limits,
    Link,
    UnderWay,
    first_token_seconds,
)
from kvready.advisor.shape_cells import compute_cell, load_cell, request_cell, token_bin
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    CopyMethod,
    EngineDescribed,
    FirstToken,
    RequestScheduled,
    Tier,
)

MAX_PLANNED_BATCHES = 64
ROLLFORWARD_MODEL = "roll-forward-1"

# How far off each target may be before the first outcome, either way. A link is known to a few
# times; an engine's compute is not known at all until its first batches have been seen, which is
# before most prefills and first tokens.
PRIOR_FACTORS = {
    Target.LOAD: 4.0,
    Target.FETCH: 4.0,
    Target.BATCH_COMPUTE: 8.0,
    Target.PREFILL: 4.0,
    Target.TTFT: 4.0,
}

FORECAST_COPIES = {Tier.HBM: Target.LOAD, Tier.HOST: Target.FETCH}  # by where they go

Moment = tuple[int, float]  # ingest number and receive time of the record at hand
OnForecast = Callable[[Forecast, Interval], None]


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
    ) -> None:
        self.compute = ComputeModel()
        self.mover = Mover(priors)
        self.engine: EngineDescribed | None = None
        self.free_blocks: int | None = None
        self.unforecast = 0  # arrivals too far from their first token, or of unsupported state
        self.leans_on_degraded = False
        self._ledger = ledger
        self._requests = requests
        self._on_pair = on_pair
        self._on_forecast = on_forecast
        self._prefix = f"{rank}:" if rank else ""  # ids of several ranks share one ledger
        self.intervals = {target: Intervals(PRIOR_FACTORS[target]) for target in Target}
        self._planned: OrderedDict[int, BatchPlanned] = OrderedDict()

    # Loads -----------------------------------------------------------------------------------

    def load_decided(self, copy: Copy, moment: Moment) -> None:
        """Forecast a copy: until the mover takes it up, then its own service."""
        decided = copy.decided
        copy.step_seconds = self._step_seconds_at(decided.decided_seconds)
        open_copies = self._requests.copies.values()
        copy.backlog_seconds = self.mover.backlog_seconds(
            direction_of(copy), open_copies, decided.decided_seconds, copy
        )
        target = FORECAST_COPIES.get(decided.destination)
        if target is None or copy.is_backup:
            return
        self._write(
            target,
            str(decided.load_id),
            decided.decided_seconds,
            self.mover.ordered_seconds(copy, open_copies),
            load_cell(decided.source, decided.payload_bytes),
            self.mover.model(decided.source, decided.destination).version,
            moment,
        )

    def load_finished(self, copy: Copy, method: CopyMethod | None, moment: Moment) -> None:
        """Close a copy's forecast and learn from it, and from the mover that made it."""
        assert copy.ready_seconds is not None
        decided = copy.decided
        target = FORECAST_COPIES.get(decided.destination)
        if target is not None and not copy.is_backup:
            whole_seconds = copy.ready_seconds - decided.decided_seconds
            self._pair(target, str(decided.load_id), whole_seconds, moment)
        self.mover.learn(copy, method, self._requests.copies.values())

    # Batches ---------------------------------------------------------------------------------

    def batch_planned(self, batch: BatchPlanned, moment: Moment) -> None:
        """Forecast how long the batch takes."""
        self.free_blocks = batch.free_blocks
        self._planned[batch.step] = batch
        while len(self._planned) > MAX_PLANNED_BATCHES:
            self._planned.popitem(last=False)
        prefill_tokens = sum(m.new_tokens for m in batch.members if m.is_prefill)
        self._write(
            Target.BATCH_COMPUTE,
            str(batch.step),
            batch.planned_seconds,
            self.compute.batch_seconds(batch.members),
            compute_cell(prefill_tokens),
            self.compute.version,
            moment,
        )

    def batch_finished(self, record: BatchFinished, moment: Moment) -> BatchPlanned | None:
        """Close the batch's forecast and learn from it; returns the plan that it carried out."""
        self._pair(Target.BATCH_COMPUTE, str(record.step), record.duration_seconds, moment)
        batch = self._planned.pop(record.step, None)
        for step in [step for step in self._planned if step < record.step]:
            del self._planned[step]  # batches end in order: the end of this one was lost
            self._censor(Target.BATCH_COMPUTE, str(step), moment)
        if batch is not None:
            self.compute.learn(batch.members, record.duration_seconds)
        return batch

    # Requests --------------------------------------------------------------------------------

    def arrived(self, state: RequestState, moment: Moment) -> None:
        """Forecast the time to first token, from arrival."""
        arrived = state.arrived
        seconds = self.roll(state, moment)
        if seconds is None:
            self.unforecast += 1
            return
        elapsed = max(0.0, moment[1] - arrived.arrived_seconds)
        self._write(
            Target.TTFT,
            arrived.request_id,
            arrived.arrived_seconds,
            elapsed + seconds,
            request_cell(state),
            f"{ROLLFORWARD_MODEL}+{self.compute.version}",
            moment,
        )

    def scheduled(self, state: RequestState, record: RequestScheduled, moment: Moment) -> None:
        """Forecast the prefill, from first dispatch to first token."""
        seconds = self.roll(state, moment)
        if seconds is None:
            return
        self._write(
            Target.PREFILL,
            record.request_id,
            record.scheduled_seconds,
            max(0.0, moment[1] - record.scheduled_seconds) + seconds,
            token_bin(state.remaining_prompt_tokens),
            f"{ROLLFORWARD_MODEL}+{self.compute.version}",
            moment,
        )

    def first_token(self, state: RequestState, record: FirstToken, moment: Moment) -> None:
        """Close the request's forecasts."""
        arrived = state.arrived
        self._pair(
            Target.TTFT,
            arrived.request_id,
            record.first_token_seconds - arrived.arrived_seconds,
            moment,
        )
        if state.scheduled is not None:
            self._pair(
                Target.PREFILL,
                arrived.request_id,
                record.first_token_seconds - state.scheduled.scheduled_seconds,
                moment,
            )

    def censor(self, request_id: str, moment: Moment) -> None:
        """A request ended without a first token: its forecasts have no outcome."""
        for target in (Target.TTFT, Target.PREFILL):
            self._censor(target, request_id, moment)

    def censor_load(self, load_id: int, moment: Moment) -> None:
        """A copy will never finish: the engine restarted under it."""
        for target in FORECAST_COPIES.values():
            self._censor(target, str(load_id), moment)

    def restart(self, moment: Moment) -> None:
        """The engine restarted: batches that were planned have no outcome."""
        for step in self._planned:
            self._censor(Target.BATCH_COMPUTE, str(step), moment)
        self._planned.clear()

    # -----------------------------------------------------------------------------------------

    def _step_seconds_at(self, seconds: float) -> float:
        """Predicted compute of the batch that was planned at this very moment; 0 if none was."""
        if not self._planned:
            return 0.0
        latest = next(reversed(self._planned.values()))
        if latest.planned_seconds != seconds:
            return 0.0
        return self.compute.batch_seconds(latest.members)

    def roll(self, subject: RequestState, moment: Moment) -> float | None:
        """Seconds from now until its first token, by rolling the engine forward; None: too far.

        One that has not arrived is taken to arrive now.
        """
        engine = self.engine
        if engine is None or not engine.block_tokens or not engine.supported_kv_state:
            return None
        limits = Limits(
            batch_tokens=engine.batch_token_limit,
            batch_requests=engine.batch_request_limit,
            free_blocks=self.free_blocks,
        )
        planned = list(self._planned.values())
        under_way = UnderWay(
            [batch.members for batch in planned],
            moment[1] - planned[0].planned_seconds if planned else 0.0,
        )
        model = self.mover.model(*INTO_HBM)
        backlog = self.mover.backlog_seconds(INTO_HBM, self._requests.copies.values(), moment[1])
        link = Link(backlog, model.submit_seconds, model.step_share)
        states = list(self._requests.live.values())
        if subject.arrived.request_id not in self._requests.live:
            states.append(subject)
        return first_token_seconds(
            [self._job(state, moment) for state in states],
            subject.arrived.request_id,
            limits,
            self.compute.batch_seconds,
            under_way,
            link,
        )

    def _job(self, state: RequestState, moment: Moment) -> Job:
        """A request as the roll-forward sees it, waiting ones credited with what they will find."""
        assert self.engine is not None
        arrived = state.arrived
        output = arrived.output_token_limit or ASSUMED_OUTPUT_TOKENS
        waiting = state.scheduled is None
        found = state.expected_tokens if waiting else state.computed_tokens
        blocks = math.ceil((arrived.prompt_tokens + output) / self.engine.block_tokens)
        holds = bool(state.copies) or not waiting
        return Job(
            request_id=arrived.request_id,
            prompt_tokens=arrived.prompt_tokens,
            context_tokens=found,
            output_left=max(1, output - state.output_tokens),
            load_seconds=0.0 if holds else self._expected_load_seconds(state.host_tokens),
            usable_after_seconds=max(
                (self.mover.left_seconds(copy, moment[1]) for copy in state.unfinished_copies),
                default=0.0,
            ),
            running=state.is_running,
            blocks_needed=0 if holds else blocks - found // self.engine.block_tokens,
            blocks_held=blocks if holds else 0,
        )

    def _expected_load_seconds(self, tokens: int) -> float:
        """Service of a load that the scheduler has not ordered yet."""
        assert self.engine is not None
        if not tokens:
            return 0.0
        model = self.mover.model(*INTO_HBM)
        blocks = tokens // self.engine.block_tokens
        return model.service_seconds(
            tokens * self.engine.kv_bytes_per_token, blocks * self.engine.host_fragments_per_block
        )

    def _write(
        self,
        target: Target,
        subject: str,
        starts_seconds: float,
        predicted_seconds: float,
        shape_cell: str,
        model_version: str,
        moment: Moment,
    ) -> None:
        if self.engine is not None and not self.engine.supported_kv_state:
            return  # KV state of another kind follows other laws: no number is better
        interval = self.intervals[target].around(shape_cell, predicted_seconds)
        forecast = Forecast(
            forecast_id=self._ledger.next_id(),
            target=target,
            subject=self._prefix + subject,
            made_ingest=moment[0],
            made_seconds=moment[1],
            starts_seconds=starts_seconds,
            p50_seconds=interval.p50_seconds,
            low_seconds=interval.low_seconds,
            high_seconds=interval.high_seconds,
            shape_cell=shape_cell,
            model_version=model_version,
            leans_on_degraded=self.leans_on_degraded,
        )
        evicted = self._ledger.write(forecast, interval)
        if self._on_forecast is not None:
            self._on_forecast(forecast, interval)
        if evicted is not None:
            self._on_pair(evicted)

    def _pair(self, target: Target, subject: str, actual_seconds: float, moment: Moment) -> None:
        pair = self._ledger.pair(target, self._prefix + subject, actual_seconds, moment[0])
        if pair is not None:
            self._on_pair(pair)

    def _censor(self, target: Target, subject: str, moment: Moment) -> None:
        pair = self._ledger.censor(target, self._prefix + subject, moment[0])
        if pair is not None:
            self._on_pair(pair)
