"""What pairs add up to, for as long as the process lives: the ledger keeps only the latest."""

from __future__ import annotations

from enum import StrEnum

from kvready.advisor.distribution import Distribution
from kvready.advisor.ledger import BAD_OFFSET_SECONDS, Pair, PairState, Target

# Observed over predicted. Centred at 1, symmetric in the logarithm, with the bad bounds 1/2 and 2.
RATIO_BUCKETS = (0.25, 0.35, 0.5, 0.63, 0.79, 0.91, 1.0, 1.1, 1.26, 1.58, 2.0, 2.83, 4.0)
# Whose forecasts are known by a request's id.
OF_REQUESTS = frozenset({Target.QUEUE, Target.PREFILL, Target.TTFT})


class IntervalOutcome(StrEnum):
    """Where an outcome lay with respect to its forecast's interval."""

    BELOW = "below"
    INSIDE = "inside"
    ABOVE = "above"


class TargetTally:
    """Sums over the pairs of one target."""

    def __init__(self) -> None:
        self.states: dict[PairState, int] = dict.fromkeys(PairState, 0)
        self.outcomes: dict[IntervalOutcome, int] = dict.fromkeys(IntervalOutcome, 0)
        self.ratios = Distribution(RATIO_BUCKETS)
        self.bad = 0
        self.missed = 0
        self.predicted_seconds = 0.0
        self.observed_seconds = 0.0
        self.under_seconds = 0.0
        self.over_seconds = 0.0

    def add(self, pair: Pair) -> None:
        """Count one settled pair."""
        self.states[pair.state] += 1
        self.missed += pair.missed
        actual = pair.actual_seconds
        if pair.state is PairState.CENSORED and pair.missed:
            self.outcomes[IntervalOutcome.ABOVE] += 1
            self.bad += 1
        if pair.state is not PairState.PAIRED or actual is None:
            return
        forecast = pair.forecast
        self.bad += bool(pair.bad)
        if actual < forecast.low_seconds:
            self.outcomes[IntervalOutcome.BELOW] += 1
        elif actual > forecast.high_seconds:
            self.outcomes[IntervalOutcome.ABOVE] += 1
        else:
            self.outcomes[IntervalOutcome.INSIDE] += 1
        self.predicted_seconds += forecast.p50_seconds
        self.observed_seconds += actual
        error_seconds = actual - forecast.p50_seconds
        self.under_seconds += max(error_seconds, 0.0)
        self.over_seconds += max(-error_seconds, 0.0)
        ratio = (actual + BAD_OFFSET_SECONDS) / (forecast.p50_seconds + BAD_OFFSET_SECONDS)
        request_id = forecast.subject if forecast.target in OF_REQUESTS else ""
        self.ratios.add(ratio, request_id, forecast.starts_seconds + actual)


class PairTally:
    """Sums over all pairs, by target. Fed by the pipeline, read in the same thread."""

    def __init__(self) -> None:
        self.targets: dict[Target, TargetTally] = {target: TargetTally() for target in Target}

    def __call__(self, pair: Pair) -> None:
        """Count one settled pair."""
        self.targets[pair.forecast.target].add(pair)
