"""Benches in one run, each figure beside its rival: `build/bench.json` and a table.

`make bench` runs what needs no engine, `make bench-engine` what does; each keeps the other's rows.
Every row is {name, value, unit, beside, ratio, conditions}; ratios compare what ran side by side,
since absolute figures of shared machines do not carry over.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import (
    canary,
    gateway,
    gather,
    hook,
    intervals,
    inventory,
    load_model,
    planning,
    readiness,
    scrape,
    tap,
    whatif,
)
from tests.engine import bench_attached, bench_hook, bench_movers
from tests.engine.bench_observer import observer_step_seconds

OUTPUT = Path("build/bench.json")
ENGINE_PYTHON = Path("build/engine/bin/python").absolute()
MODEL = Path("build/models/kv-heavy").absolute()
MOVERS = "movers"
HOOK = "hook"
OBSERVER_WAITING = 128
OBSERVER_BUDGET_SECONDS = 100e-6

Row = dict[str, Any]


def rows_without_engine() -> Iterator[Row]:
    """Every figure that needs no engine, as it is measured."""
    for events_per_message in tap.EVENTS_PER_MESSAGE:
        yield from tap.tap_rows(events_per_message)
    yield observer_row()
    yield from hook.hook_rows()
    yield inventory.memory_row()
    yield inventory.prefix_row()
    yield from intervals.interval_rows()
    yield from load_model.load_model_rows()
    yield from readiness.readiness_rows()
    yield from scrape.scrape_rows()
    yield from planning.planning_rows()
    yield from whatif.whatif_rows()
    yield from canary.canary_rows()
    yield from gateway.gateway_rows()
    yield from gather.gather_rows()


def rows_with_engine(levels: list[str]) -> Iterator[Row]:
    """What watching and acting cost an engine, level by level, and what the gather saves it."""
    known = [*bench_attached.BUDGET_RATIO, MOVERS, HOOK]
    if unknown := set(levels) - set(known):
        raise SystemExit(f"no bench {', '.join(sorted(unknown))}; name some of {', '.join(known)}")
    for level in levels or known:
        if level == MOVERS:
            yield from bench_movers.mover_rows(ENGINE_PYTHON, MODEL)
        elif level == HOOK:
            yield from bench_hook.hook_rows(ENGINE_PYTHON, MODEL)
        else:
            yield from bench_attached.attached_rows(ENGINE_PYTHON, MODEL, level)


def observer_row() -> Row:
    """The observer's share of a scheduler step, beside its budget."""
    value = observer_step_seconds(OBSERVER_WAITING)
    return {
        "name": f"observer_step_seconds_{OBSERVER_WAITING}",
        "value": round(value, 7),
        "unit": "s",
        "beside": OBSERVER_BUDGET_SECONDS,
        "ratio": round(value / OBSERVER_BUDGET_SECONDS, 3),
        "conditions": {
            "waiting": OBSERVER_WAITING,
            "running": 16,
            "beside": "the budget of 100 us a step",
            "kind": "measured",
        },
    }


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def main() -> None:
    """Measure, print a line per figure, write them all."""
    with_engine = sys.argv[1:2] == ["engine"]
    measured = {}
    for row in rows_with_engine(sys.argv[2:]) if with_engine else rows_without_engine():
        print(
            f"{row['name']:<44} {row['value']:>14,} {row['unit']:<9} "
            f"beside {row['beside']:>14,}   ratio {row['ratio']}",
            flush=True,
        )
        measured[row["name"]] = row
    kept = json.loads(OUTPUT.read_text())["rows"] if OUTPUT.exists() else []
    rows = [row for row in kept if row["name"] not in measured] + list(measured.values())
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
