"""What a copy costs on a link, as plain floats: nothing to load, nothing to import, where it runs.

`(overhead + fragments * fragment_seconds + bytes / bytes_per_second) * exp(knot(fragment_bytes))`.
The first factor is how a mover works; the knots are what it leaves out, one per octave of fragment
size. At a fixed fragment size a larger copy never costs less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from kvready.kernels.errors import ProfileError

MAX_KNOTS = 40  # octaves: fragments from a byte to a terabyte
LARGEST_KNOT = math.log(1e3)  # a correction by more is a fault of the fit


class LoadCurve:
    """Seconds of a copy of so many bytes in so many fragments. Immutable by convention."""

    __slots__ = (
        "_last",
        "_slopes",
        "bytes_per_second",
        "first_octave",
        "fragment_seconds",
        "knots",
        "overhead_seconds",
    )

    def __init__(
        self,
        overhead_seconds: float,
        fragment_seconds: float,
        bytes_per_second: float,
        first_octave: float = 0.0,
        knots: Sequence[float] = (),
    ) -> None:
        """`knots` are natural logs of corrections at fragments of 2**first_octave bytes and on.

        Raises `ProfileError` for figures that no link can have.
        """
        for name, value in (
            ("overhead_seconds", overhead_seconds),
            ("fragment_seconds", fragment_seconds),
        ):
            if not 0.0 <= value < math.inf:
                raise ProfileError(f"{name}={value}: a cost is finite and not below zero")
        if not 0.0 < bytes_per_second < math.inf:
            raise ProfileError(f"bytes_per_second={bytes_per_second}: a link moves some bytes")
        if not math.isfinite(first_octave):
            raise ProfileError(f"first_octave={first_octave}: the log2 of a size is finite")
        if len(knots) > MAX_KNOTS or not all(abs(knot) <= LARGEST_KNOT for knot in knots):
            raise ProfileError(
                f"knots={list(knots)}: at most {MAX_KNOTS}, each a correction by at most 1,000"
            )
        self.overhead_seconds = overhead_seconds
        self.fragment_seconds = fragment_seconds
        self.bytes_per_second = bytes_per_second
        self.first_octave = first_octave
        self.knots = tuple(float(knot) for knot in knots)
        self._last = len(self.knots) - 1
        self._slopes = tuple(
            right - left for left, right in zip(self.knots, self.knots[1:], strict=False)
        )

    def seconds(self, payload_bytes: float, fragments: float) -> float:
        """What the copy costs, from the mover's start to usable."""
        base = (
            self.overhead_seconds
            + fragments * self.fragment_seconds
            + payload_bytes / self.bytes_per_second
        )
        last = self._last
        if last < 0 or payload_bytes <= 0 or fragments <= 0:
            return base
        place = math.log2(payload_bytes / fragments) - self.first_octave
        if place <= 0.0:
            return base * math.exp(self.knots[0])
        if place >= last:
            return base * math.exp(self.knots[last])
        left = int(place)
        return base * math.exp(self.knots[left] + (place - left) * self._slopes[left])


class WorkerLimit:
    """How a link's bandwidth grows with the workers that keep bytes in flight.

    A worker that has `F` bytes in flight over a round trip `RTT` moves `F / RTT`; so many workers
    move as much each, until the link is full.
    """

    __slots__ = ("link_bytes_per_second", "worker_bytes_per_second")

    def __init__(self, link_bytes_per_second: float, worker_bytes_per_second: float) -> None:
        """Raises `ProfileError` for figures that no link can have."""
        for value in (link_bytes_per_second, worker_bytes_per_second):
            if not 0.0 < value < math.inf:
                raise ProfileError(f"{value} bytes/s: a link and a worker move some bytes")
        self.link_bytes_per_second = link_bytes_per_second
        self.worker_bytes_per_second = worker_bytes_per_second

    @classmethod
    def of_measured(cls, measured: Sequence[tuple[int, float]]) -> WorkerLimit:
        """A link's limit and a worker's, from (workers, bytes per second).

        Every number of workers may be the last before the link is full; the one with the smallest
        relative errors stands. Raises `ProfileError` for fewer than two numbers of workers.
        """
        counts = sorted({workers for workers, _ in measured})
        if len(counts) < 2:
            raise ProfileError("a worker's share needs two numbers of workers; calibrate with more")
        limits = []
        for last in counts:
            full = [rate for workers, rate in measured if workers > last]
            free = [rate / workers for workers, rate in measured if workers <= last]
            limits.append(cls(median(full) if full else max(r for _, r in measured), median(free)))
        return min(limits, key=lambda limit: limit._error(measured))

    def bytes_per_second(self, workers: int) -> float:
        """What so many SMs or threads move."""
        return min(self.link_bytes_per_second, workers * self.worker_bytes_per_second)

    def curve(self, timed: LoadCurve, timed_workers: int, workers: int) -> LoadCurve:
        """A curve that was timed with some workers as it would be with others."""
        growth = self.bytes_per_second(workers) / self.bytes_per_second(timed_workers)
        return LoadCurve(
            timed.overhead_seconds,
            timed.fragment_seconds,
            timed.bytes_per_second * growth,
            timed.first_octave,
            timed.knots,
        )

    def _error(self, measured: Sequence[tuple[int, float]]) -> float:
        """Of the logarithms, summed."""
        return sum(abs(math.log(self.bytes_per_second(count) / rate)) for count, rate in measured)
