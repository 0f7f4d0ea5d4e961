"""How often intervals hold, how wide they are, what they cost: `python -m tests.bench.intervals`.

Quiet: the loads of the bundled recording, which no constant was chosen on. Shifted: simulated
errors whose level and scatter double halfway, scored over outcomes 301 to 1,300 from there, as the
objective says. Interval scores sum the pinball losses of both bounds (times two over the miss
rate), beside one rolling range for all shapes and beside a constant width that knows the future.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from kvready.advisor.intervals import Interval, Intervals
from kvready.advisor.ledger import NOMINAL_COVERAGE, Pair, PairState, Target
from kvready.advisor.playback import play
from tests.score_streams import (
    LAWS,
    ConstantWidth,
    OneRollingRange,
    Scored,
    asking,
    judge,
    stream,
)

RECORDING = Path("examples/recordings/vllm-0.32-cpu-kv-heavy.kvr")
SEEDS = range(101, 106)
STREAM_OUTCOMES = 3_000
SHIFT_SETTLED, SHIFT_SCORED = 300, 1_000
CALLS = 20_000
CALL_BUDGET_SECONDS = 20e-6

Row = dict[str, Any]


def interval_rows() -> Iterator[Row]:
    """Every figure about intervals."""
    yield from _recorded_rows()
    yield from _shifted_rows()
    yield from _score_rows()
    yield from _cost_rows()


def _recorded_rows() -> Iterator[Row]:
    paired: list[Pair] = []
    play(RECORDING, lambda pair, _line: paired.append(pair))
    loads = [
        pair
        for pair in paired
        if pair.forecast.target is Target.LOAD and pair.state is PairState.PAIRED
    ]
    conditions = {"kind": "measured", "recording": RECORDING.stem, "loads": len(loads)}
    yield from _coverage_rows(
        "load_interval_coverage_quiet",
        mean(bool(pair.covered) for pair in loads),
        median(pair.forecast.high_seconds / pair.forecast.low_seconds for pair in loads),
        conditions,
    )


def _shifted_rows() -> Iterator[Row]:
    shift = STREAM_OUTCOMES // 2
    scored = [
        judge(
            stream("load shift", seed, STREAM_OUTCOMES),
            asking(Intervals()),
            shift + SHIFT_SETTLED,
            shift + SHIFT_SETTLED + SHIFT_SCORED,
        )
        for seed in SEEDS
    ]
    conditions = {"kind": "simulated", "law": "load shift", "outcomes": SHIFT_SCORED * len(SEEDS)}
    yield from _coverage_rows(
        "load_interval_coverage_shifted",
        mean(one.coverage for one in scored),
        median(one.width for one in scored),
        conditions,
    )


def _coverage_rows(
    name: str, coverage: float, width: float, conditions: dict[str, Any]
) -> Iterator[Row]:
    beside = conditions | {"beside": "the nominal coverage"}
    yield _row(name, coverage, "ratio", NOMINAL_COVERAGE, beside)
    yield _row(f"{name}_width", width, "hi/lo", 1.0, conditions | {"beside": "no width"})


def _score_rows() -> Iterator[Row]:
    for law in LAWS:
        ours, one_range, constant = [], [], []
        for seed in SEEDS:
            outcomes = stream(law, seed, STREAM_OUTCOMES)
            ours.append(judge(outcomes, asking(Intervals())))
            one_range.append(judge(outcomes, OneRollingRange().ask))
            constant.append(judge(outcomes, ConstantWidth(outcomes).ask))
        for rival, scored in (("one_range", one_range), ("constant_width", constant)):
            yield _row(
                f"interval_score_{law.replace(' ', '_')}_beside_{rival}",
                _mean_score(ours),
                "log",
                _mean_score(scored),
                {
                    "kind": "simulated",
                    "coverage": round(mean(one.coverage for one in ours), 4),
                    "width": round(median(one.width for one in ours), 3),
                    "rival_coverage": round(mean(one.coverage for one in scored), 4),
                    "rival_width": round(median(one.width for one in scored), 3),
                },
            )


def _mean_score(scored: list[Scored]) -> float:
    return mean(one.score for one in scored)


def _cost_rows() -> Iterator[Row]:
    """Full windows of six cells, as they are after an hour."""
    rng = random.Random(1)
    intervals = Intervals()
    for cell, error in stream("cells", 1, CALLS):
        intervals.around(cell, 1.0).settle(math.exp(error))
    made: list[Interval] = []
    asked = _per_call(lambda: made.append(intervals.around(str(rng.randrange(6)), 1.0)))
    waiting = iter(made)
    learned = _per_call(lambda: next(waiting).settle(rng.lognormvariate(0.0, 0.3)))
    for name, seconds in (("around", asked), ("learn", learned)):
        conditions = {"kind": "measured", "beside": "a budget of 20 us of CPU a call"}
        yield _row(f"interval_{name}_seconds", seconds, "s", CALL_BUDGET_SECONDS, conditions)


def _per_call(call: Callable[[], None]) -> float:
    begun = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - begun) / CALLS


def _row(name: str, value: float, unit: str, beside: float, conditions: dict[str, Any]) -> Row:
    return {
        "name": name,
        "value": round(value, 8),
        "unit": unit,
        "beside": round(beside, 8),
        "ratio": round(value / beside, 3),
        "conditions": conditions,
    }


if __name__ == "__main__":
    for row in interval_rows():
        print(json.dumps(row))
