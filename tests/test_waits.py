"""The wait split: exclusive states that sum to the whole, by the precedence of the definitions."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvready.advisor.waits import Interval, Timeline, WaitState, split_wait


def test_a_host_hit_that_loads_then_waits_then_computes() -> None:
    # arrived 0, copy ordered at 1 and usable at 3, dispatched at 4, first token at 6
    timeline = Timeline(0.0, 0.0, 6.0, loads=[Interval(1, 3)], computing=[Interval(4, 6)])
    assert split_wait(timeline) == {
        WaitState.QUEUE: 1.0,
        WaitState.LOAD: 2.0,
        WaitState.READY: 1.0,
        WaitState.PREFILL: 2.0,
    }


def test_a_miss_waits_in_the_queue_and_then_computes() -> None:
    timeline = Timeline(0.0, 0.5, 6.0, computing=[Interval(4, 6)])
    assert split_wait(timeline) == {
        WaitState.FRONTEND: 0.5,
        WaitState.QUEUE: 3.5,
        WaitState.PREFILL: 2.0,
    }


def test_preemption_sends_a_request_back_to_the_queue_not_to_ready() -> None:
    timeline = Timeline(
        0.0, 0.0, 9.0, loads=[Interval(0, 1)], computing=[Interval(1, 3), Interval(7, 9)]
    )
    assert split_wait(timeline) == {
        WaitState.LOAD: 1.0,
        WaitState.PREFILL: 4.0,
        WaitState.QUEUE: 4.0,
    }


def test_computing_takes_precedence_over_a_copy_under_way() -> None:
    # layer-wise engines compute while they load
    timeline = Timeline(0.0, 0.0, 4.0, loads=[Interval(0, 3)], computing=[Interval(1, 4)])
    assert split_wait(timeline) == {WaitState.LOAD: 1.0, WaitState.PREFILL: 3.0}


def test_a_copy_ordered_later_does_not_change_what_came_before_it() -> None:
    timeline = Timeline(0.0, 0.0, 8.0, loads=[Interval(0, 1), Interval(7, 8)])
    assert split_wait(timeline) == {WaitState.LOAD: 2.0, WaitState.READY: 6.0}


instants = st.integers(min_value=0, max_value=1_000).map(lambda tenths: tenths / 10)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    def spans() -> list[Interval]:
        pairs = draw(st.lists(st.tuples(instants, instants), max_size=3))
        return [Interval(min(pair), max(pair)) for pair in pairs]

    arrived, known, end = sorted(draw(st.tuples(instants, instants, instants)))
    return Timeline(arrived, known, end, spans(), spans(), spans())


@given(timelines())
def test_the_states_always_sum_to_the_whole_wait(timeline: Timeline) -> None:
    split = split_wait(timeline)
    whole = timeline.end_seconds - timeline.arrived_seconds
    assert sum(split.values()) == pytest.approx(whole, abs=1e-9)
    assert all(seconds >= 0.0 for seconds in split.values())


@given(timelines(), st.integers(min_value=1, max_value=400))
def test_the_split_agrees_with_asking_at_many_instants(timeline: Timeline, samples: int) -> None:
    """An oracle by sampling: the definition applied at single moments."""
    whole = timeline.end_seconds - timeline.arrived_seconds
    assume(whole > 0.0)  # a wait without length has no moment to ask about
    split = split_wait(timeline)
    for n in range(samples):
        at = timeline.arrived_seconds + whole * (n + 0.5) / samples
        if at < timeline.known_to_scheduler_seconds:
            expected = WaitState.FRONTEND
        elif any(s.begin_seconds <= at < s.end_seconds for s in timeline.computing):
            expected = WaitState.PREFILL
        elif any(s.begin_seconds <= at < s.end_seconds for s in timeline.loads):
            expected = WaitState.LOAD
        else:
            continue
        assert split.get(expected, 0.0) > 0.0
