"""Harm and good told from pairs of windows, on days of a real engine's windows drawn again."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from window_days import judged_day, lag_one, recorded_windows, resampled_day

from kvready.advisor.canary import Draw
from kvready.advisor.harm import FALSE_ROLLBACK, WATCH_SECONDS, HarmJudge
from kvready.advisor.measures import Measure
from kvready.advisor.policies import Policy
from kvready.advisor.verdicts import Gate, Verdict
from kvready.advisor.windows import Arm, WindowSummary

DAYS = 20
COURSES = 20


def window(number: int, arm: Arm, ttft: float, **figures: object) -> WindowSummary:
    made = WindowSummary(
        begin_seconds=60.0 * number,
        end_seconds=60.0 * (number + 1),
        arm=arm,
        pair=number // 2,
        requests=50,
        mean_ttft_seconds=ttft,
        starved_p99_seconds=ttft,
    )
    return msgspec.structs.replace(made, **figures)


def judged(pairs: int, harm: float) -> HarmJudge:
    judge = HarmJudge(Policy.BALANCE)
    source = random.Random(1)
    for number in range(2 * pairs):
        arm = Arm.TREATED if number % 2 else Arm.CONTROL
        ttft = math.exp(source.gauss(0.0, 0.1)) * (1.0 + harm * (arm is Arm.TREATED))
        judge.add(window(number, arm, ttft))
    return judge


@pytest.mark.parametrize("policy", Policy)
def test_days_without_a_difference_neither_roll_back_nor_promote(policy: Policy) -> None:
    pool = recorded_windows()
    alarms = promotions = 0
    for day in range(DAYS):
        windows = list(resampled_day(pool, random.Random(f"{policy} {day}")))
        levels = [math.log(one.mean_ttft_seconds or 1.0) for one in windows]
        assert lag_one(levels) >= 0.5
        _, harmed_at, promoted = judged_day(iter(windows), Draw(policy, f"day {day}", 50))
        alarms += harmed_at is not None
        promotions += promoted
    # Twenty days tell only of gross faults; the bench judges a thousand against 1 %.
    assert alarms + promotions <= 1


def test_grave_harm_is_told_in_few_windows_and_slight_harm_in_more() -> None:
    pool = recorded_windows()
    told = []
    for harm in (0.5, 5.0):
        counts = []
        for day in range(COURSES):
            windows = resampled_day(pool, random.Random(day))
            _, at, _ = judged_day(windows, Draw(Policy.BALANCE, f"{day}", 50), harm, stop=True)
            counts.append(math.inf if at is None else at)
        told.append(sorted(counts)[COURSES // 2])
    assert told[1] < told[0] < math.inf
    # No fewer pairs than coins that must fall right by chance.
    assert told[1] / 2 >= math.log2(0.3 / FALSE_ROLLBACK)


def test_a_pair_that_looked_harmful_is_a_reason_to_look_closer_for_two_pairs() -> None:
    judge = HarmJudge(Policy.BALANCE)
    seen = []
    for pair, ttft in enumerate((1.0, 1.2, 1.6, 1.0, 1.0, 1.0)):
        judge.add(window(2 * pair, Arm.CONTROL, 1.0))
        judge.add(window(2 * pair + 1, Arm.TREATED, ttft))
        seen.append(judge.suspects)
    assert seen == [False, False, True, True, False, False]


def test_enforced_at_five_per_cent_control_a_closer_look_tells_harm_much_sooner() -> None:
    """Every wait twice as long. Nine pairs, one in ten of all, would be 180 windows alone."""
    pool = recorded_windows()
    told = []
    for day in range(COURSES):
        windows = resampled_day(pool, random.Random(f"closer {day}"))
        _, at, _ = judged_day(windows, Draw(Policy.BALANCE, f"{day}", 95), 1.0, stop=True)
        told.append(math.inf if at is None else at)
    assert sorted(told)[COURSES // 2] < 180


def test_harm_fails_harmlessness_passes_and_doubt_is_neither() -> None:
    def verdicts(judge: HarmJudge) -> set[Verdict]:
        assert all(check.gate is Gate.HARM for check in judge.harm_checks())
        return {check.verdict for check in judge.harm_checks()}

    assert verdicts(judged(60, 0.5)) == {Verdict.FAIL}
    assert verdicts(judged(300, 0.0)) == {Verdict.PASS}
    assert verdicts(judged(3, 0.5)) == {Verdict.INCONCLUSIVE}
    assert verdicts(HarmJudge(Policy.BALANCE)) == {Verdict.INCONCLUSIVE}  # nothing seen
    assert judged(60, 0.5).harmed == [Measure.MEAN_TTFT, Measure.STARVED]


def test_good_is_proved_by_treated_windows_that_are_better() -> None:
    assert judged(60, -0.3).benefit_check().verdict is Verdict.PASS
    assert judged(60, 0.0).benefit_check().verdict is Verdict.INCONCLUSIVE
    assert judged(60, 0.3).benefit_check().verdict is Verdict.INCONCLUSIVE


def test_bounds_are_told_as_a_ratio_around_the_effect() -> None:
    found = judged(200, 0.25).bounds(Measure.MEAN_TTFT)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    # The grace of 25 ms on both sides makes 1 s and 1.25 s a ratio of 1.244.
    assert 1.0 < found.low < 1.275 / 1.025 < found.high


def test_only_whole_clean_pairs_with_both_arms_count() -> None:
    judge = HarmJudge(Policy.BALANCE)
    assert not judge.add(window(0, Arm.CONTROL, 1.0))
    assert not judge.add(window(1, Arm.CONTROL, 1.0))
    assert not judge.add(window(2, Arm.CONTROL, 1.0))
    assert not judge.add(window(3, Arm.TREATED, 1.0, is_clean=False))
    assert not judge.add(window(5, Arm.TREATED, 1.0))  # its neighbour is missing
    assert not judge.add(window(6, Arm.TREATED, 1.0))
    assert judge.add(window(7, Arm.CONTROL, 1.0))
    assert judge.pairs == 1
    assert judge.left_out == {"one arm": 1, "unclean": 1}


def test_a_new_day_is_watched_anew_and_harmlessness_is_kept() -> None:
    judge = judged(300, 0.0)
    later = 300 * 60.0 * 2 + WATCH_SECONDS
    for number in range(4):
        arm = Arm.TREATED if number % 2 else Arm.CONTROL
        one = window(number, arm, 1.0)
        judge.add(msgspec.structs.replace(one, begin_seconds=one.begin_seconds + later))
    assert "2 pairs today" in judge.harm_checks()[0].note
    assert judge.harm_checks()[0].verdict is Verdict.PASS


def test_each_tenant_is_watched() -> None:
    judge = HarmJudge(Policy.DEDUP)
    for number in range(120):
        arm = Arm.TREATED if number % 2 else Arm.CONTROL
        harmed = 3.0 if arm is Arm.TREATED else 1.0
        tenants = {"a": 1.0, "b": harmed}
        judge.add(window(number, arm, 1.0, tenant_ttft_seconds=tenants))
    check = next(c for c in judge.harm_checks() if c.name.startswith("canary_tenant"))
    assert check.verdict is Verdict.FAIL
    assert check.note.startswith("b:")
    assert judge.harmed == [Measure.TENANT]
