"""Drift alarms: rare while nothing changes, soon after something did."""

from __future__ import annotations

import math
import random

import pytest
from score_streams import stream

from kvready.advisor.drift import (
    ACTIVE_OUTCOMES,
    ALLOWED_MISSES,
    MATERIAL_SHIFT,
    RUN_LENGTH,
    DriftAlarm,
    DriftKind,
)
from kvready.advisor.intervals import Intervals

MATERIAL = 2.0 * MATERIAL_SHIFT


def outcomes_until(alarm: DriftAlarm, kind: DriftKind, rank: float, missed: bool) -> int:
    """How many such outcomes raise the alarm."""
    shift = MATERIAL if rank > 0.5 else -MATERIAL
    for n in range(1, 1_000):
        alarm.add(rank, missed, shift)
        if alarm.alarms[kind]:
            return n
    raise AssertionError(f"no alarm of {kind}")


def test_while_nothing_changes_alarms_are_as_rare_as_stated() -> None:
    rng = random.Random(1)
    runs = 10
    alarm = DriftAlarm()
    for _ in range(runs * int(RUN_LENGTH)):
        # Every shift counts as material in turn: the bets alone must hold the rate.
        shift = MATERIAL * rng.choice((-1.0, 1.0))
        alarm.add(rng.random(), rng.random() < ALLOWED_MISSES, shift)
    errors = alarm.alarms[DriftKind.SLOWER] + alarm.alarms[DriftKind.QUICKER]
    # At most one a run on average, each claim; three deviations of a Poisson count above that.
    assert errors <= runs + 3.0 * math.sqrt(runs)
    assert alarm.alarms[DriftKind.UNCOVERED] <= runs + 3.0 * math.sqrt(runs)


@pytest.mark.parametrize("law", ["stationary", "cells", "heavy tails", "skewed"])
def test_a_target_whose_errors_keep_their_law_raises_no_alarm(law: str) -> None:
    intervals = Intervals()
    for cell, error in stream(law, 21, 5_000):
        intervals.around(cell, 1.0).settle(math.exp(error))
    # 5,000 outcomes under three alarms of one in 20,000 each: fewer than one is expected.
    assert sum(intervals.drift.alarms.values()) <= 2


@pytest.mark.parametrize(
    ("kind", "rank", "missed"),
    [
        (DriftKind.SLOWER, 0.99, False),
        (DriftKind.QUICKER, 0.01, False),
        (DriftKind.UNCOVERED, 0.5, True),
    ],
)
def test_a_change_is_noticed_within_twenty_outcomes(
    kind: DriftKind, rank: float, missed: bool
) -> None:
    alarm = DriftAlarm()
    assert outcomes_until(alarm, kind, rank, missed) <= 20
    assert alarm.is_active(kind)
    for other in set(DriftKind) - {kind}:
        assert not alarm.alarms[other]


def test_an_immaterial_shift_raises_no_alarm_however_certain() -> None:
    alarm = DriftAlarm()
    for _ in range(100):
        alarm.add(0.99, False, MATERIAL_SHIFT / 2.0)
    assert not alarm.alarms[DriftKind.SLOWER]


def test_an_alarm_ends_when_outcomes_keep_to_their_ranks_again() -> None:
    alarm = DriftAlarm()
    outcomes_until(alarm, DriftKind.SLOWER, 0.99, False)
    rng = random.Random(2)
    for _ in range(ACTIVE_OUTCOMES):
        alarm.add(rng.random(), False, 0.0)
    assert not alarm.is_active(DriftKind.SLOWER)
    assert alarm.alarms[DriftKind.SLOWER] == 1


def test_twice_as_slow_a_machine_is_noticed() -> None:
    rng = random.Random(3)
    intervals = Intervals()
    for n in range(400):
        shift = math.log(2.0) if n >= 300 else 0.0
        intervals.around("only", 1.0).settle(math.exp(shift + rng.gauss(0.0, 0.2)))
        if n < 300:
            assert not intervals.drift.alarms[DriftKind.SLOWER]
    assert intervals.drift.is_active(DriftKind.SLOWER)


def test_outcomes_that_never_come_raise_the_alarm() -> None:
    intervals = Intervals()
    for _, error in stream("stationary", 4, 300):
        intervals.around("only", 1.0).settle(math.exp(error))
    for _ in range(20):
        interval = intervals.around("only", 1.0)
        interval.overdue(1.01 * interval.high_seconds)
    assert intervals.drift.is_active(DriftKind.UNCOVERED)
