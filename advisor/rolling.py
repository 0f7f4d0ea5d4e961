"""The latest scores, kept sorted: quantiles of a window whose members can be corrected."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

QUARTILES_OF_NORMAL = 1.349  # a normal distribution's interquartile range, in standard deviations
TAIL_STARTS = 0.2  # the share of scores, on each side, from which a tail is extrapolated


class Held:
    """A score in a window. `value` is its present value; it may be replaced while it is inside."""

    __slots__ = ("inside", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self.inside = True


class RollingScores:
    """At most `size` scores, the oldest leaving first."""

    def __init__(self, size: int, seeds: Iterable[float] = ()) -> None:
        self._size = size
        self._held = deque(Held(seed) for seed in seeds)
        self._sorted = sorted(held.value for held in self._held)
        self._seeds = len(self._held)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> Held:
        """Take in a score; a seed leaves for it while there are any, then the oldest if full."""
        if self._seeds or len(self._held) >= self._size:
            self._seeds = max(0, self._seeds - 1)
            oldest = self._held.popleft()
            oldest.inside = False
            del self._sorted[bisect_left(self._sorted, oldest.value)]
        held = Held(value)
        self._held.append(held)
        insort(self._sorted, value)
        return held

    def replace(self, held: Held, value: float) -> None:
        """Correct a score that `add` returned, unless it has left."""
        if held.inside:
            del self._sorted[bisect_left(self._sorted, held.value)]
            held.value = value
            insort(self._sorted, value)

    def rank(self, value: float) -> float:
        """The share of a further score's possible ranks that lie below this value, in (0, 1)."""
        return (bisect_left(self._sorted, value) + 0.5) / (len(self._sorted) + 1)

    def median(self) -> float:
        """The middle score; there must be one."""
        count = len(self._sorted)
        middle = count // 2
        if count % 2:
            return self._sorted[middle]
        return (self._sorted[middle - 1] + self._sorted[middle]) / 2.0

    def spread(self) -> float:
        """Half of the scores lie this close together, as if they were normal: a deviation."""
        ordered = self._sorted
        last = len(ordered) - 1
        quarter, upper = last // 4, last - last // 4
        share = last / 4.0 - quarter
        low = (1.0 - share) * ordered[quarter] + share * ordered[min(quarter + 1, last)]
        high = (1.0 - share) * ordered[upper] + share * ordered[max(upper - 1, 0)]
        return (high - low) / QUARTILES_OF_NORMAL

    def upper(self, tail: float) -> float:
        """The bound that the next score exceeds with probability `tail` at most (exchangeable)."""
        count = len(self._sorted)
        rank = math.ceil((1.0 - tail) * (count + 1) - 1e-9)
        if rank <= count:
            return self._sorted[max(rank, 1) - 1]
        return self._beyond(self._sorted[-1], self._sorted[-1 - int(TAIL_STARTS * count)], tail)

    def lower(self, tail: float) -> float:
        """The bound that the next score stays under with probability `tail` at most."""
        count = len(self._sorted)
        rank = math.floor(tail * (count + 1) + 1e-9)
        if rank >= 1:
            return self._sorted[min(rank, count) - 1]
        return self._beyond(self._sorted[0], self._sorted[int(TAIL_STARTS * count)], tail)

    def _beyond(self, extreme: float, inner: float, tail: float) -> float:
        """No score is that rare: continue the tail as if it were exponential."""
        count = len(self._sorted)
        octaves = math.log(max(TAIL_STARTS * (count + 1), 2.0))
        return extreme + (extreme - inner) / octaves * math.log(1.0 / (tail * (count + 1)))
