"""What a link profile says in few figures: bandwidth by fragment size, wait, slow-down, scatter."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from kvready.kernels.profile import Curve, LinkProfile, Sample
from kvready.kernels.sweep import (
    KIB,
    LARGEST_FRAGMENT_BYTES,
    MIB,
    SMALLEST_FRAGMENT_BYTES,
    half_octaves,
)

SHOWN_FRAGMENT_BYTES = (2 * KIB, 32 * KIB, 128 * KIB, MIB)
PUBLISHED_LOAD_BYTES = 1 << 30  # at which a published cost is drawn: the bandwidth it approaches


@dataclass(frozen=True)
class Point:
    """Bandwidth at one fragment size, in bytes per second: 10th, 50th and 90th percentile."""

    fragment_bytes: int
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class CurveSummary:
    """One curve in a line."""

    curve: Curve
    bandwidths: tuple[Point | None, ...]  # at SHOWN_FRAGMENT_BYTES; None: outside what was measured
    fastest: Point | None
    wait_seconds: float | None  # median over all samples
    compute_slowdown: float | None  # over all time in which something moved and steps could tell
    scatter: float | None  # median over shapes of (p90 - p10) / median


def summarize(curve: Curve) -> CurveSummary:
    """Figures of one curve, measured or published."""
    along = points(curve)
    return CurveSummary(
        curve,
        tuple(bandwidth_at(along, size) for size in SHOWN_FRAGMENT_BYTES),
        max(along, key=lambda point: point.middle, default=None),
        median(s.wait_seconds for s in curve.samples) if curve.samples else None,
        compute_slowdown(curve.samples),
        repeat_scatter([curve]),
    )


def points(curve: Curve) -> tuple[Point, ...]:
    """Bandwidth over fragment size: of each size the load with the most bytes counts."""
    if curve.cost is not None:
        return tuple(_published(curve, size) for size in half_octaves(*_SIZES))
    largest: dict[int, tuple[int, list[float]]] = {}
    for (fragment_bytes, fragments), samples in sorted(_by_shape(curve.samples).items()):
        rates = [fragment_bytes * fragments / sample.move_seconds for sample in samples]
        largest[fragment_bytes] = fragments, rates
    return tuple(
        Point(fragment_bytes, *spread(rates)) for fragment_bytes, (_, rates) in largest.items()
    )


def bandwidth_at(along: Sequence[Point], fragment_bytes: int) -> Point | None:
    """Bandwidth between two measured sizes, in proportion on log scales; None outside them.

    `along` is by size.
    """
    below = [point for point in along if point.fragment_bytes <= fragment_bytes]
    above = [point for point in along if point.fragment_bytes >= fragment_bytes]
    if not below or not above:
        return None
    left, right = below[-1], above[0]
    if left.fragment_bytes == right.fragment_bytes:
        return left
    share = math.log(fragment_bytes / left.fragment_bytes) / math.log(
        right.fragment_bytes / left.fragment_bytes
    )
    return Point(
        fragment_bytes,
        left.low ** (1 - share) * right.low**share,
        left.middle ** (1 - share) * right.middle**share,
        left.high ** (1 - share) * right.high**share,
    )


def compute_slowdown(samples: Iterable[Sample]) -> float | None:
    """Time beside moves over the time that the same steps take alone; None where none can tell."""
    told = [s for s in samples if s.compute_slowdown is not None]
    alone = sum(s.move_seconds / s.compute_slowdown for s in told if s.compute_slowdown)
    return sum(s.move_seconds for s in told) / alone if alone else None


def repeat_scatter(curves: Iterable[Curve]) -> float | None:
    """Median over shapes of (p90 - p10) / median of a shape's repeats; None without repeats."""
    scatters = []
    for curve in curves:
        for samples in _by_shape(curve.samples).values():
            if len(samples) > 1:
                low, middle, high = spread([sample.move_seconds for sample in samples])
                scatters.append((high - low) / middle)
    return median(scatters) if scatters else None


def busy_before(profile: LinkProfile) -> float | None:
    """Share of the 10 s before it in which other work waited for a CPU; None: not told."""
    found = re.search(r"\bavg10=([\d.]+)", profile.conditions.get("pressure_before", ""))
    return float(found[1]) / 100 if found else None


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """10th, 50th and 90th percentile, between neighbours in proportion."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[4], tenths[8]


_SIZES = (SMALLEST_FRAGMENT_BYTES, LARGEST_FRAGMENT_BYTES)


def _published(curve: Curve, fragment_bytes: int) -> Point:
    assert curve.cost is not None
    fragments = PUBLISHED_LOAD_BYTES // fragment_bytes
    payload = fragments * fragment_bytes
    rate = payload / curve.cost.seconds(payload, fragments)
    return Point(fragment_bytes, rate, rate, rate)


def _by_shape(samples: Iterable[Sample]) -> dict[tuple[int, int], list[Sample]]:
    shapes: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        shapes[sample.fragment_bytes, sample.fragments].append(sample)
    return shapes


def size_text(size_bytes: int) -> str:
    """Bytes in the unit that reads best."""
    if size_bytes < KIB:
        return f"{size_bytes} B"
    if size_bytes >= MIB:
        return f"{size_bytes / MIB:.3g} MiB"
    return f"{size_bytes / KIB:.3g} KiB"
