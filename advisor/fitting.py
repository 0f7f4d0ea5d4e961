"""Least squares with non-negative coefficients, fitted as observations come.

Costs do not shrink when there is more to do, so every coefficient stays at or above zero. Errors
are relative: a 2 ms step that takes 4 ms matters as much as a 200 ms step that takes 400. Standard
library alone, since the same fit runs inside an engine's hook.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvready.advisor.rolling import RollingScores

SWEEPS = 200
RELATIVE_TOLERANCE = 1e-9
ROBUST_WINDOW = 64  # errors whose middle tells what is usual
ROBUST_AFTER = 8  # of them; before, nothing is known to be unusual
ROBUST_DEVIATIONS = 3.0  # an error beyond so many usual ones counts as if it were at them
DEVIATIONS_PER_MEDIAN = 1.4826  # of absolute errors, if they were normal
SMALLEST_DEVIATION = 0.05

_Early = tuple[Sequence[float], float, float, float]  # features, value, scale, by the prior


class OnlineFit:
    """y ~ coefficients . features, forgetting with a half-life counted in observations.

    `prior` is where the coefficients stand before evidence. Afterwards only their proportions
    count, with the weight of `prior_observations` typical ones: they are scaled to this machine's
    pace, so that a feature never seen keeps a sane value on a machine ten times slower. Values
    under `smallest` are all alike: their errors weigh absolutely.

    `robust`: a value far from its prediction, by what is usual of late, counts only as far as the
    usual reaches (Huber), and the pace is the middle one of many. A lasting change makes itself
    usual and is followed.
    """

    def __init__(
        self,
        prior: Sequence[float],
        typical_features: Sequence[float],
        prior_observations: float = 4.0,
        half_life: float = 512.0,
        smallest: float = 1e-6,
        robust: bool = False,
    ) -> None:
        self.size = len(prior)
        self.coefficients = list(prior)
        self.observations = 0
        self._prior = list(prior)
        expected = sum(c * f for c, f in zip(prior, typical_features, strict=True))
        # One weight per coefficient, so that features of any unit are held alike.
        self._prior_weight = [prior_observations * (f / expected) ** 2 for f in typical_features]
        self._pace_log_sum = 0.0
        self._pace_weight = 0.0
        self._smallest = smallest
        self._keep = 0.5 ** (1.0 / half_life)
        self._gram = [[0.0] * self.size for _ in range(self.size)]
        self._moment = [0.0] * self.size
        self._paces = RollingScores(ROBUST_WINDOW) if robust else None
        self._errors = RollingScores(ROBUST_WINDOW)  # absolute, of logarithms
        self._early: list[_Early] = []

    def predict(self, features: Sequence[float]) -> float:
        """The fitted value for these features."""
        return sum(c * f for c, f in zip(self.coefficients, features, strict=True))

    def learn(self, features: Sequence[float], actual: float, scale: float = 0.0) -> None:
        """Take in one observation; `solve` makes it count.

        Its error weighs relative to `scale`, which is `actual` unless that is a part of something
        larger.
        """
        by_prior = sum(c * f for c, f in zip(self._prior, features, strict=True))
        pace = max(actual, self._smallest) / max(by_prior, self._smallest)
        self._pace_log_sum = self._keep * self._pace_log_sum + math.log(pace)
        self._pace_weight = self._keep * self._pace_weight + 1.0
        self.observations += 1
        if self._paces is not None:
            self._paces.add(math.log(pace))
            actual = self._usual(features, actual)
            if self.observations <= ROBUST_AFTER:
                self._take_anew((features, actual, scale, by_prior))
                return
        self._take(features, actual, scale)

    def _take(self, features: Sequence[float], actual: float, scale: float) -> None:
        scale = max(actual, scale, self._smallest)
        weight = 1.0 / scale**2
        for i, f_i in enumerate(features):
            row = self._gram[i]
            self._moment[i] = self._keep * self._moment[i] + weight * f_i * actual
            for j, f_j in enumerate(features):
                row[j] = self._keep * row[j] + weight * f_i * f_j

    def _take_anew(self, newest: _Early) -> None:
        """Weigh the first few all again, none by more than a usual one of its shape.

        The very first alone would not be known to be a fault.
        """
        self._early.append(newest)
        self._gram = [[0.0] * self.size for _ in range(self.size)]
        self._moment = [0.0] * self.size
        pace = self._pace()
        for features, actual, scale, by_prior in self._early:
            self._take(features, actual, max(scale, pace * by_prior))

    def solve(self) -> None:
        """Refit by coordinate descent on the normal equations, clamped at zero."""
        pace = self._pace()
        weights = [weight / pace**2 for weight in self._prior_weight]
        for _ in range(SWEEPS):
            moved = 0.0
            for i in range(self.size):
                row = self._gram[i]
                others = sum(row[j] * self.coefficients[j] for j in range(self.size) if j != i)
                pull = self._moment[i] + weights[i] * pace * self._prior[i] - others
                value = max(0.0, pull / (row[i] + weights[i]))
                scale = max(value, self.coefficients[i])
                if scale > 0.0:
                    moved = max(moved, abs(value - self.coefficients[i]) / scale)
                self.coefficients[i] = value
            if moved < RELATIVE_TOLERANCE:
                return

    def _pace(self) -> float:
        """How much slower this machine is than the prior says."""
        if self._paces is not None:
            return math.exp(self._paces.median()) if len(self._paces) else 1.0
        return math.exp(self._pace_log_sum / self._pace_weight) if self._pace_weight else 1.0

    def _usual(self, features: Sequence[float], actual: float) -> float:
        """The value, no further from its prediction than is usual."""
        predicted = max(self.predict(features), self._smallest)
        error = math.log(max(actual, self._smallest) / predicted)
        self._errors.add(abs(error))
        if len(self._errors) <= ROBUST_AFTER:
            return actual
        deviation = max(DEVIATIONS_PER_MEDIAN * self._errors.median(), SMALLEST_DEVIATION)
        reach = ROBUST_DEVIATIONS * deviation
        return predicted * math.exp(min(max(error, -reach), reach))
