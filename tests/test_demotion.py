"""Burns of bad predictions, against sums made by hand, and persistently bad shapes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies
from scipy.stats import binom, false_discovery_control

from kvready.advisor.bad_cells import (
    BAD_WINDOWS,
    LAST_WINDOWS,
    MAX_BAD,
    MIN_PAIRS,
    WINDOW_SECONDS,
    BadCells,
)
from kvready.advisor.binomial import false_discoveries_bounded, share_bounds, tail_probability
from kvready.advisor.demotion import (
    LEAST_OBJECTIVE,
    OBJECTIVE,
    PAIRS,
    Burn,
    burn_checks,
    burns,
    objective,
)
from kvready.advisor.ledger import Forecast, Pair, PairState, Target
from kvready.advisor.minute_sums import MinuteSums, ShadowDays, WindowSum
from kvready.advisor.verdicts import Verdict

DAY = 86_400.0


@given(
    seed=strategies.integers(0, 999),
    minutes=strategies.integers(1, 90),
    gap=strategies.sampled_from([0, 3, 200]),
)
def test_a_window_is_the_sum_of_its_minutes(seed: int, minutes: int, gap: int) -> None:
    draw = random.Random(seed)
    sums, kept = MinuteSums(kept_minutes=100), []
    now = 1_000.0
    stalled = set()
    for _ in range(60):
        now += draw.choice([1.0, 20.0, 61.0, 60.0 * gap])
        bad = draw.random() < 0.3
        sums.add(now, bad)
        kept.append((int(now // 60), bad))
        if draw.random() < 0.05:
            sums.stalled(now)
            stalled.add(int(now // 60))
    first = int(now // 60) - min(minutes, 100)
    inside = [(minute, bad) for minute, bad in kept if minute > first and minute not in stalled]
    expected = (len(inside), sum(bad for _, bad in inside), len({minute for minute, _ in inside}))
    assert sums.window(minutes, now) == expected


def test_time_that_goes_back_counts_as_now() -> None:
    sums = MinuteSums()
    sums.add(6_000.0, True)
    sums.add(60.0, True)
    assert sums.window(1, 0.0) == WindowSum(2, 2, 1)


def fed(share_bad: float, minutes: int, per_minute: int = 10) -> MinuteSums:
    """Bad ones spread evenly."""
    sums = MinuteSums()
    debt = 0.0
    for minute in range(minutes):
        for n in range(per_minute):
            debt += share_bad
            is_bad = debt >= 1.0 - 1e-9
            debt -= is_bad
            sums.add(60.0 * minute + n, is_bad)
    return sums


def burn_of(sums: MinuteSums, minutes: int, name: str, aim: float = OBJECTIVE) -> Burn:
    found = burns({Target.TTFT: sums}, {}, aim, 60.0 * minutes - 1.0)
    return next(one for one in found if one.pair.name == name)


def test_a_burn_is_the_bad_share_over_the_budget() -> None:
    assert burn_of(fed(0.05, 60), 60, "1h_5m").burn == pytest.approx(1.0)
    assert burn_of(fed(0.30, 60), 60, "1h_5m").burn == pytest.approx(6.0)


def test_both_windows_must_burn() -> None:
    over = fed(0.5, 50)
    for minute in range(50, 60):  # good again
        for n in range(10):
            over.add(60.0 * minute + n, False)
    burn = burn_of(over, 60, "1h_5m")
    assert burn.long.share / (1.0 - OBJECTIVE) > burn.limit
    assert not burn.is_burning


@pytest.mark.parametrize(("minutes", "per_minute"), [(4, 100), (30, 1)])
def test_too_few_outcomes_or_minutes_say_nothing(minutes: int, per_minute: int) -> None:
    assert burn_of(fed(1.0, minutes, per_minute), minutes, "1h_5m").burn is None


def test_stalled_minutes_take_nothing_back() -> None:
    sums = MinuteSums()
    for minute in range(60):
        for n in range(10):
            sums.add(60.0 * minute + n, True)
        sums.stalled(60.0 * minute + 30.0)
    assert burn_of(sums, 60, "1h_5m").burn is None


def test_overdue_forecasts_count_before_their_outcome_is_known() -> None:
    sums = fed(0.0, 60)
    now = 60.0 * 60 - 1.0
    quiet, told = (burns({Target.TTFT: sums}, {Target.TTFT: n}, 0.95, now)[0] for n in (0, 500))
    assert not quiet.is_burning
    assert told.is_burning


def test_where_the_budget_is_large_nearly_all_bad_is_enough() -> None:
    """A burn of 6 does not exist at an objective of 80 %: all bad is a burn of 5."""
    assert burn_of(fed(1.0, 60), 60, "1h_5m", LEAST_OBJECTIVE).is_burning
    assert not burn_of(fed(0.8, 60), 60, "1h_5m", LEAST_OBJECTIVE).is_burning


@given(strategies.floats(0.0, 1.0), strategies.floats(0.0, 1.0))
def test_more_bad_predictions_never_look_better(one: float, other: float) -> None:
    less, more = sorted((one, other))
    order = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]
    verdicts = []
    for share in (less, more):
        found = burns({Target.TTFT: fed(share, 15)}, {}, OBJECTIVE, 60.0 * 15 - 1.0)
        verdicts.append([order.index(c.verdict) for c in burn_checks(found, (Target.TTFT,))])
    assert all(a <= b for a, b in zip(*verdicts, strict=True))


def test_tickets_take_nothing_back() -> None:
    found = burns({Target.TTFT: fed(0.10, 500)}, {}, OBJECTIVE, 60.0 * 500 - 1.0)
    assert next(one for one in found if one.pair.name == "3d_6h").is_burning
    checks = burn_checks(found, (Target.TTFT,))
    assert len(checks) == sum(pair.takes_back for pair in PAIRS)
    assert {check.verdict for check in checks} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("bad", "aim"), [(0.0, 0.95), (0.05, 0.93), (0.10, 0.88), (0.30, LEAST_OBJECTIVE)]
)
def test_the_objective_is_what_shadow_days_showed_where_that_is_less(
    bad: float, aim: float
) -> None:
    days = ShadowDays()
    for hour in range(7 * 24):
        for n in range(100):
            days.add(3_600.0 * hour + n, n < 100 * bad)
    assert objective(days.sums) == pytest.approx(aim)


def test_a_day_of_shadow_is_too_short_to_lower_the_objective() -> None:
    days = ShadowDays()
    for hour in range(23):
        for n in range(100):
            days.add(3_600.0 * hour + n, True)
    assert objective(days.sums) == OBJECTIVE


def test_only_the_last_seven_shadow_days_count() -> None:
    days = ShadowDays()
    for hour in range(14 * 24):
        for n in range(10):
            days.add(3_600.0 * hour + n, hour < 7 * 24)
    assert objective(days.sums) == OBJECTIVE


@given(strategies.integers(0, 300), strategies.data(), strategies.floats(0.001, 0.999))
def test_tails_are_those_of_the_binomial_distribution(trials: int, data, share: float) -> None:
    hits = data.draw(strategies.integers(0, trials))
    assert tail_probability(hits, trials, share) == pytest.approx(
        binom.sf(hits - 1, trials, share), rel=1e-6, abs=1e-12
    )


@given(strategies.integers(1, 400), strategies.data())
def test_bounds_hold_the_share_and_tighten_with_it(trials: int, data) -> None:
    hits = data.draw(strategies.integers(0, trials))
    low, high = share_bounds(hits, trials, 0.005)
    assert low <= hits / trials <= high
    wide = share_bounds(hits, trials, 0.0005)
    assert wide[0] <= low
    assert high <= wide[1]


@given(strategies.lists(strategies.floats(1e-9, 1.0), min_size=1, max_size=40))
def test_discoveries_are_those_of_benjamini_and_hochberg(p_values: list[float]) -> None:
    adjusted = false_discovery_control(p_values)
    expected = [bool(value <= 0.05) for value in adjusted]
    near = any(abs(value - 0.05) < 1e-9 for value in adjusted)
    assert near or false_discoveries_bounded(p_values, 0.05) == expected


CELL = (Target.LOAD, "host")


def pair(bad: bool, now: float) -> Pair:
    forecast = Forecast(1, Target.LOAD, "7", 1, now, now, 1.0, 0.5, 2.0, "host", "m")
    return Pair(forecast, PairState.PAIRED, 5.0 if bad else 1.0, 2)


def windows(cells: BadCells, *bad: bool, share: float = 0.5, begin: float = 0.0) -> float:
    now = begin
    for is_bad in bad:
        for n in range(2 * MIN_PAIRS):
            now += WINDOW_SECONDS / (2 * MIN_PAIRS)
            cells.take(pair(is_bad and n < share * 2 * MIN_PAIRS, now), CELL, now)
    cells.tick(now + WINDOW_SECONDS)
    return now + WINDOW_SECONDS


@given(strategies.lists(strategies.booleans(), max_size=8))
def test_a_shape_is_listed_while_three_of_its_last_four_windows_are_bad(bad: list[bool]) -> None:
    cells = BadCells()
    now = 0.0
    for n, is_bad in enumerate(bad):
        now = windows(cells, is_bad, begin=now)
        assert (CELL in cells.cells) is (sum(bad[: n + 1][-LAST_WINDOWS:]) >= BAD_WINDOWS)


def test_a_bad_shape_comes_with_examples() -> None:
    cells = BadCells()
    windows(cells, True, True, True)
    listed = cells.listed
    assert [one.name for one in listed] == ["load: host"]
    example = listed[0].examples[-1]
    assert (example.predicted_seconds, example.actual_seconds) == (1.0, 5.0)


def test_windows_with_few_outcomes_neither_list_nor_free_a_shape() -> None:
    cells = BadCells()
    now = windows(cells, True, True, True)
    for _ in range(LAST_WINDOWS + 1):
        for n in range(MIN_PAIRS - 1):
            cells.take(pair(False, now + n), CELL, now + n)
        now += WINDOW_SECONDS
        cells.tick(now)
    assert CELL in cells.cells


def test_outcomes_that_are_told_at_one_moment_do_not_list_a_shape() -> None:
    """One late leader a window, and all who waited for it."""
    cells = BadCells()
    now = 0.0
    for _ in range(LAST_WINDOWS):
        for n in range(2 * MIN_PAIRS):
            cells.take(pair(False, now + n), CELL, now + n)
        late = now + 2 * MIN_PAIRS
        for _ in range(MIN_PAIRS):
            cells.take(pair(True, late), CELL, late)
        now += WINDOW_SECONDS
        cells.tick(now)
    assert CELL not in cells.cells


def test_shapes_that_keep_the_limit_are_hardly_ever_listed() -> None:
    """160 windows of forty cells at the limit itself."""
    draw = random.Random(5)
    listed = 0
    for _ in range(4):
        cells = BadCells()
        now = 0.0
        for _ in range(40):
            for name in range(40):
                cell = (Target.LOAD, str(name))
                for n in range(30):
                    cells.take(pair(draw.random() < MAX_BAD, now + n), cell, now + n)
            now += WINDOW_SECONDS
            cells.tick(now)
            listed += len(cells.cells)
    assert listed == 0


def test_a_window_without_outcomes_is_no_window() -> None:
    cells = BadCells()
    cells.tick(0.0)
    cells.tick(math.nextafter(WINDOW_SECONDS, math.inf))
    assert cells.listed == []
