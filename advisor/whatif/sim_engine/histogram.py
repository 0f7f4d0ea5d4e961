"""A histogram as Prometheus counts: cumulative buckets, a count and a sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
SIZES = tuple(float(1 << power) for power in range(20, 30))
DELAYS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class Histogram:
    """Counts observations under upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self.count = 0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Take in a value that was seen so many times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Its samples in the text format."""
        running = 0
        for bound, count in zip((*self.bounds, None), self._counts, strict=True):
            running += count
            edge = "+Inf" if bound is None else repr(float(bound))
            yield f'{name}_bucket{{{labels},le="{edge}"}} {running}'
        yield f"{name}_count{{{labels}}} {self.count}"
        yield f"{name}_sum{{{labels}}} {self.total!r}"
