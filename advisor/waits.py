"""Where a request's wait went: each instant from arrival to first token has exactly one state."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class WaitState(StrEnum):
    """What a waiting request was waiting for, in the order in which the states take precedence."""

    FRONTEND = "frontend"  # before the scheduler knew the request
    LOAD = "load"  # a copy into HBM that it needs is unfinished, and it is not computing
    FETCH = "fetch"  # the same, into host memory
    PREFILL = "prefill"  # from its first batch until preempted
    READY = "ready"  # it had a copy, all is usable, and nothing ran it
    QUEUE = "queue"  # the rest, holds and preemption included
    DELIVER = "deliver"  # after the first token, on its way out


class Interval(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A span of event time, in seconds on the host's monotonic clock."""

    begin_seconds: float
    end_seconds: float

    def holds(self, instant_seconds: float) -> bool:
        """Whether the instant lies inside; the end is outside."""
        return self.begin_seconds <= instant_seconds < self.end_seconds


class Timeline(msgspec.Struct, frozen=True):
    """What is known of one request up to its first token (or its end)."""

    arrived_seconds: float
    known_to_scheduler_seconds: float
    end_seconds: float
    loads: Sequence[Interval] = ()
    fetches: Sequence[Interval] = ()
    computing: Sequence[Interval] = ()


def split_wait(timeline: Timeline) -> dict[WaitState, float]:
    """Seconds in each state between arrival and `end_seconds` (design section 8).

    The states are exclusive and their sum is the whole wait. Linear in the few intervals that a
    request has.
    """
    cuts = {timeline.arrived_seconds, timeline.known_to_scheduler_seconds, timeline.end_seconds}
    for spans in (timeline.loads, timeline.fetches, timeline.computing):
        for span in spans:
            cuts.update((span.begin_seconds, span.end_seconds))
    inside = sorted(c for c in cuts if timeline.arrived_seconds <= c <= timeline.end_seconds)
    seconds: dict[WaitState, float] = {}
    for begin, end in itertools.pairwise(inside):
        state = _state_at(timeline, begin)
        seconds[state] = seconds.get(state, 0.0) + (end - begin)
    return seconds


def _state_at(timeline: Timeline, instant_seconds: float) -> WaitState:
    if instant_seconds < timeline.known_to_scheduler_seconds:
        return WaitState.FRONTEND
    if any(span.holds(instant_seconds) for span in timeline.computing):
        return WaitState.PREFILL
    if any(span.holds(instant_seconds) for span in timeline.loads):
        return WaitState.LOAD
    if any(span.holds(instant_seconds) for span in timeline.fetches):
        return WaitState.FETCH
    # None of the copies begun so far is unfinished: their ends would hold the instant above.
    had_copy = any(
        span.begin_seconds <= instant_seconds for span in (*timeline.loads, *timeline.fetches)
    )
    was_dispatched = any(span.begin_seconds <= instant_seconds for span in timeline.computing)
    return WaitState.READY if had_copy and not was_dispatched else WaitState.QUEUE
