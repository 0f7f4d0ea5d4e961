"""The part of the catalogue that tells what was predicted and how that turned out."""

from __future__ import annotations

from kvready.advisor.backcasts import BackcastState
from kvready.advisor.demotion import PAIRS
from kvready.advisor.drift import DriftKind
from kvready.advisor.ledger import PairState
from kvready.advisor.outside_model import BackcastTarget
from kvready.advisor.service.metric import (
    PREFIX,
    TARGET,
    Kind,
    Label,
    Metric,
    at,
    counter,
    gauge,
)
from kvready.advisor.service.tally import RATIO_BUCKETS, IntervalOutcome
from kvready.collectors.collector import Level

BACKCAST_TARGET = Label("target", tuple(BackcastTarget))
SETTLED = Label("state", tuple(state for state in PairState if state is not PairState.OPEN))

PREDICTION = (
    *at(
        Level.OBSERVER,
        gauge("forecasts_open", "forecasts", "Forecasts that wait for their outcome."),
        counter("forecasts_total", "forecasts", "Forecasts by what became of them.",
                TARGET, SETTLED),
        counter("forecast_bad_total", "forecasts",
                "Paired forecasts that were off by more than a factor of two.", TARGET),
        counter("forecast_missed_total", "forecasts",
                "Forecasts whose upper bound passed before the outcome came.", TARGET),
        counter("forecast_interval_total", "forecasts",
                "Paired forecasts by where the outcome lay: below, inside or above the interval.",
                TARGET, Label("outcome", tuple(IntervalOutcome))),
        counter("forecast_drift_alarms_total", "alarms",
                "Times that forecasts were found to have become worse: outcomes slower or quicker "
                "than beside earlier forecasts, or missed by their intervals too often.",
                TARGET, Label("kind", tuple(DriftKind))),
        gauge("forecast_drift_active", "",
              "1 while one of the latest 200 outcomes raised this alarm, else 0.",
              TARGET, Label("kind", tuple(DriftKind))),
        counter("forecast_predicted_seconds_total", "seconds",
                "Sum of what paired forecasts predicted.", TARGET),
        counter("forecast_observed_seconds_total", "seconds",
                "Sum of what really happened, over the same forecasts.", TARGET),
        counter("forecast_under_seconds_total", "seconds",
                "Sum of errors where reality took longer than predicted.", TARGET),
        counter("forecast_over_seconds_total", "seconds",
                "Sum of errors where reality was quicker than predicted.", TARGET),
        Metric(f"{PREFIX}forecast_error_ratio", Kind.HISTOGRAM, "ratio",
               "Observed over predicted time, each after 25 ms of grace; 1 is a perfect forecast.",
               (TARGET,), buckets=RATIO_BUCKETS),
        counter("unforecast_requests_total", "requests",
                "Arrivals without a forecast: more requests live than are foreseen, one that "
                "never fits, an engine not described yet, or a KV state of another kind."),
        counter("extrapolated_forecasts_total", "requests",
                "Arrivals whose first token is farther off than a forecast's bounded work "
                "reaches: foretold at the pace of what it reached."),
        counter("unwatched_followers_total", "requests",
                "Requests that wait for another one's prefix, beyond the bound of those watched: "
                "when it is ready was not forecast."),
    ),
    *at(
        None,
        gauge("bad_prediction_ratio", "ratio",
              "Share of forecasts of the last hour that were off by more than a factor of two.",
              TARGET, sparse=True),
        gauge("bad_prediction_burn_ratio", "ratio",
              "How fast bad predictions use up their budget, in the better of a long and a short "
              "window: 1 uses it up exactly. Absent below 50 outcomes.",
              TARGET, Label("windows", tuple(pair.name for pair in PAIRS)), sparse=True),
        gauge("bad_prediction_objective_ratio", "ratio", "Share of forecasts that must be good."),
        gauge("bad_cells", "cells",
              "Shapes whose predictions are persistently bad: outside every policy's scope.",
              TARGET),
    ),
    *at(
        Level.REQUESTS,
        counter("reports_total", "requests", "Requests that a tap told of once they had ended."),
        counter("reports_late_total", "requests",
                "Of those, told too late for the model of backcasts to learn from."),
        gauge("reports_held", "requests",
              "Reports that wait until all that ended before them should have come."),
        counter("backcasts_total", "requests",
                "Reported requests by what became of their backcast; never part of forecasts.",
                BACKCAST_TARGET, Label("state", tuple(BackcastState))),
        counter("backcast_bad_total", "requests",
                "Backcasts that were off by more than a factor of two.", BACKCAST_TARGET),
        counter("backcast_covered_total", "requests",
                "Backcasts whose interval held the outcome.", BACKCAST_TARGET),
    ),
)  # fmt: skip
