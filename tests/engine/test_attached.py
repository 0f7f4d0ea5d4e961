"""A real engine, attached from outside: what the sidecar rebuilt is what the engine had.

One engine for the whole file: loaded, killed without warning, started again, loaded again, while
`kvready record` watches throughout.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import load
import pytest
from engine import Engine

from kvready.advisor.inventory import Inventory, Knowledge
from kvready.advisor.ledger import PairState, Target
from kvready.advisor.playback import play
from kvready.collectors.recording import read_recording
from kvready.collectors.records import (
    BlocksRemoved,
    BlocksStored,
    Ingested,
    LoadFinished,
    Outcome,
    RequestArrived,
    RequestFinished,
    RequestScheduled,
    TapEvent,
    TapStatus,
    Tier,
    TierCleared,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SETTLE_SECONDS = 60.0
PROBE_EVERY = 8
KV_TAP = "engine"


@dataclass
class Life:
    """One incarnation of the engine: what it said of itself, and what its clients saw."""

    truth: list[dict[str, object]]
    answers: list[load.Answer]
    metrics: str


@dataclass
class Run:
    """Two lives of one engine, and one recording of both."""

    recording: Path
    lives: list[Life] = field(default_factory=list)
    items: list[Ingested] = field(default_factory=list)


def wait_until_settled(engine: Engine, probe_file: Path) -> None:
    """Until backups behind the last request are done and the probe has written its idle line."""
    deadline = time.monotonic() + SETTLE_SECONDS
    seen = -1
    while time.monotonic() < deadline:
        size = probe_file.stat().st_size
        lines = probe_file.read_text().splitlines()
        if lines and json.loads(lines[-1])["idle"] and size == seen:
            return
        seen = size
        time.sleep(1.0)
        engine.check_alive()
    raise AssertionError("the engine never came to rest")


def one_life(engine: Engine, probe_file: Path, shape: load.LoadShape) -> Life:
    answers = load.run(engine.url, engine.model.name, shape)
    wait_until_settled(engine, probe_file)
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as page:
        metrics = page.read().decode()
    truth = [json.loads(line) for line in probe_file.read_text().splitlines()]
    return Life(truth, answers, metrics)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, engine_python: Path, models: Path
) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    run = Run(folder / "run.kvr")
    sockets = Engine(engine_python, models / "kv-heavy")  # names the sockets; not started
    recorder = subprocess.Popen(
        [sys.executable, "-m", "kvready.advisor.cli", "record", str(run.recording)]
        + ["--kv-events", sockets.kv_events_endpoint, "--replay", sockets.kv_replay_endpoint]
        + ["--observer-dir", str(sockets.observer_folder), "--publisher", KV_TAP],
        stdin=subprocess.DEVNULL,
    )
    try:
        small = load.SHAPES["small"]
        shapes = (replace(small, seed=3), replace(small, seed=4, questions=24))
        for life, shape in enumerate(shapes):
            probe_file = folder / f"probe-{life}.jsonl"
            probe_file.touch()
            engine = Engine(
                engine_python,
                models / "kv-heavy",
                folder=sockets.folder,
                scheduler_class="probe.ProbedScheduler",
                environment={
                    "PYTHONPATH": str(Path(__file__).parent),
                    "KVREADY_PROBE_FILE": str(probe_file),
                    "KVREADY_PROBE_EVERY": str(PROBE_EVERY),
                },
            )
            engine.start()
            try:
                run.lives.append(one_life(engine, probe_file, shape))
            finally:
                engine.kill()  # as a crash would
                assert not engine.is_healthy()
        time.sleep(1.0)
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(30) == 0
    finally:
        recorder.kill()
    recording = read_recording(run.recording)
    run.items = list(recording)
    assert recording.damage is None
    yield run


def lives_on_the_wire(items: list[Ingested]) -> list[list[Ingested]]:
    """The items of each incarnation, cut where the KV tap saw the engine start anew."""
    lives: list[list[Ingested]] = [[]]
    for item in items:
        record = item.record
        if (
            isinstance(record, TapStatus)
            and record.tap == KV_TAP
            and record.event is TapEvent.EPOCH
        ):
            lives.append([])
        lives[-1].append(item)
    return lives


def test_the_inventory_equals_the_engines_own_blocks_at_every_checkpoint(run: Run) -> None:
    inventory = Inventory()
    lives = lives_on_the_wire(run.items)
    assert len(lives) == 2, "the restart was seen once"
    for life, items in zip(run.lives, lives, strict=True):
        pending = [point for point in life.truth if point["kv_sequence"] is not None]
        compared = 0
        for item in [*items, None]:
            record = item.record if item is not None else None
            sequence = (
                record.sequence
                if isinstance(record, BlocksStored | BlocksRemoved | TierCleared)
                else None
            )
            over = item is None
            while pending and (over or (sequence or -1) > int(str(pending[0]["kv_sequence"]))):
                assert over or inventory.state(KV_TAP) is Knowledge.LIVE
                assert_equal(inventory, pending.pop(0))
                compared += 1
            if record is not None:
                inventory.apply(record)
        assert compared >= 5
        # Each life ended with a kill: what is held is of an engine that is gone.
        assert inventory.state(KV_TAP) is not Knowledge.LIVE


def assert_equal(inventory: Inventory, truth: dict[str, object]) -> None:
    hbm, host = truth["hbm"], truth["host"]
    assert isinstance(hbm, dict)
    assert isinstance(host, list)
    where = f"at KV message {truth['kv_sequence']}"
    assert inventory.blocks(Tier.HBM) == {int(h): n for h, n in hbm.items()}, where
    assert set(inventory.blocks(Tier.HOST)) == {int(h) for h in host}, where


def test_tokens_by_source_are_what_the_engine_told_each_client(run: Run) -> None:
    told = {
        answer.name: answer.cached_tokens
        for life in run.lives
        for answer in life.answers
        if answer.output and not answer.aborted and not answer.error
    }
    seen: dict[str, int] = {}
    for item in run.items:
        record = item.record
        if isinstance(record, RequestScheduled) and not record.resumed:
            name = re.sub(r"^cmpl-(.*)-0-[0-9a-f]+$", r"\1", record.request_id)
            seen.setdefault(name, record.hbm_tokens + record.loaded_tokens)
    # the same names are used in both lives; the first admission of the first life is compared
    first = {a.name: a.cached_tokens for a in run.lives[0].answers if a.name in told and a.output}
    compared = {name: (seen[name], cached) for name, cached in first.items() if name in seen}
    assert len(compared) >= 30
    assert {n: p for n, p in compared.items() if p[0] != p[1]} == {}


def test_bytes_loaded_are_what_the_engine_counted(run: Run) -> None:
    counted = 0.0
    for life in run.lives:
        for line in life.metrics.splitlines():
            if line.startswith("vllm:kv_offload_load_bytes_total"):
                counted += float(line.rpartition(" ")[2])
    moved = sum(
        item.record.payload_bytes
        for item in run.items
        if isinstance(item.record, LoadFinished) and item.record.destination is Tier.HBM
    )
    assert moved == counted > 0


def test_every_request_that_arrived_ended_as_its_client_saw(run: Run) -> None:
    arrived = {i.record.request_id for i in run.items if isinstance(i.record, RequestArrived)}
    ended = {
        i.record.request_id: i.record.outcome
        for i in run.items
        if isinstance(i.record, RequestFinished)
    }
    assert arrived == set(ended)
    completed = sum(
        bool(answer.output) and not answer.aborted and not answer.error
        for life in run.lives
        for answer in life.answers
    )
    finished = sum(outcome is Outcome.FINISHED for outcome in ended.values())
    hung_up = sum(answer.aborted for life in run.lives for answer in life.answers)
    # a client may hang up after the engine has finished
    assert completed <= finished <= completed + hung_up
    assert Outcome.ABORTED in ended.values()


def test_every_load_and_wait_was_forecast_before_it_happened(run: Run) -> None:
    pipeline = play(run.recording).pipeline
    counts = pipeline.ledger.counts
    for target in set(Target) - {Target.FETCH}:  # this engine has no disk tier
        paired = counts[target, PairState.PAIRED]
        assert paired > 0, target
        if target is not Target.QUEUE:  # who is let in at once was scheduled by the step that told
            assert counts[target, PairState.LATE] <= paired / 10, target
    assert pipeline.totals.exposed_load_seconds > 0
    assert pipeline.totals.late_hits > 0
    waited = sum(pipeline.totals.wait_seconds.values())
    assert pipeline.totals.unattributed_seconds < 0.02 * waited


def test_two_replays_give_equal_bytes(run: Run) -> None:
    assert play(run.recording).digest == play(run.recording).digest
