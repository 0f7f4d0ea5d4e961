"""A/A days and a power table of the canary's tests: `python -m tests.bench.canary`.

Windows of two minutes, drawn from the bundled recordings (real) and from a simulated run, in blocks
of an hour with lag-1 correlation. An A/A day has both arms drawn and no difference between them.
The rows give the share of policy-days that end in a false roll-back or promotion, beside 1 %, and
the windows until harm of 10, 25 and 50 % is rolled back in 90 % of courses, beside the fewest that
can prove anything.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from kvready.advisor.canary import Draw
from kvready.advisor.harm import FALSE_PROMOTION, FALSE_ROLLBACK
from kvready.advisor.measures import LIMITS
from kvready.advisor.policies import Policy
from kvready.advisor.power import HARMS, POWER
from kvready.advisor.whatif.recipes import at_rate
from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.traces import read_workload
from kvready.advisor.windows import WindowSummary
from tests.bench.whatif import SCENARIO
from tests.window_days import (
    WINDOW_SECONDS,
    WINDOWS_A_DAY,
    judged_day,
    lag_one,
    recorded_windows,
    resampled_day,
    simulated_windows,
)

TRACE = Path("examples/traces/azure-2023-conv-first-2000.csv.gz")
REQUESTS_PER_SECOND = 0.5
DAYS = 1_000
POWER_DAYS = 200
CANARY_PERCENT = 50
LONGEST_DAYS = 3

Row = dict[str, Any]
Pool = Sequence[WindowSummary]


def canary_rows(days: int = DAYS) -> Iterator[Row]:
    """Every figure, for each pool."""
    for kind, pool in (("measured", recorded_windows()), ("simulated", simulated_pool())):
        yield from false_alarm_rows(kind, pool, days)
        yield from power_rows(kind, pool)


@cache
def simulated_pool() -> Pool:
    """A public trace, its arrivals stretched, on a simulated engine."""
    workload = at_rate(read_workload(TRACE), REQUESTS_PER_SECOND)
    return simulated_windows(simulate(workload, SCENARIO).requests)


def false_alarm_rows(kind: str, pool: Pool, days: int) -> Iterator[Row]:
    """A/A: what ends in a roll-back, and in a promotion, although nothing differs."""
    for policy in Policy:
        rolled_back = promoted = 0
        lags = []
        for day in range(days):
            windows = list(resampled_day(pool, random.Random(f"{kind} {policy} {day}")))
            lags.append(lag_one([math.log(one.mean_ttft_seconds or 1.0) for one in windows]))
            draw = Draw(policy, f"day {day}", CANARY_PERCENT)
            _, harmed_at, is_promoted = judged_day(iter(windows), draw)
            rolled_back += harmed_at is not None
            promoted += is_promoted
        conditions = {
            "kind": kind,
            "days": days,
            "windows": len(pool),
            "window_seconds": WINDOW_SECONDS,
            "lag_1": round(mean(lags), 3),
            "beside": "the budget of 1 % of policy-days",
        }
        for name, count, budget in (
            ("rollbacks", rolled_back, FALSE_ROLLBACK),
            ("promotions", promoted, FALSE_PROMOTION),
        ):
            yield _row(f"false_{name}_{policy}_{kind}", count / days, "days", budget, conditions)


def power_rows(kind: str, pool: Pool) -> Iterator[Row]:
    """Windows until harm is rolled back, in 90 % of courses."""
    never = LONGEST_DAYS * WINDOWS_A_DAY + 1  # beyond what a canary may last
    for policy in Policy:
        alpha = FALSE_ROLLBACK * max(limit.weight for limit in LIMITS[policy].values())
        fewest = 2 * math.ceil(math.log2(1.0 / alpha))
        for harm in HARMS:
            told = []
            for day in range(POWER_DAYS):
                source = random.Random(f"power {kind} {policy} {day}")
                windows = resampled_day(pool, source, LONGEST_DAYS * WINDOWS_A_DAY)
                draw = Draw(policy, f"power {day}", CANARY_PERCENT)
                _, harmed_at, _ = judged_day(windows, draw, harm, stop=True)
                told.append(never if harmed_at is None else harmed_at)
            told.sort()
            value = told[math.ceil(POWER * POWER_DAYS) - 1]
            conditions = {
                "kind": kind,
                "courses": POWER_DAYS,
                "median": told[POWER_DAYS // 2],
                "found": sum(one < never for one in told) / POWER_DAYS,
                "window_seconds": WINDOW_SECONDS,
                "beside": "the fewest windows that can prove anything",
            }
            yield _row(
                f"windows_to_rollback_{policy}_{harm:.0%}_{kind}",
                value,
                "windows",
                fewest,
                conditions,
            )


def _row(name: str, value: float, unit: str, beside: float, conditions: dict[str, Any]) -> Row:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "beside": beside,
        "ratio": round(value / beside, 3),
        "conditions": conditions,
    }


if __name__ == "__main__":
    for row in canary_rows():
        print(json.dumps(row), flush=True)
