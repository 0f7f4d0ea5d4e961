"""`policy plan`: what a canary could tell, and when it is refused."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from kvready.advisor.commands.app import app
from kvready.advisor.policies import Policy
from kvready.advisor.power import MIN_PAIRS, PowerPlan, planned
from kvready.advisor.windows import Arm, WindowSummary

RECORDING = Path("examples/recordings/vllm-0.32-cpu-kv-heavy.kvr")


def traffic(scatter: float, windows: int = 60) -> list[WindowSummary]:
    source = random.Random(1)
    ttfts = [math.exp(source.gauss(0.0, scatter)) for _ in range(windows)]
    return [
        WindowSummary(
            begin_seconds=60.0 * number,
            end_seconds=60.0 * (number + 1),
            arm=Arm.CONTROL,
            pair=number // 2,
            requests=50,
            mean_ttft_seconds=ttft,
            starved_p99_seconds=ttft,
        )
        for number, ttft in enumerate(ttfts)
    ]


def harms_of(plan: PowerPlan) -> list[float]:
    return [math.inf if found.hours is None else found.hours for found in plan.measures[0].harms]


def test_greater_harm_and_quieter_traffic_are_told_sooner() -> None:
    quiet = planned(traffic(0.1), Policy.BALANCE, 50)
    noisy = planned(traffic(0.4), Policy.BALANCE, 50)
    assert harms_of(quiet) == sorted(harms_of(quiet), reverse=True)
    assert all(q <= n for q, n in zip(harms_of(quiet), harms_of(noisy), strict=True))
    assert quiet.measures[0].detectable is not None
    assert noisy.measures[0].detectable is not None
    assert quiet.measures[0].detectable <= noisy.measures[0].detectable


def test_a_smaller_share_takes_longer_and_the_smallest_cannot_conclude() -> None:
    windows = traffic(0.3)
    half, fifth, least = (planned(windows, Policy.BALANCE, p) for p in (50, 20, 1))
    assert harms_of(half)[1] < harms_of(fifth)[1]
    assert not half.refusals
    assert least.refusals


def test_too_little_traffic_is_refused_with_what_to_do() -> None:
    plan = planned(traffic(0.1, 2 * (MIN_PAIRS - 1)), Policy.BALANCE, 50)
    assert len(plan.refusals) == 1
    assert "watch for longer" in plan.refusals[0]
    assert planned([], Policy.DEDUP, 50).refusals


def test_a_policy_whose_own_measure_was_never_told_is_refused() -> None:
    plan = planned(traffic(0.1), Policy.DEDUP, 50)  # nobody ever followed a leader
    assert any("follower_p99" in why for why in plan.refusals)


def test_the_same_windows_give_the_same_plan() -> None:
    windows = traffic(0.2)
    assert planned(windows, Policy.BALANCE, 20) == planned(windows, Policy.BALANCE, 20)


def test_the_command_tells_and_refuses() -> None:
    told = CliRunner().invoke(
        app, ["policy", "plan", "balance", "--recording", str(RECORDING), "--json"]
    )
    plan = msgspec.json.decode(told.stdout, type=PowerPlan)
    assert told.exit_code == (1 if plan.refusals else 0)
    assert plan.policy is Policy.BALANCE
    # Two and a half minutes of traffic hold fewer pairs of windows than a plan needs.
    assert any("watch for longer" in why for why in plan.refusals)
