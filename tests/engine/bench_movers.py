"""What the gather does for a real engine's host loads, beside the per-page copies it replaces.

One engine life. The movers take turns by the mover file, window by window, in pairs whose order is
drawn; a window ends before the next begins, so that no load has two movers. The figure is the
ratio of the two windows' median service seconds per MiB, its median over pairs, with a bootstrap
interval over pairs. Requests come from two clients, so that loads run beside other requests' steps.
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kvready.collectors.recording import read_recording
from kvready.collectors.records import LoadChecked, LoadFinished, Tier

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "vllm")]

import load  # noqa: E402
from engine import MOVERS, Engine  # noqa: E402

PAIRS = 14
REQUESTS_PER_WINDOW = 8
CLIENTS = 2
DOCUMENTS = 15  # more than HBM holds, so that each question brings its document from host memory
DOCUMENT_TOKENS = (640, 1_920)
QUESTION_TOKENS = 24
OUTPUT_TOKENS = 4
SEED = 4
RESAMPLES = 10_000
SETTLE_SECONDS = 1.0
MIB = 1 << 20

Row = dict[str, Any]


class Window(NamedTuple):
    """A span of time in which one mover carried out the loads; seconds of CLOCK_MONOTONIC."""

    mover: str
    begin_seconds: float
    end_seconds: float


class Traffic:
    """Questions about documents in turn, so that the one asked about was evicted longest ago."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self._documents = [
            self._tokens(chance.randrange(*DOCUMENT_TOKENS)) for _ in range(DOCUMENTS)
        ]
        self._asked = 0

    def ask(self, requests: int) -> None:
        """Send so many questions and wait for the answers."""
        prompts = []
        for _ in range(requests):
            document = self._documents[self._asked % DOCUMENTS]
            prompts.append((f"bench-{self._asked}", document + self._tokens(QUESTION_TOKENS)))
            self._asked += 1
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = list(clients.map(self._one, prompts))
        if any(answer.error for answer in answers):
            raise RuntimeError("requests failed while loads were timed: no figure")

    def _one(self, named: tuple[str, tuple[int, ...]]) -> load.Answer:
        engine = self._engine
        return load.ask(engine.url, engine.model.name, named[0], named[1], OUTPUT_TOKENS)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._chance.randrange(load.VOCABULARY) for _ in range(count))


def mover_rows(python: Path, model: Path) -> list[Row]:
    """Seconds per MiB of each mover, and the ratio with its interval."""
    with tempfile.TemporaryDirectory(prefix="kvr-") as name:
        recording = Path(name) / "movers.kvr"
        engine = Engine(python, model, can_switch_mover=True)
        command = [sys.executable, "-m", "kvready.advisor.cli", "record", str(recording)]
        command += ["--observer-dir", str(engine.observer_folder)]
        recorder = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            with engine:
                windows = _windows(engine)
            time.sleep(SETTLE_SECONDS)
            recorder.send_signal(signal.SIGINT)
            recorder.wait(60)
        finally:
            recorder.kill()
        records = [item.record for item in read_recording(recording)]
    loads = [r for r in records if isinstance(r, LoadFinished) and r.destination is Tier.HBM]
    if any(isinstance(r, LoadChecked) and r.mismatched for r in records):
        raise RuntimeError("a gathered load differed from per-page copies: no figure")
    return _rows([_rates(window, loads) for window in windows], model)


def _windows(engine: Engine) -> list[list[Window]]:
    """Pairs of windows, the first mover of each pair drawn."""
    chance = random.Random(SEED)
    traffic = Traffic(engine, chance)
    traffic.ask(DOCUMENTS)  # computes and stores them
    time.sleep(SETTLE_SECONDS)
    pairs = []
    for _ in range(PAIRS):
        pair = []
        for mover in chance.sample(MOVERS, len(MOVERS)):
            engine.use_mover(mover)
            begin = time.monotonic()
            traffic.ask(REQUESTS_PER_WINDOW)
            pair.append(Window(mover, begin, time.monotonic()))
        pairs.append(pair)
    return pairs


def _rates(pair: list[Window], loads: list[LoadFinished]) -> dict[str, list[float]]:
    """Service seconds per MiB of each load in a pair of windows, by mover."""
    found: dict[str, list[float]] = {}
    for mover, begin, end in pair:
        inside = [done for done in loads if begin <= (done.started_seconds or 0.0) <= end]
        if {done.method for done in inside} != {mover}:
            raise RuntimeError(f"a window of {mover} held loads by another mover, or none")
        found[mover] = [
            (done.ready_seconds - (done.started_seconds or 0.0)) / (done.payload_bytes / MIB)
            for done in inside
        ]
    return found


def _rows(pairs: list[dict[str, list[float]]], model: Path) -> list[Row]:
    baseline, gather = MOVERS
    medians = [{mover: statistics.median(rates) for mover, rates in pair.items()} for pair in pairs]
    ratios = [median[gather] / median[baseline] for median in medians]
    low, high = bootstrap(ratios, random.Random(SEED))
    conditions = {
        "model": model.name,
        "pairs": PAIRS,
        "loads": {mover: sum(len(pair[mover]) for pair in pairs) for mover in MOVERS},
        "clients": CLIENTS,
        "seed": SEED,
        "beside": f"{baseline} in the same engine life, windows in drawn order",
        "interval_90": [round(low, 4), round(high, 4)],
        "fails": low >= 1.0,
        "kind": "measured",
    }
    seconds = {m: statistics.median([median[m] for median in medians]) for m in MOVERS}
    ratio = statistics.median(ratios)
    return [
        {
            "name": "engine_host_load_seconds_per_mib_gather",
            "value": round(seconds[gather], 7),
            "unit": "s/MiB",
            "beside": round(seconds[baseline], 7),
            "ratio": round(ratio, 4),
            "conditions": conditions,
        }
    ]


def bootstrap(ratios: list[float], chance: random.Random) -> tuple[float, float]:
    """The 5th and 95th percentile of the median over resampled pairs."""
    medians = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return medians[RESAMPLES // 20], medians[-RESAMPLES // 20]
