"""What paired differences prove at every peek: evidence, and a confidence sequence from it. Pure.

Within a pair of neighbouring windows a coin decided which was treated. Whatever the two windows
would have been, `difference - effect` is then as likely `+c` as `-c`: symmetric, given all that
came before. So `1 + tanh(x * (difference - effect))` has mean 1, for each `x`, and the product over
pairs is a martingale that starts at 1: it reaches `1 / alpha` with probability `alpha` at most, at
any time (Ville), however often one looks. This is the bet of Waudby-Smith and Ramdas (JRSS B 2024,
"Estimating means of bounded random variables by betting") on the conditional symmetry that Howard,
Ramdas, McAuliffe and Sekhon (Annals of Statistics 2021, lemma 3d) use, and the design view of
switchbacks of Ham, Bojinov, Lindon and Tingley (2022, "Design-based confidence sequences").

It needs no variance, no bound and no independent windows: the coins are independent however much
the windows hang together, so serial correlation takes no effective samples away. What does bind:
effects that outlast the dropped quarter of a window (what is left in the cache above all) blur both
arms. As a test it holds for any effects that lie on one side of the null, pair by pair; as an
interval for an effect that is the same in all pairs. A heavy tail cannot win by itself: one pair
at most doubles the evidence, so that no fewer than log2(1/alpha) pairs prove anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

# Bets on effects over squared scatter: noise of 0.05 to 1 with effects from a tenth of it up. The
# average over bets is a bet too; doubling steps lose at most a sixth of the growth.
BETS = tuple(2.0**power for power in range(-2, 7))
MAX_WEALTH = 1e200  # long decided; keeps floats finite
STEPS = 24  # of bisection, of the spread of what was seen
REACH = 20.0  # beyond the outermost difference, in units of the smallest bet: all bets are certain


class Evidence:
    """How strongly the differences so far lie above `null`: an e-process, 1 without any.

    `restarts`: an effect may begin later. Of a capital of 1 the part 1 / ((t + 1)(t + 2)) is laid
    aside and first bet at pair t (e-detectors, Shin, Ramdas and Rinaldo 2023): half of it from the
    start, so that an early effect is found almost as soon.
    """

    __slots__ = ("_pairs", "_restarts", "_wealth", "null")

    def __init__(self, null: float = 0.0, restarts: bool = False) -> None:
        self.null = null
        self._restarts = restarts
        self._pairs = 0
        self._wealth = [0.0 if restarts else 1.0] * len(BETS)

    def add(self, difference: float) -> None:
        """One more pair."""
        fresh = 1.0 / ((self._pairs + 1) * (self._pairs + 2)) if self._restarts else 0.0
        above = difference - self.null
        self._wealth = [
            min((held + fresh) * (1.0 + math.tanh(bet * above)), MAX_WEALTH)
            for held, bet in zip(self._wealth, BETS, strict=True)
        ]
        self._pairs += 1

    @property
    def value(self) -> float:
        """By how much what was seen speaks against "no effect exceeds the null"."""
        return sum(self._wealth) / len(BETS)

    def proves(self, alpha: float) -> bool:
        """Whether so much is reached by chance with probability `alpha` at most, ever."""
        return self.value >= 1.0 / alpha


class Bounds(msgspec.Struct, frozen=True):
    """Where the effect lies. None: nothing is proved on that side yet."""

    low: float | None
    high: float | None


def bounds(differences: Sequence[float], alpha: float) -> Bounds:
    """What holds a steady effect with probability `1 - alpha`, at all peeks at once."""
    high = _lower_bound([-one for one in differences], alpha / 2.0)
    return Bounds(_lower_bound(differences, alpha / 2.0), None if high is None else -high)


def _lower_bound(differences: Sequence[float], alpha: float) -> float | None:
    """The greatest null that the differences speak against; evidence falls as the null rises."""
    if not differences:
        return None
    low = min(differences) - REACH / BETS[0]
    if not _against(low, differences, alpha):
        return None
    # Nearly all answers lie among the differences themselves: begin there.
    high = max(differences)
    if _against(min(differences), differences, alpha):
        low = min(differences)
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if _against(middle, differences, alpha):
            low = middle
        else:
            high = middle
    return low


def _against(null: float, differences: Iterable[float], alpha: float) -> bool:
    evidence = Evidence(null)
    for one in differences:
        evidence.add(one)
    return evidence.proves(alpha)
