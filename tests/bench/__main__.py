"""All benches in one run, each figure beside its rival: `build/bench.json` and a table.

Run as `make bench`. Every row is {name, value, unit, beside, ratio, conditions}; ratios compare
what ran side by side, since absolute figures of shared machines do not carry over.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import inventory, tap
from tests.engine.bench_observer import observer_step_seconds

OUTPUT = Path("build/bench.json")
OBSERVER_WAITING = 128
OBSERVER_BUDGET_SECONDS = 100e-6

Row = dict[str, Any]


def rows() -> Iterator[Row]:
    """Every figure, as it is measured."""
    for events_per_message in tap.EVENTS_PER_MESSAGE:
        yield from tap.tap_rows(events_per_message)
    yield observer_row()
    yield inventory.memory_row()
    yield inventory.prefix_row()


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
    measured = []
    for row in rows():
        print(
            f"{row['name']:<44} {row['value']:>14,} {row['unit']:<9} "
            f"beside {row['beside']:>14,}   ratio {row['ratio']}",
            flush=True,
        )
        measured.append(row)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({"machine": machine(), "rows": measured}, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
