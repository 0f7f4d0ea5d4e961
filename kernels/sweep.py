"""Which moves a calibration times, and in which order. Pure: one seed gives one plan.

Every round holds each trial once, in a new order, so that a neighbour's burst of noise hits all
movers and sizes alike. Quiet and contended trials alternate in short stretches for the same reason.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvready.kernels.pools import Direction

KIB = 1 << 10
MIB = 1 << 20

ROUNDS = 4  # repeats of each trial
SAMPLED_ROUNDS = 2  # fewer would tell no scatter
SMALLEST_FRAGMENT_BYTES = 512
LARGEST_FRAGMENT_BYTES = 2 * MIB
SMALLEST_PAGE_BYTES = 4 * KIB  # of the disk tier: O_DIRECT moves no less
LARGE_LOAD_BYTES = 8 * MIB  # gives the bandwidth of a fragment size
SMALL_LOADS_BYTES = (64 * KIB, 512 * KIB)  # give what a load costs whatever its size
LIMIT_LOADS_BYTES = (MIB, 4 * MIB, 16 * MIB, 32 * MIB)  # in one piece
MODEL_PAGES = (1, 4, 16)  # loads of exactly a model's pages
MAX_LOAD_BYTES = 64 * MIB
MAX_FRAGMENTS = 2_048  # per load: the slowest mover takes milliseconds for these
DISK_READS = 96  # per load, and no more than DISK_LOAD_BYTES
DISK_LOAD_BYTES = 8 * MIB
VECTOR_BYTES = 128  # below, movers fall back to narrower copies
MOST_SHAPES = 32  # per curve: a fit gains nothing from more
LEAST_SHAPES = 6
HOST_SHAPES_PER_SECOND = 3.2
DISK_SHAPES_PER_SECOND = 0.7
PLANES = 8  # of a page where no model says otherwise
STRETCH_TRIALS = 16  # timed under one condition before the other has its turn


@dataclass(frozen=True)
class CurveKey:
    """What a curve is of: samples of two keys are never mixed."""

    source: str  # hbm | host | disk
    destination: str
    mover: str
    backend: str
    workers: int
    contended: bool = False

    @property
    def direction(self) -> Direction:
        """Into HBM or out of it."""
        return Direction.STORE if self.source == "hbm" else Direction.LOAD


@dataclass(frozen=True)
class Shape:
    """Size of one load: whole pages of `planes` fragments each."""

    fragment_bytes: int
    fragments: int
    planes: int

    @property
    def pages(self) -> int:
        """Pages that move."""
        return self.fragments // self.planes

    @property
    def payload_bytes(self) -> int:
        """Bytes that move."""
        return self.fragments * self.fragment_bytes


@dataclass(frozen=True)
class Trial:
    """One shape on one curve, timed once per round."""

    curve: CurveKey
    shape: Shape


@dataclass(frozen=True)
class Stretch:
    """Trials in a row under one condition."""

    contended: bool
    trials: tuple[Trial, ...]


def half_octaves(low: int, high: int) -> list[int]:
    """Sizes from low to high, two per doubling, in whole vectors, as fragments of models are."""
    steps = round(2 * math.log2(high / low))
    return [round(low * 2 ** (step / 2) / VECTOR_BYTES) * VECTOR_BYTES for step in range(steps + 1)]


def thinned(sizes: Sequence[int], count: int) -> list[int]:
    """At most `count` of these sizes, evenly spread, first and last kept."""
    if count >= len(sizes):
        return list(sizes)
    last = len(sizes) - 1
    return [sizes[round(number * last / max(1, count - 1))] for number in range(count)]


def host_shape_count(seconds: float) -> int:
    """Shapes per curve between pools for which a calibration of so many seconds has time."""
    return max(LEAST_SHAPES, min(MOST_SHAPES, round(seconds * HOST_SHAPES_PER_SECOND)))


def disk_shape_count(seconds: float) -> int:
    """Page sizes of the disk for which a calibration of so many seconds has time."""
    return max(LEAST_SHAPES // 2, round(seconds * DISK_SHAPES_PER_SECOND))


def host_shapes(count: int, pool_bytes: int, seed: int) -> tuple[Shape, ...]:
    """About `count` shapes between two pools: a large load of each size, small ones of some."""
    sizes = half_octaves(SMALLEST_FRAGMENT_BYTES, LARGEST_FRAGMENT_BYTES)
    large = thinned(sizes, max(2, round(count * 0.75)))
    shorter = [size for size in large if size * PLANES <= SMALL_LOADS_BYTES[-1]]
    small = random.Random(seed).sample(shorter, min(len(shorter), count - len(large)))
    wanted = [(size, LARGE_LOAD_BYTES) for size in large]
    wanted += [
        (size, SMALL_LOADS_BYTES[number % len(SMALL_LOADS_BYTES)])
        for number, size in enumerate(small)
    ]
    return _distinct(_load(size, payload, PLANES, pool_bytes) for size, payload in wanted)


def limit_shapes(pool_bytes: int) -> tuple[Shape, ...]:
    """Loads in one piece."""
    return tuple(Shape(size, 1, 1) for size in LIMIT_LOADS_BYTES if size <= pool_bytes // 2)


def model_shapes(fragment_bytes: int, planes: int, pool_bytes: int) -> tuple[Shape, ...]:
    """Loads of exactly a model's pages."""
    page_bytes = fragment_bytes * planes
    fitting = min(pool_bytes // 2, MAX_LOAD_BYTES) // page_bytes
    return tuple(
        Shape(fragment_bytes, pages * planes, planes)
        for pages in MODEL_PAGES
        if pages <= fitting and pages * planes <= 4 * MAX_FRAGMENTS
    )


def disk_shapes(count: int, page_bytes: int | None = None) -> tuple[Shape, ...]:
    """At most `count` page sizes of the disk tier, and a model's page besides."""
    octaves = half_octaves(SMALLEST_PAGE_BYTES, LARGEST_FRAGMENT_BYTES)[::2]
    sizes = thinned(octaves, count) + ([page_bytes] if page_bytes else [])
    return _distinct(
        Shape(size, max(1, min(DISK_READS, DISK_LOAD_BYTES // size)), 1) for size in sizes
    )


def trials(
    curves: Sequence[CurveKey], shapes: Callable[[CurveKey], Sequence[Shape]]
) -> tuple[Trial, ...]:
    """All shapes of all curves, quiet and contended."""
    return tuple(
        Trial(replace(curve, contended=contended), shape)
        for contended in (False, True)
        for curve in curves
        for shape in shapes(curve)
    )


def stretches(planned: Sequence[Trial], seed: int, number: int) -> tuple[Stretch, ...]:
    """Round `number`: every trial once, shuffled, cut into stretches that alternate."""
    order = random.Random(f"{seed}/{number}")
    halves = [[t for t in planned if t.curve.contended is side] for side in (False, True)]
    for half in halves:
        order.shuffle(half)
    order.shuffle(halves)
    cuts = max(1, -(-max(map(len, halves)) // STRETCH_TRIALS))
    cut = [
        tuple(half[place * len(half) // cuts : (place + 1) * len(half) // cuts])
        for place in range(cuts)
        for half in halves
    ]
    return tuple(Stretch(part[0].curve.contended, part) for part in cut if part)


def another_round(done: int, spent_seconds: float, budget_seconds: float) -> bool:
    """Whether one more whole round is due: the first ones always, others where time allows."""
    if done < SAMPLED_ROUNDS:
        return True
    return done < ROUNDS and spent_seconds * (done + 1) / done <= budget_seconds


def _load(fragment_bytes: int, wanted_bytes: int, planes: int, pool_bytes: int) -> Shape:
    """Whole pages of about so many bytes, at least one, at most half of a pool."""
    page_bytes = fragment_bytes * planes
    most = min(MAX_FRAGMENTS // planes, max(1, pool_bytes // 2 // page_bytes))
    pages = min(most, max(1, wanted_bytes // page_bytes))
    return Shape(fragment_bytes, pages * planes, planes)


def _distinct(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    return tuple(dict.fromkeys(shapes))
