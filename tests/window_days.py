"""Days of windows: those of recordings and simulated runs, drawn again with serial correlation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, fmean

import msgspec

from kvready.advisor.canary import Draw, window_arm
from kvready.advisor.harm import HarmJudge
from kvready.advisor.playback import play
from kvready.advisor.policies import Policy, Scope
from kvready.advisor.whatif.outcome import RequestOutcome
from kvready.advisor.windows import Arm, WindowRequest, WindowSummary, summarized

RECORDINGS = tuple(sorted(Path("examples/recordings").glob("*.kvr")))
WINDOW_SECONDS = 120.0
WINDOWS_A_DAY = 720
CORRELATION = 0.7  # of the latent level from one window to the next
BLOCK_WINDOWS = 30  # an hour: then the level is drawn anew
TTFT_TARGET_SECONDS = 1.0  # where requests name none
FIGURES = (
    "mean_ttft_seconds",
    "follower_p99_seconds",
    "output_token_p50_seconds",
    "starved_p99_seconds",
)


@cache
def recorded_windows() -> tuple[WindowSummary, ...]:
    """Windows of the bundled recordings of a real engine that have requests enough."""
    found: list[WindowSummary] = []
    for path in RECORDINGS:
        pipeline = play(path).pipeline
        found += pipeline.canaries.windows((Policy.BALANCE, Scope()))
    return tuple(one for one in found if one.mean_ttft_seconds is not None)


def simulated_windows(
    requests: Sequence[RequestOutcome], window_seconds: float = WINDOW_SECONDS
) -> tuple[WindowSummary, ...]:
    """Windows of a simulated run. Who shares a prompt's start is not told: no followers."""
    rows: dict[int, list[WindowRequest]] = {}
    for one in requests:
        if not one.finished_seconds:
            continue
        decoded = one.finished_seconds - one.first_token_seconds
        tokens = one.output_tokens - 1
        rows.setdefault(int(one.arrived_seconds // window_seconds), []).append(
            WindowRequest(
                arrived_seconds=one.arrived_seconds,
                target_seconds=TTFT_TARGET_SECONDS,
                tenant=one.tenant,
                request_class=one.request_class,
                group=None,
                is_follower=one.held_seconds > 0.0,
                ttft_seconds=one.first_token_seconds - one.arrived_seconds,
                queue_seconds=max(
                    0.0, one.first_token_seconds - one.arrived_seconds - one.exposed_seconds
                ),
                output_token_seconds=decoded / tokens if tokens > 0 else None,
            )
        )
    windows = (
        summarized(
            rows[number],
            number * window_seconds,
            (number + 1) * window_seconds,
            (number + 2) * window_seconds,
            Arm.CONTROL,
            number // 2,
            True,
        )
        for number in sorted(rows)
    )
    return tuple(one for one in windows if one.mean_ttft_seconds is not None)


def resampled_day(
    pool: Sequence[WindowSummary], source: random.Random, windows: int = WINDOWS_A_DAY
) -> Iterator[WindowSummary]:
    """Whole windows of a pool, drawn by a level that wanders: neighbours are alike, hours are not.

    All figures of a window stay together.
    """
    ordered = sorted(pool, key=lambda one: one.mean_ttft_seconds or 0.0)
    spread = NormalDist()
    level = 0.0
    for number in range(windows):
        fresh = source.gauss(0.0, 1.0)
        if number % BLOCK_WINDOWS:
            level = CORRELATION * level + math.sqrt(1.0 - CORRELATION**2) * fresh
        else:
            level = fresh
        window = ordered[int(spread.cdf(level) * len(ordered))]
        begin = number * WINDOW_SECONDS
        yield msgspec.structs.replace(
            window,
            begin_seconds=begin,
            end_seconds=begin + WINDOW_SECONDS,
            pair=number // 2,
            is_clean=True,
        )


def with_harm(window: WindowSummary, harm: float) -> WindowSummary:
    """Every wait longer by a share; the share over target is left as it was."""
    longer = {
        name: value * (1.0 + harm)
        for name in FIGURES
        if (value := getattr(window, name)) is not None
    }
    tenants = {name: value * (1.0 + harm) for name, value in window.tenant_ttft_seconds.items()}
    return msgspec.structs.replace(window, **longer, tenant_ttft_seconds=tenants)


def judged_day(
    days: Iterator[WindowSummary], draw: Draw, harm: float = 0.0, stop: bool = False
) -> tuple[HarmJudge, int | None, bool]:
    """A day under a canary that does harm, or nothing: its judge, windows to the first roll-back,
    and whether it would have been promoted at some moment."""
    judge = HarmJudge(draw.policy)
    harmed_at = None
    promoted = is_closer = False
    for number, window in enumerate(days):
        if number % 2 == 0:
            is_closer = judge.suspects
        arm = window_arm(draw, number, is_closer)
        if arm is Arm.TREATED:
            window = with_harm(window, harm)
        if not judge.add(msgspec.structs.replace(window, arm=arm)):
            continue
        if harmed_at is None and judge.harmed:
            harmed_at = number + 1
            if stop:
                break
        promoted = promoted or judge.benefit_check().verdict == "pass"
    return judge, harmed_at, promoted


def lag_one(values: Sequence[float]) -> float:
    """The correlation of neighbours."""
    mean = fmean(values)
    centred = [value - mean for value in values]
    below = sum(value * value for value in centred)
    return sum(a * b for a, b in pairwise(centred)) / below
