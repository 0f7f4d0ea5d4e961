"""A wall clock that is slewed, stepped and read late still maps within the error it claims."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.collectors.clock import MAX_MAPS, STEP_SECONDS, ClockMap


def ticked(offset: float, begin: int, end: int, clock: ClockMap | None = None) -> ClockMap:
    """A clock read each second, wall = monotonic + offset."""
    clock = clock or ClockMap()
    for second in range(begin, end):
        clock.observe(float(second), second + offset)
    return clock


def test_nothing_is_known_before_the_first_pair() -> None:
    assert ClockMap().to_monotonic(1e9) is None
    assert ClockMap().error_seconds is None


@given(st.integers(0, 2**32), st.floats(0.0, STEP_SECONDS * 0.9))
def test_the_true_moment_lies_within_the_claimed_error(seed: int, worst_delay: float) -> None:
    """Readers are held up between their two readings, but the clock itself is steady."""
    draw = random.Random(seed)
    clock = ClockMap()
    for second in range(100):
        clock.observe(float(second), second + 5e8 + draw.uniform(0.0, worst_delay))
    for moment in (0.0, 42.5, 99.0, 104.0):
        mapped = clock.to_monotonic(5e8 + moment)
        assert mapped is not None
        assert abs(mapped.seconds - moment) <= worst_delay + 1e-6
        assert mapped.error_seconds <= worst_delay + 1e-6
    assert clock.steps == 0


def test_slewing_is_followed_without_a_step() -> None:
    clock = ClockMap()
    for second in range(3_600):
        clock.observe(float(second), 1e9 + second * (1 + 500e-6))
    mapped = clock.to_monotonic(1e9 + 3_599 * (1 + 500e-6))
    assert clock.steps == 0
    assert mapped is not None
    assert abs(mapped.seconds - 3_599) <= mapped.error_seconds


def test_one_pair_read_late_is_no_step() -> None:
    clock = ticked(1e9, 0, 10)
    clock.observe(10.0, 10.0 + 1e9 + 0.4)
    assert clock.to_monotonic(1e9 + 10.2) is None  # it may be a step: unknown until told
    ticked(1e9, 11, 20, clock)
    assert clock.steps == 0
    mapped = clock.to_monotonic(1e9 + 10.2)
    assert mapped is not None
    assert mapped.seconds == pytest.approx(10.2)


@pytest.mark.parametrize("step", [-3_600.0, 3_600.0])
def test_a_step_starts_a_new_map_and_the_old_one_still_serves_what_lay_before(step: float) -> None:
    clock = ticked(1e9, 0, 100)
    ticked(1e9 + step, 100, 200, clock)
    assert clock.steps == 1
    for wall, moment in ((1e9 + 50, 50.0), (1e9 + step + 150, 150.0)):
        mapped = clock.to_monotonic(wall)
        assert mapped is not None
        assert mapped.seconds == pytest.approx(moment)


def test_a_wall_time_that_occurred_twice_is_unknown() -> None:
    clock = ticked(1e9, 0, 100)
    ticked(1e9 - 30.0, 100, 200, clock)
    assert clock.to_monotonic(1e9 + 80.0) is None
    assert clock.to_monotonic(1e9 + 20.0) is not None
    assert clock.to_monotonic(1e9 + 150.0) is not None


def test_a_wall_time_that_never_occurred_is_unknown() -> None:
    clock = ticked(1e9, 0, 100)
    ticked(1e9 + 3_600.0, 100, 200, clock)
    assert clock.to_monotonic(1e9 + 2_000.0) is None
    assert clock.to_monotonic(1e9 - 7_200.0) is None


def test_a_clock_that_is_stepped_for_ever_stays_bounded() -> None:
    clock = ClockMap()
    for number in range(10 * MAX_MAPS):
        ticked(1e9 - 100.0 * number, number * 10, number * 10 + 10, clock)
    assert clock.steps == 10 * MAX_MAPS - 1
    assert len(clock._maps) == MAX_MAPS
