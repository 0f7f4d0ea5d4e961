"""How lengths spread: quantiles of public data that ship with the package."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from random import Random

import msgspec


class LengthModel(msgspec.Struct, frozen=True):
    """One quantity's quantiles (per cent -> value) with where they come from."""

    source: str
    licence: str
    unit: str
    mean: float
    quantiles: dict[float, float]

    def relative(self, draw: Random) -> float:
        """One draw over the mean, linear between quantiles."""
        levels = list(self.quantiles)
        at = draw.random() * levels[-1]
        index = min(bisect_right(levels, at), len(levels) - 1)
        low, high = levels[index - 1], levels[index]
        share = (at - low) / (high - low)
        value = self.quantiles[low] * (1 - share) + self.quantiles[high] * share
        return value / self.mean


@cache
def length_models() -> dict[str, LengthModel]:
    """All that ship, by name."""
    data = files("kvready.advisor.whatif").joinpath("length_models.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, LengthModel])


def geometric(draw: Random, mean: float) -> int:
    """One whole number from 1 on with that mean (1 or more)."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - draw.random()) / math.log(1 - 1 / mean))


def with_total(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers of at least 1, in proportion to `weights`, that add up to `total`."""
    spare = total - len(weights)
    scale = spare / sum(weights)
    cumulated, shares, given = 0.0, [], 0
    for weight in weights:
        cumulated += weight * scale
        upto = round(cumulated)
        shares.append(1 + upto - given)
        given = upto
    return shares
