"""A real engine under load with kvready attached, from start to report.

Starts vLLM's CPU build with a host tier and the observer, attaches `kvready serve` to it from
outside, sends a seeded load that overflows HBM, stops both and prints the report of the recording.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import load
from engine import GIB, MOVERS, Engine, free_port

READY_SECONDS = 30.0
STOP_SECONDS = 60.0
INTERLEAVED = "interleaved"
CHECK_EVERY = 25  # gathered loads of which one is checked: more often than in service
SWITCH_SECONDS = 4.0  # between two movers, where they take turns
# With a disk tier host memory is small, so that documents have to come back from the disk.
SMALL_HOST_BYTES = 768 << 20
DISK_BYTES = 4 * GIB


class Attached:
    """`kvready serve` beside an engine, keeping a recording."""

    def __init__(self, kvready: Path, engine: Engine, recording: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.recording = recording
        self._command = [
            *(str(kvready), "serve", "--port", self.url.rpartition(":")[2]),
            *("--kv-events", engine.kv_events_endpoint, "--replay", engine.kv_replay_endpoint),
            *("--observer-dir", str(engine.observer_folder), "--recording", str(recording)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Attached:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit("kvready did not come up; its message is above")
            time.sleep(0.1)
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(STOP_SECONDS)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/livez", timeout=2.0):
                return True
        except (OSError, urllib.error.URLError):
            return False


class TakingTurns:
    """Switches an engine's mover every few seconds, in pairs whose order is drawn."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._switch, daemon=True)

    def __enter__(self) -> TakingTurns:
        if self._engine.can_switch_mover:
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _switch(self) -> None:
        while True:
            for mover in self._chance.sample(MOVERS, len(MOVERS)):
                self._engine.use_mover(mover)
                if self._over.wait(SWITCH_SECONDS):
                    return


def engine_for(python: Path, model: Path, mover: str, disk: bool) -> Engine:
    """An engine with the movers and tiers that were asked for."""
    takes_turns = mover == INTERLEAVED
    engine = Engine(
        python=python.absolute(),
        model=model.resolve(),
        mover=MOVERS[0] if takes_turns else mover,
        can_switch_mover=takes_turns,
        check_every=CHECK_EVERY,
    )
    return replace(engine, host_bytes=SMALL_HOST_BYTES, disk_bytes=DISK_BYTES) if disk else engine


def run(kvready: Path, engine: Engine, recording: Path, shape: load.LoadShape) -> dict[str, object]:
    """The whole demonstration; returns what the clients saw."""
    model = engine.model
    say(f"starting vLLM with {model.name} (half a minute)")
    with (
        engine,
        Attached(kvready, engine, recording) as attached,
        TakingTurns(engine, shape.seed),
    ):
        say(f"kvready watches at {attached.url}; {shape.requests} requests, seed {shape.seed}")
        began = time.monotonic()
        answers = load.run(engine.url, model.name, shape)
        seen = load.summary(answers, time.monotonic() - began)
        say(f"the clients saw {json.dumps(seen)}")
    return seen


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvready", type=Path, required=True, help="the kvready command")
    parser.add_argument("--models", type=Path, required=True, help="folder of make_model.py")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="with vLLM")
    parser.add_argument("--shape", choices=sorted(load.SHAPES), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--mover", choices=(*MOVERS, INTERLEAVED), default=MOVERS[0], help="of host loads"
    )
    parser.add_argument("--disk", action="store_true", help="a small host tier, a disk below it")
    parser.add_argument("--recording", type=Path, help="keep the recording in this new file")
    options = parser.parse_args()
    kept = options.recording or Path(tempfile.mkdtemp(prefix="kvr-")) / "demo.kvr"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shape = replace(load.SHAPES[options.shape], seed=options.seed)
    engine = engine_for(options.python, options.models / "kv-heavy", options.mover, options.disk)
    run(options.kvready, engine, kept, shape)
    say(f"the recording is {kept} ({kept.stat().st_size:,} bytes)")
    raise SystemExit(subprocess.run([options.kvready, "report", kept], check=False).returncode)


if __name__ == "__main__":
    main()
