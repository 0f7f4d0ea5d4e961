"""What a prediction costs when the outcome is known: losses, each proper for what it judges."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvready.advisor.ledger import BAD_LOG_RATIO, BAD_OFFSET_SECONDS, NOMINAL_COVERAGE

Floats = NDArray[np.float64]

SMALLEST_SECONDS = 1e-9


class Predicted(NamedTuple):
    """A model's quantiles, an element per sample, in seconds; `low` and `high` hold 90 %."""

    p50: Floats
    p90: Floats
    low: Floats
    high: Floats

    def rows(self, chosen: NDArray[np.bool_]) -> Predicted:
        """Those of some samples."""
        return Predicted(*(column[chosen] for column in self))


def ordered(p50: Floats, p90: Floats, low: Floats, high: Floats) -> Predicted:
    """Quantiles that were predicted apart, put in order, none below zero."""
    stacked = np.sort(np.maximum(np.stack([low, p50, p90, high]), 0.0), axis=0)
    return Predicted(stacked[1], stacked[2], stacked[0], stacked[3])


def pinball(actual: Floats, predicted: Floats, share: float) -> Floats:
    """The loss whose mean is smallest for the quantile that `share` of outcomes lie under."""
    beyond = actual - predicted
    loss: Floats = np.maximum(share * beyond, (share - 1.0) * beyond)
    return loss


def interval_score(
    actual: Floats, low: Floats, high: Floats, coverage: float = NOMINAL_COVERAGE
) -> Floats:
    """Width, plus what a miss lies outside times 2 / (1 - coverage)."""
    outside = np.maximum(low - actual, 0.0) + np.maximum(actual - high, 0.0)
    score: Floats = high - low + 2.0 / (1.0 - coverage) * outside
    return score


def covered(actual: Floats, predicted: Predicted) -> Floats:
    """1 where the interval holds the outcome."""
    inside = (predicted.low <= actual) & (actual <= predicted.high)
    return inside.astype(np.float64)


class Score(msgspec.Struct, frozen=True):
    """One model's predictions against what happened. Seconds unless a name says `ratio`."""

    median_signed_error_seconds: float  # positive: it took longer than predicted
    median_absolute_error_seconds: float
    median_absolute_relative_error: float
    pinball_p50_seconds: float
    pinball_p90_seconds: float
    interval_score_seconds: float
    coverage_ratio: float
    median_width_seconds: float
    median_width_ratio: float  # high over low
    bad_ratio: float


def score(actual: Floats, predicted: Predicted) -> Score:
    """The means and medians over some samples; there must be one."""
    error = actual - predicted.p50
    offset = BAD_OFFSET_SECONDS
    log_ratio = np.abs(np.log((predicted.p50 + offset) / (actual + offset)))
    return Score(
        median_signed_error_seconds=float(np.median(error)),
        median_absolute_error_seconds=float(np.median(np.abs(error))),
        median_absolute_relative_error=float(
            np.median(np.abs(error) / np.maximum(actual, SMALLEST_SECONDS))
        ),
        pinball_p50_seconds=float(pinball(actual, predicted.p50, 0.5).mean()),
        pinball_p90_seconds=float(pinball(actual, predicted.p90, 0.9).mean()),
        interval_score_seconds=float(interval_score(actual, predicted.low, predicted.high).mean()),
        coverage_ratio=float(covered(actual, predicted).mean()),
        median_width_seconds=float(np.median(predicted.high - predicted.low)),
        median_width_ratio=float(
            np.median(predicted.high / np.maximum(predicted.low, SMALLEST_SECONDS))
        ),
        bad_ratio=float((log_ratio > BAD_LOG_RATIO).mean()),
    )
