"""Prediction intervals from what the recent past got wrong: rolling split-conformal ranges."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from kvready.advisor.ledger import NOMINAL_COVERAGE

WINDOW = 200
MIN_SCORES = 20
# Before MIN_SCORES outcomes are known the range is a guess that says so by its width.
PRIOR_FACTOR = 4.0


class RollingRange:
    """Multiplies a point prediction into a range that covered NOMINAL_COVERAGE of late.

    The score is the log of actual over predicted, kept for the last WINDOW outcomes; the range is
    its finite-sample-corrected quantiles (split-conformal, asymmetric).
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._sorted: list[float] = []

    def learn(self, predicted_seconds: float, actual_seconds: float) -> None:
        """Take in one outcome."""
        score = math.log(max(actual_seconds, 1e-6) / max(predicted_seconds, 1e-6))
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(score)
        insort(self._sorted, score)

    def around(self, predicted_seconds: float) -> tuple[float, float]:
        """The range (low, high) in seconds."""
        count = len(self._sorted)
        if count < MIN_SCORES:
            return predicted_seconds / PRIOR_FACTOR, predicted_seconds * PRIOR_FACTOR
        tail = (1.0 - NOMINAL_COVERAGE) / 2.0
        # The (count + 1) correction makes the coverage hold for the next outcome, not for the past.
        low_rank = max(0, math.floor(tail * (count + 1)) - 1)
        high_rank = min(count - 1, math.ceil((1.0 - tail) * (count + 1)) - 1)
        return (
            predicted_seconds * math.exp(self._sorted[low_rank]),
            predicted_seconds * math.exp(self._sorted[high_rank]),
        )
