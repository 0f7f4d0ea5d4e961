"""Values by bucket, with their sum and one example of each bucket: what a histogram is made of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

# Waits and copies: about half an octave below a second, wider above.
WAIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COPY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKEN_BUCKETS = tuple(float(1 << octave) for octave in range(7, 18))  # 128 to 131,072


class Example(msgspec.Struct, frozen=True, gc=False):
    """One value that was seen: whose, and when on the monotonic clock; None: not told."""

    value: float
    request_id: str
    seconds: float | None


class Distribution:
    """Counts per bucket, its upper bound included; the last is of what lies beyond all bounds."""

    __slots__ = ("bounds", "counts", "examples", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.examples: list[Example | None] = [None] * len(self.counts)  # the latest of each

    def add(self, value: float, request_id: str = "", seconds: float | None = None) -> None:
        """Count one value; with a request's id it is its bucket's example from now on."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if request_id:
            self.examples[bucket] = Example(value, request_id, seconds)

    @property
    def count(self) -> int:
        """Values seen."""
        return sum(self.counts)
