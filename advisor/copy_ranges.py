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
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from kvready.advisor.intervals import (
    FLOOR_SECONDS,
    INHERITED_OUTCOMES,
    Frame,
    Interval,
    Intervals,
)
from kvready.advisor.ranges import NOTHING, Range, ordered
from kvready.advisor.shape_cells import LARGEST_OCTAVE, SMALLEST_OCTAVE, load_cell
from kvready.collectors.records import Tier

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


def nodes_of(intervals: Intervals, source: Tier, prior_factor: float) -> tuple[Node, ...]:
    """The octaves that copies from a tier have taught, and one on each side of them."""
    known = [place for place, cell in enumerate(CELLS[source]) if intervals.outcomes(cell)]
    if not known:
        return (_node(intervals, source, 0, prior_factor),)
    first, last = max(known[0] - 1, 0), min(known[-1] + 1, len(OCTAVES) - 1)
    return tuple(_node(intervals, source, at, prior_factor) for at in range(first, last + 1))


def range_along(nodes: Sequence[Node], course: Course) -> Range:
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


def _bounds(nodes: Sequence[Node], course: Course) -> Bounds:
    """Lower, median and upper seconds, beyond the floor."""
    predicted = max(course.seconds, 0.0) + FLOOR_SECONDS
    slope = min(max(course.seconds_per_byte, 0.0), course.seconds / max(course.payload_bytes, 1))
    fixed = predicted - slope * course.payload_bytes
    at_nodes = [fixed + slope * node.size_bytes for node in nodes]
    place, share = _place(nodes, course.payload_bytes)
    found = []
    for bound in range(3):
        seconds = [at * node.factors[bound] for at, node in zip(at_nodes, nodes, strict=True)]
        if any(one > other for one, other in pairwise(seconds)):
            seconds = _isotonic(seconds, nodes)
        if share is None:  # beyond the nodes: as far off as the last of them
            found.append(seconds[place] / at_nodes[place] * predicted)
        else:
            found.append(seconds[place] + share * (seconds[place + 1] - seconds[place]))
    low, middle, high = found
    return low, middle, high


def _place(nodes: Sequence[Node], payload_bytes: int) -> tuple[int, float | None]:
    """The node before a size, and the share of the way to the next; None: outside all of them."""
    if payload_bytes <= nodes[0].size_bytes:
        return 0, None
    if payload_bytes >= nodes[-1].size_bytes:
        return len(nodes) - 1, None
    place = 0
    while nodes[place + 1].size_bytes <= payload_bytes:
        place += 1
    left, right = nodes[place].size_bytes, nodes[place + 1].size_bytes
    return place, (payload_bytes - left) / (right - left)


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
