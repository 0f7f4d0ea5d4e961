"""One rank's pen: puts forecasts into the ledger with their intervals, and closes them."""

from __future__ import annotations

from collections.abc import Callable

from kvready.advisor.copy_ranges import Course, interval_along
from kvready.advisor.intervals import Interval, Intervals
from kvready.advisor.ledger import Forecast, Ledger, Pair, Target
from kvready.advisor.load_priors import GENERIC_FACTOR
from kvready.collectors.records import Tier

# How far off each target may be before the first outcome, either way. A copy is as far off as what
# is believed of its link; an engine's compute is not known at all until its first batches have been
# seen, which is before most prefills and first tokens.
PRIOR_FACTORS = {
    Target.LOAD: GENERIC_FACTOR,
    Target.FETCH: GENERIC_FACTOR,
    Target.BATCH_COMPUTE: 8.0,
    Target.QUEUE: 4.0,
    Target.INFLIGHT_READY: 4.0,
    Target.PREFILL: 4.0,
    Target.TTFT: 4.0,
}

Moment = tuple[int, float]  # ingest number and receive time of the record at hand
OnForecast = Callable[[Forecast, Interval], None]


class ForecastWriter:
    """Ids of several ranks share one ledger; each target learns from its own pairs."""

    def __init__(
        self,
        ledger: Ledger,
        on_pair: Callable[[Pair], None],
        rank: int = 0,
        on_forecast: OnForecast | None = None,
    ) -> None:
        self.intervals = {target: Intervals(PRIOR_FACTORS[target]) for target in Target}
        self.leans_on_degraded = False
        self.supported_kv_state = True
        self._ledger = ledger
        self._on_pair = on_pair
        self._on_forecast = on_forecast
        self._prefix = f"{rank}:" if rank else ""

    def write(
        self,
        target: Target,
        subject: str,
        starts_seconds: float,
        predicted_seconds: float,
        shape_cell: str,
        model_version: str,
        moment: Moment,
    ) -> None:
        """Write a forecast of a duration that starts at an event time."""
        if not self.supported_kv_state:
            return  # KV state of another kind follows other laws: no number is better
        interval = self.intervals[target].around(shape_cell, predicted_seconds)
        self._enter(target, subject, starts_seconds, interval, model_version, moment)

    def write_copy(
        self,
        target: Target,
        subject: str,
        starts_seconds: float,
        source: Tier,
        course: Course,
        model_version: str,
        moment: Moment,
    ) -> None:
        """Write a forecast of a copy, with the range that `EngineEstimates` would answer."""
        if not self.supported_kv_state:
            return
        interval = interval_along(self.intervals[target], source, course)
        self._enter(target, subject, starts_seconds, interval, model_version, moment)

    def _enter(
        self,
        target: Target,
        subject: str,
        starts_seconds: float,
        interval: Interval,
        model_version: str,
        moment: Moment,
    ) -> None:
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
            shape_cell=interval.shape_cell,
            model_version=model_version,
            leans_on_degraded=self.leans_on_degraded,
        )
        evicted = self._ledger.write(forecast, interval)
        if self._on_forecast is not None:
            self._on_forecast(forecast, interval)
        if evicted is not None:
            self._on_pair(evicted)

    def pair(self, target: Target, subject: str, actual_seconds: float, moment: Moment) -> None:
        """Close a forecast with its outcome."""
        pair = self._ledger.pair(target, self._prefix + subject, actual_seconds, moment[0])
        if pair is not None:
            self._on_pair(pair)

    def censor(self, target: Target, subject: str, moment: Moment) -> None:
        """Close a forecast that has no outcome."""
        pair = self._ledger.censor(target, self._prefix + subject, moment[0])
        if pair is not None:
            self._on_pair(pair)
