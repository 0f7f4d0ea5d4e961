"""What so many of so many say of a share: bounds, and how odd it would be. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist


def share_bounds(hits: float, trials: int, alpha: float) -> tuple[float, float]:
    """Wilson's bounds of a share, each of which errs with probability `alpha`."""
    if trials <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1.0 - alpha)
    share, square = hits / trials, z * z / trials
    centre = share + square / 2.0
    reach = z * math.sqrt(max(share * (1.0 - share), 0.0) / trials + square / (4.0 * trials))
    # At the ends one bound is the share itself; rounding must not put it on the other side.
    low = (centre - reach) / (1.0 + square) if hits else 0.0
    high = (centre + reach) / (1.0 + square) if hits < trials else 1.0
    return low, high


def tail_probability(hits: int, trials: int, share: float) -> float:
    """How often at least so many come up by chance where each does with `share`."""
    if hits <= 0:
        return 1.0
    if share <= 0.0:
        return 0.0
    if share >= 1.0:
        return 1.0
    odds = math.log(share) - math.log1p(-share)
    log_term = _log_choose(trials, hits) + hits * math.log(share)
    log_term += (trials - hits) * math.log1p(-share)
    total, term = 0.0, 1.0
    for count in range(hits, trials + 1):  # terms relative to the first: none underflows
        total += term
        if count < trials:
            term *= (trials - count) / (count + 1) * math.exp(odds)
    return min(1.0, math.exp(min(0.0, log_term + math.log(total))))


def false_discoveries_bounded(p_values: list[float], rate: float) -> list[bool]:
    """Which stand out, such that of those at most `rate` do by chance (Benjamini-Hochberg)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    last = max(
        (n for n, index in enumerate(order, 1) if p_values[index] <= rate * n / len(order)),
        default=0,
    )
    found = [False] * len(p_values)
    for index in order[:last]:
        found[index] = True
    return found


def _log_choose(trials: int, hits: int) -> float:
    return math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
