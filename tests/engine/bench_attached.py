"""What being watched costs a real engine: CPU seconds per request, attached over detached.

Engines run one at a time, bare and watched in turns, each started afresh: side by side, two engines
of one machine are pinned to different company and an engine beside its own twin already differs by
ten percent. The figure is the mean of the paired log ratios with a 90 % interval (Student's t); the
placebo, bare over bare, must cover 1 or the others mean nothing.
"""

from __future__ import annotations

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
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "vllm")]

import load  # noqa: E402
from engine import STOCK_SCHEDULER, Engine, free_port  # noqa: E402

PAIRS = 4
TURNS_PER_LIFE = 2
# Upper 5 % point of Student's t with PAIRS - 1 = 3 degrees of freedom.
T_QUANTILE = 2.353
PLACEBO = "placebo"
BUDGET_RATIO = {PLACEBO: 1.0, "l1": 1.01, "l2": 1.01, "l3": 1.03}
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


def engine_for(python: Path, model: Path, level: str, otlp_port: int) -> Engine:
    """An engine with what this level asks for; the placebo's is bare. The host tier is the same."""
    if level == "l3":
        return Engine(python, model)
    spans = ("--otlp-traces-endpoint", f"grpc://127.0.0.1:{otlp_port}")
    return Engine(
        python,
        model,
        scheduler_class=STOCK_SCHEDULER,
        observe=False,
        publish_kv_events=level != PLACEBO,
        extra_arguments=spans if level == "l2" else (),
    )


@contextmanager
def sidecar(engine: Engine, level: str, otlp_port: int) -> Iterator[int | None]:
    """`kvready serve` attached at this level; its process id, None for the placebo."""
    if level == PLACEBO:
        yield None
        return
    command = [sys.executable, "-m", "kvready.advisor.cli", "serve", "--port", str(free_port())]
    command += ["--kv-events", engine.kv_events_endpoint, "--replay", engine.kv_replay_endpoint]
    if level == "l2":
        command += ["--otlp-grpc-port", str(otlp_port)]
    if level == "l3":
        command += ["--observer-dir", str(engine.observer_folder)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


class Life(NamedTuple):
    """CPU seconds per request of one engine's life, and of what was attached to it."""

    engine_seconds: float
    sidecar_seconds: float


def one_life(python: Path, model: Path, level: str, seed: int) -> Life:
    """An engine from start to stop under the same load; the first turn warms it up."""
    # As fast as the engine goes, so that idling counts little.
    shape = replace(load.SHAPES["small"], requests_per_second=20.0, abort_share=0.0)
    otlp_port = free_port()
    with (
        engine_for(python, model, level, otlp_port) as engine,
        sidecar(engine, level, otlp_port) as watcher,
    ):
        requests = 0
        for turn in range(1 + TURNS_PER_LIFE):
            if turn == 1:
                engine_before = cpu_seconds(engine.pid)
                sidecar_before = cpu_seconds(watcher) if watcher else 0.0
            answers = load.run(engine.url, model.name, replace(shape, seed=seed + turn))
            time.sleep(SETTLE_SECONDS)
            if any(answer.error for answer in answers):
                raise RuntimeError("requests failed while the engine was timed: no figure")
            requests += len(answers) if turn else 0
        return Life(
            (cpu_seconds(engine.pid) - engine_before) / requests,
            ((cpu_seconds(watcher) if watcher else 0.0) - sidecar_before) / requests,
        )


def attached_rows(python: Path, model: Path, level: str) -> list[Row]:
    """The level's ratio, and what the sidecar itself takes."""
    ratios, sidecar_seconds = [], []
    for pair in range(PAIRS):
        seed = 100 * (pair + 1)
        order = (PLACEBO, level) if pair % 2 else (level, PLACEBO)
        first, second = (one_life(python, model, which, seed) for which in order)
        bare, watched = (first, second) if pair % 2 else (second, first)
        ratios.append(math.log(watched.engine_seconds / bare.engine_seconds))
        sidecar_seconds.append(watched.sidecar_seconds)
    mean = statistics.fmean(ratios)
    half = T_QUANTILE * statistics.stdev(ratios) / math.sqrt(PAIRS)
    conditions = {
        "model": model.name,
        "pairs": PAIRS,
        "requests_per_life": TURNS_PER_LIFE * load.SHAPES["small"].requests,
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
    if level != PLACEBO:
        rows.append(
            {
                "name": f"sidecar_cpu_seconds_per_1000_requests_{level}",
                "value": round(1000 * statistics.fmean(sidecar_seconds), 2),
                "unit": "s",
                "beside": 0,
                "ratio": 0,
                "conditions": {**conditions, "beside": "nothing"},
            }
        )
    return rows
