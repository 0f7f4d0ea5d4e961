"""Policies held against each other: ratios paired by seed, each with its interval. Pure.

The same seed draws the same requests for every policy, so that what the draws do to both cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

import msgspec

# Quantiles of Student's t that leave 5 % above, by degrees of freedom from 1.
T_95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
    1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
)  # fmt: skip
T_LIMIT = 1.725  # beyond: a little too wide, never too narrow


class Ratio(msgspec.Struct, frozen=True):
    """Geometric mean over seeds, with a 90 % interval; the same three times for a single seed."""

    middle: float
    low: float
    high: float
    seeds: int

    @property
    def has_interval(self) -> bool:
        """Whether repeats tell anything of chance."""
        return self.seeds > 1

    def differs(self, least: float) -> bool:
        """Beyond chance, as far as it is known, and by more than `least` either way."""
        told = self.low > 1.0 or self.high < 1.0 or not self.has_interval
        return told and abs(math.log(self.middle)) > math.log1p(least)


def paired(ours: Mapping[int, float], base: Mapping[int, float]) -> Ratio | None:
    """By seed. None where a seed is missing, or a value is not above zero."""
    seeds = sorted(ours.keys() & base.keys())
    if not seeds or any(ours[seed] <= 0.0 or base[seed] <= 0.0 for seed in seeds):
        return None
    logs = [math.log(ours[seed] / base[seed]) for seed in seeds]
    middle, half = mean(logs), half_width(logs)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))


def half_width(values: Sequence[float]) -> float:
    """Of the 90 % interval of a mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    free = len(values) - 1
    quantile = T_95[free - 1] if free <= len(T_95) else T_LIMIT
    return quantile * stdev(values) / math.sqrt(len(values))
