"""Who is treated: exact shares, fair coins, prefix groups whole, never nobody left as control."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.canary import (
    CANARY_PERCENTS,
    CanaryArms,
    Draw,
    Shares,
    arm,
    draw_of,
    is_split,
    takes_part,
    window_arm,
)
from kvready.advisor.policies import Mode, Overlay, Policy, PolicyState
from kvready.advisor.windows import Arm

SWITCHED = (Policy.BALANCE, Policy.GPU_COPY)


@pytest.mark.parametrize("percent", [*CANARY_PERCENTS, 80, 95, 99])
@pytest.mark.parametrize("policy", SWITCHED)
def test_a_share_of_windows_is_exact_in_every_hundred_pairs(policy: Policy, percent: int) -> None:
    draw = Draw(policy, "seed", percent)
    for begin in (0, 600):
        arms = [window_arm(draw, begin + number) for number in range(200)]
        assert arms.count(Arm.TREATED) == 2 * percent


def test_a_split_pair_has_both_arms_and_a_fair_order() -> None:
    draw = Draw(Policy.BALANCE, "seed", 50)
    firsts = Counter(window_arm(draw, 2 * pair) for pair in range(2_000))
    for pair in range(200):
        assert {window_arm(draw, 2 * pair), window_arm(draw, 2 * pair + 1)} == set(Arm)
    # Four standard deviations of 2,000 fair coins.
    assert abs(firsts[Arm.TREATED] - 1_000) < 4.0 * math.sqrt(2_000 / 4)


@given(st.integers(0, 2**64 - 1), st.sampled_from(CANARY_PERCENTS), st.integers(0, 10_000))
def test_leader_and_followers_are_in_one_arm(group: int, percent: int, window: int) -> None:
    draw = Draw(Policy.DEDUP, "seed", percent)
    assert arm(draw, window, group) is arm(draw, window, group)
    if not takes_part(draw, group):
        assert arm(draw, window, group) is Arm.CONTROL
    assert arm(draw, window, None) is Arm.CONTROL  # nobody shares a block that is not full


@pytest.mark.parametrize("percent", [*CANARY_PERCENTS, 95])
def test_prefix_groups_are_split_by_the_share(percent: int) -> None:
    draw = Draw(Policy.DEDUP, "seed", percent)
    groups = 20_000
    treated = sum(takes_part(draw, group) for group in range(groups))
    share = percent / 100
    assert abs(treated / groups - share) < 4.0 * math.sqrt(share * (1.0 - share) / groups)


@given(
    st.sampled_from(Policy), st.sampled_from(Mode), st.sampled_from(Overlay), st.integers(0, 500)
)
def test_nothing_is_treated_unless_the_policy_acts(
    policy: Policy, mode: Mode, overlay: Overlay, window: int
) -> None:
    state = PolicyState(policy=policy, mode=mode, overlay=overlay)
    draw = draw_of(state, Shares(), "seed")
    if not mode.acts or overlay is not Overlay.NONE:
        assert arm(draw, window, 7) is Arm.CONTROL
        assert not is_split(draw, window)


@pytest.mark.parametrize("policy", Policy)
def test_a_control_remains_when_a_policy_is_enforced(policy: Policy) -> None:
    draw = draw_of(PolicyState(policy=policy, mode=Mode.ENFORCE), Shares(), "seed")
    arms = Counter(arm(draw, window, 7 * window) for window in range(2_000))
    assert arms[Arm.CONTROL] >= 0.04 * 2_000
    assert arms[Arm.TREATED] >= 0.8 * 2_000
    assert any(is_split(draw, pair) for pair in range(10))


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_pairs_are_split_while_those_before_looked_harmful(suspected: list[bool]) -> None:
    """As windows begin, and as flags are asked in them; suspicion that ends mid-pair waits."""
    state = PolicyState(policy=Policy.DEDUP, mode=Mode.ENFORCE)
    doubts = iter(suspected)
    arms = CanaryArms(lambda: [state], lambda key: next(doubts, False))
    draw = arms.draw(state)
    key = state.policy, state.scope
    for pair in range(len(suspected)):
        found = []
        for window in (2 * pair, 2 * pair + 1):
            found.append(arms.window_arm(key, window))
            assigned = arms.assigned(state, window)
            assert assigned is not None
            assert assigned.arm is found[-1]
        if is_split(draw, pair) or suspected[pair]:
            assert found == [window_arm(draw, 2 * pair, True), window_arm(draw, 2 * pair + 1, True)]
            assert set(found) == set(Arm)
        else:
            assert found == [Arm.TREATED, Arm.TREATED]


def test_what_does_not_act_is_not_looked_at_closer() -> None:
    state = PolicyState(policy=Policy.DEDUP, mode=Mode.ADVISE)
    arms = CanaryArms(lambda: [state], lambda key: True)
    found = {arms.window_arm((state.policy, state.scope), window) for window in range(40)}
    assert found == {Arm.CONTROL}


@pytest.mark.parametrize(("canary", "control"), [(0, 5), (10, 5), (50, 0), (50, 51)])
def test_a_share_without_a_control_is_refused(canary: int, control: int) -> None:
    with pytest.raises(ValueError, match="per cent"):
        Shares(canary, control)


def test_the_draw_stays_while_it_acts_as_before_and_is_new_once_it_moved() -> None:
    state = PolicyState(policy=Policy.BALANCE, mode=Mode.CANARY, since_seconds=10.0)
    noted = msgspec.structs.replace(state, revision=5, finding="native")
    moved = msgspec.structs.replace(state, since_seconds=20.0)
    before = draw_of(state, Shares(), "seed")
    assert draw_of(noted, Shares(), "seed") == before
    assert draw_of(moved, Shares(), "seed").seed != before.seed
    assert draw_of(state, Shares(), "other").seed != before.seed
