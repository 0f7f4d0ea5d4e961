"""How much of a copy's time copies of other directions share its link."""

from __future__ import annotations

from collections.abc import Iterable

from kvready.collectors.records import Tier

Direction = tuple[Tier, Tier]  # source, destination
Span = tuple[float, float]  # begin and end, on one clock


def shares_link(one: Direction, other: Direction) -> bool:
    """Whether two directions meet in a tier, and so may take bandwidth from each other.

    Copies of one direction do not: they wait for each other in the mover's queue.
    """
    return one != other and bool(set(one) & set(other))


def shared_ratio(window: Span, others: Iterable[Span]) -> float:
    """The share of `window` in which at least one of `others` is under way, 0 to 1."""
    begin, end = window
    if end <= begin:
        return 0.0
    covered = 0.0
    reached = begin
    for other_begin, other_end in sorted(others):
        if other_end <= reached:
            continue
        if other_begin >= end:
            break
        covered += min(other_end, end) - max(other_begin, reached)
        reached = min(other_end, end)
    return covered / (end - begin)
