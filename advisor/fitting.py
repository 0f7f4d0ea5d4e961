"""Least squares with non-negative coefficients, fitted as observations come.

Costs do not shrink when there is more to do, so every coefficient stays at or above zero. Errors
are relative: a 2 ms step that takes 4 ms matters as much as a 200 ms step that takes 400. Standard
library alone, since the same fit runs inside an engine's hook.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SWEEPS = 200
RELATIVE_TOLERANCE = 1e-9


class OnlineFit:
    """y ~ coefficients . features, forgetting with a half-life counted in observations.

    `prior` is where the coefficients stand before evidence. Afterwards only their proportions
    count, with the weight of `prior_observations` typical ones: they are scaled to this machine's
    pace, so that a feature never seen keeps a sane value on a machine ten times slower. Values
    under `smallest` are all alike: their errors weigh absolutely.
    """

    def __init__(
        self,
        prior: Sequence[float],
        typical_features: Sequence[float],
        prior_observations: float = 4.0,
        half_life: float = 512.0,
        smallest: float = 1e-6,
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

    def predict(self, features: Sequence[float]) -> float:
        """The fitted value for these features."""
        return sum(c * f for c, f in zip(self.coefficients, features, strict=True))

    def learn(self, features: Sequence[float], actual: float, scale: float = 0.0) -> None:
        """Take in one observation; `solve` makes it count.

        Its error weighs relative to `scale`, which is `actual` unless that is a part of something
        larger.
        """
        scale = max(actual, scale, self._smallest)
        weight = 1.0 / scale**2
        by_prior = sum(c * f for c, f in zip(self._prior, features, strict=True))
        pace = max(actual, self._smallest) / max(by_prior, self._smallest)
        self._pace_log_sum = self._keep * self._pace_log_sum + math.log(pace)
        self._pace_weight = self._keep * self._pace_weight + 1.0
        for i, f_i in enumerate(features):
            row = self._gram[i]
            self._moment[i] = self._keep * self._moment[i] + weight * f_i * actual
            for j, f_j in enumerate(features):
                row[j] = self._keep * row[j] + weight * f_i * f_j
        self.observations += 1

    def solve(self) -> None:
        """Refit by coordinate descent on the normal equations, clamped at zero."""
        pace = math.exp(self._pace_log_sum / self._pace_weight) if self._pace_weight else 1.0
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
