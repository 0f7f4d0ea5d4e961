"""What being watched costs a real engine: CPU seconds per request, attached over detached.

Two engines with the same model stand side by side, one bare and one with the level's settings and
a sidecar attached. They take turns at the same load, never at once, so that both see the same
machine; the figure is the mean of the paired log ratios with a 90 % interval (Student's t).
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "vllm")]

import load  # noqa: E402
from engine import STOCK_SCHEDULER, Engine, free_port  # noqa: E402

ROUNDS = 6
WARM_UP_ROUNDS = 1
# Upper 5 % point of Student's t with ROUNDS - 1 = 5 degrees of freedom.
T_QUANTILE = 2.015
BUDGET_RATIO = {"l1": 1.01, "l2": 1.01, "l3": 1.03}
SETTLE_SECONDS = 2.0

Row = dict[str, Any]


def cpu_seconds(session: int) -> float:
    """User and system seconds of all processes of a session, children that ended included."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended while we looked
        if int(fields[3]) == session:
            ticks += sum(int(fields[n]) for n in (11, 12, 13, 14))
    return ticks / os.sysconf("SC_CLK_TCK")


def bare_engine(python: Path, model: Path) -> Engine:
    """An engine as if kvready did not exist: no events, no observer; the host tier is the same."""
    return Engine(
        python, model, scheduler_class=STOCK_SCHEDULER, observe=False, publish_kv_events=False
    )


def watched_engine(python: Path, model: Path, level: str) -> Engine:
    """An engine with what this level asks for."""
    if level == "l3":
        return Engine(python, model)
    return Engine(python, model, scheduler_class=STOCK_SCHEDULER, observe=False)


@contextmanager
def sidecar(engine: Engine, level: str) -> Iterator[subprocess.Popen[bytes]]:
    """`kvready serve` attached at this level."""
    command = [sys.executable, "-m", "kvready.advisor.cli", "serve", "--port", str(free_port())]
    command += ["--kv-events", engine.kv_events_endpoint, "--replay", engine.kv_replay_endpoint]
    if level == "l3":
        command += ["--observer-dir", str(engine.observer_folder)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def one_turn(engine: Engine, shape: load.LoadShape) -> float:
    """CPU seconds per request of one load, backups behind it included."""
    before = cpu_seconds(engine.pid)
    answers = load.run(engine.url, engine.model.name, shape)
    time.sleep(SETTLE_SECONDS)
    if any(answer.error for answer in answers):
        raise RuntimeError("requests failed while the engine was timed: no figure")
    return (cpu_seconds(engine.pid) - before) / len(answers)


def attached_rows(python: Path, model: Path, level: str) -> list[Row]:
    """The level's ratio; at level 3 also what the sidecar itself takes."""
    # As fast as the engine goes, so that idling counts little.
    shape = replace(load.SHAPES["small"], requests_per_second=20.0, abort_share=0.0)
    ratios, sidecar_seconds, requests = [], 0.0, 0
    with (
        bare_engine(python, model) as bare,
        watched_engine(python, model, level) as watched,
        sidecar(watched, level) as process,
    ):
        for turn in range(WARM_UP_ROUNDS + ROUNDS):
            seeded = replace(shape, seed=100 + turn)
            order = (bare, watched) if turn % 2 else (watched, bare)
            sidecar_before = cpu_seconds(process.pid)
            spent = {engine.pid: one_turn(engine, seeded) for engine in order}
            if turn >= WARM_UP_ROUNDS:
                ratios.append(math.log(spent[watched.pid] / spent[bare.pid]))
                sidecar_seconds += cpu_seconds(process.pid) - sidecar_before
                requests += seeded.requests
    mean = statistics.fmean(ratios)
    half = T_QUANTILE * statistics.stdev(ratios) / math.sqrt(len(ratios))
    conditions = {
        "model": model.name,
        "requests_per_turn": shape.requests,
        "rounds": ROUNDS,
        "beside": "the same engine without events and observer, in turns",
        "interval_90": [round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)],
        "fails": math.exp(mean - half) > BUDGET_RATIO[level],
        "kind": "measured",
    }
    rows: list[Row] = [
        {
            "name": f"engine_cpu_attached_ratio_{level}",
            "value": round(math.exp(mean), 4),
            "unit": "ratio",
            "beside": BUDGET_RATIO[level],
            "ratio": round(math.exp(mean), 4),
            "conditions": conditions,
        }
    ]
    if level == "l3":
        rows.append(
            {
                "name": "sidecar_cpu_seconds_per_1000_requests",
                "value": round(1000 * sidecar_seconds / requests, 2),
                "unit": "s",
                "beside": 0,
                "ratio": 0,
                "conditions": conditions | {"beside": "nothing"},
            }
        )
    return rows


def main() -> None:
    """Print every row; `build/engine` and `build/models` must be there (`make engine`)."""
    python = ROOT / "build" / "engine" / "bin" / "python"
    for level in sys.argv[1:] or ["l1", "l2", "l3"]:
        for row in attached_rows(python, ROOT / "build" / "models" / "kv-heavy", level):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
