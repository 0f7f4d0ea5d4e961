"""Intervals of copies along their bytes: continuous, and never lower for a larger copy.

Errors are learned by octave of size (`shape_cells`), so that bounds taken from a copy's own octave
alone would jump at its edges, downwards too. Here each octave has one node, in its middle, and the
prediction is laid along all of them: at a fixed fragment size a copy's seconds are affine in its
bytes, so the copy at hand tells what one of a node's size would take. What lies between two nodes
is interpolated in bytes. Nodes that would fall with size are pooled by their evidence (isotonic
regression), each bound and the median alike, which keeps their order too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvready.advisor.intervals import (
    FLOOR_SECONDS,
    INHERITED_OUTCOMES,
    LARGEST_SCORE,
    Frame,
    Interval,
    Intervals,
)
from kvready.advisor.ranges import NOTHING, Range, ordered
from kvready.advisor.shape_cells import LARGEST_OCTAVE, SMALLEST_OCTAVE, load_cell
from kvready.collectors.records import Tier

MAX_COURSES = 256  # kept of one moment
DECIMALS = 3  # of a byte
LARGEST_ERROR = math.exp(LARGEST_SCORE)
LEAST_SHARE = 1e-9  # of the whole, that bytes take

OCTAVES = range(SMALLEST_OCTAVE, LARGEST_OCTAVE + 1)
CELLS = {tier: tuple(load_cell(tier, 1 << octave) for octave in OCTAVES) for tier in Tier}

Bounds = tuple[float, float, float]  # lower, median, upper


class Course(NamedTuple):
    """What is predicted of a copy, and how that grows with its bytes, all else as it is."""

    payload_bytes: int
    seconds: float
    seconds_per_byte: float  # at the same size of fragments
    prior_factor: float  # before any outcome it lies within so many times, either way


class Node(NamedTuple):
    """One octave: what a prediction beyond the floor is multiplied by, and how sure that is."""

    size_bytes: float
    weight: float
    factors: Bounds


class Nodes:
    """The nodes of one tier, smallest first, with what they come to along a course."""

    __slots__ = ("_along", "_sizes", "every")

    def __init__(self, every: Sequence[Node]) -> None:
        self.every = tuple(every)
        self._sizes = [node.size_bytes for node in self.every]
        self._along: dict[float, list[Bounds]] = {}

    def along(self, fixed_bytes: float) -> list[Bounds]:
        """The bounds at each node, in bytes' worth; `fixed_bytes` is what does not grow.

        Copies of one moment in fragments of one size have that in common: computed once.
        """
        key = round(fixed_bytes, DECIMALS)  # else the last bits would tell equal ones apart
        found = self._along.get(key)
        if found is None:
            if len(self._along) >= MAX_COURSES:
                self._along.clear()
            bounds = [
                _isotonic([(key + n.size_bytes) * n.factors[bound] for n in self.every], self.every)
                for bound in range(3)
            ]
            found = self._along[key] = list(zip(*bounds, strict=True))
        return found

    def place(self, payload_bytes: int) -> tuple[int, float | None]:
        """The node before a size, and the share of the way to the next; None: outside them."""
        above = bisect_right(self._sizes, payload_bytes)
        if not 0 < above < len(self._sizes):
            return max(above - 1, 0), None
        left, right = self._sizes[above - 1], self._sizes[above]
        return above - 1, (payload_bytes - left) / (right - left)


def nodes_of(intervals: Intervals, source: Tier, prior_factor: float) -> Nodes:
    """The octaves that copies from a tier have taught, and one on each side of them."""
    known = [place for place, cell in enumerate(CELLS[source]) if intervals.outcomes(cell)]
    if not known:
        return Nodes([_node(intervals, source, 0, prior_factor)])
    first, last = max(known[0] - 1, 0), min(known[-1] + 1, len(OCTAVES) - 1)
    return Nodes([_node(intervals, source, at, prior_factor) for at in range(first, last + 1)])


def range_along(nodes: Nodes, course: Course) -> Range:
    """A copy's range."""
    if course.seconds <= 0.0:
        return NOTHING
    low, middle, high = (floored - FLOOR_SECONDS for floored in _bounds(nodes, course))
    return ordered(middle, low, high)


def interval_along(intervals: Intervals, source: Tier, course: Course) -> Interval:
    """The same, to be told the outcome: it teaches the octave that the copy is in."""
    cell = load_cell(source, course.payload_bytes)
    # What it teaches is in the target's own units: a surprise for a sure prior is not larger for
    # copies that come later.
    frame = intervals.frame(cell)
    bounds = _bounds(nodes_of(intervals, source, course.prior_factor), course)
    predicted = max(course.seconds, 0.0) + FLOOR_SECONDS
    low, middle, high = (
        (math.log(floored / predicted) - frame.centre) / frame.spread for floored in bounds
    )
    bounded = frame._replace(low=low, middle=middle, high=high)
    return Interval(intervals, cell, bounded, course.seconds)


def _node(intervals: Intervals, source: Tier, place: int, prior_factor: float) -> Node:
    cell = CELLS[source][place]
    frame: Frame = intervals.frame(cell, prior_factor)
    factors = frame.factor(frame.low), frame.factor(frame.middle), frame.factor(frame.high)
    size = math.sqrt(2.0) * (1 << OCTAVES[place])
    return Node(size, INHERITED_OUTCOMES + intervals.outcomes(cell), factors)


def _bounds(nodes: Nodes, course: Course) -> Bounds:
    """Lower, median and upper seconds, beyond the floor."""
    predicted = max(course.seconds, 0.0) + FLOOR_SECONDS
    # No byte takes nothing, nor all bytes more than the whole.
    whole = max(course.seconds, FLOOR_SECONDS) / max(course.payload_bytes, 1)
    slope = min(max(course.seconds_per_byte, LEAST_SHARE * whole), whole)
    fixed_bytes = max(predicted / slope - course.payload_bytes, 0.0)
    along = nodes.along(fixed_bytes)
    place, share = nodes.place(course.payload_bytes)
    if share is None:  # beyond the nodes: as far off as the last of them
        unit = predicted / (fixed_bytes + nodes.every[place].size_bytes)
        low, middle, high = along[place]
        found = low * unit, middle * unit, high * unit
    else:
        (low, middle, high), after = along[place], along[place + 1]
        found = (
            (low + share * (after[0] - low)) * slope,
            (middle + share * (after[1] - middle)) * slope,
            (high + share * (after[2] - high)) * slope,
        )
    least, most = predicted / LARGEST_ERROR, predicted * LARGEST_ERROR
    low, middle, high = found
    return max(low, least), min(max(middle, least), most), min(high, most)


def _isotonic(seconds: Iterable[float], nodes: Sequence[Node]) -> list[float]:
    """The nearest course, in logarithms by weight, that never falls (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean logarithm, weight, members
    for value, node in zip(seconds, nodes, strict=True):
        mean, weight, members = math.log(value), node.weight, 1
        while pools and pools[-1][0] > mean:
            before, its_weight, its_members = pools.pop()
            mean = (mean * weight + before * its_weight) / (weight + its_weight)
            weight += its_weight
            members += its_members
        pools.append((mean, weight, members))
    return [math.exp(mean) for mean, _, members in pools for _ in range(members)]
