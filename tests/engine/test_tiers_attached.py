"""A real engine with three tiers and two movers, watched from outside and killed at the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import load
import pytest
from engine import GIB, MOVERS, Engine
from test_attached import wait_until_settled

from kvready.advisor.inventory import Inventory
from kvready.advisor.ledger import PairState, Target
from kvready.advisor.playback import Playback, play
from kvready.advisor.waits import WaitState
from kvready.collectors.recording import read_recording
from kvready.collectors.records import (
    BlocksRemoved,
    BlocksStored,
    Ingested,
    LoadChecked,
    LoadDecided,
    LoadFinished,
    TapEvent,
    TapStatus,
    Tier,
    TierCleared,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

KV_TAP = "engine"
HOST_BYTES = 384 << 20  # 96 blocks: less than half of what HBM holds
CHECK_EVERY = 3
TURNS = (("dma_per_page", 24), ("gather", 16), ("dma_per_page", 16))  # mover, questions
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Run:
    """One life of an engine: what was recorded, what it said itself, what it left behind."""

    recording: Path
    truth: list[dict[str, object]]
    answers: list[load.Answer]
    files_while_running: list[Path]
    files_after_kill: list[Path]
    items: list[Ingested] = field(default_factory=list)

    @property
    def loads(self) -> list[LoadFinished]:
        """Copies into HBM."""
        records = (item.record for item in self.items)
        return [r for r in records if isinstance(r, LoadFinished) and r.destination is Tier.HBM]


def files_of(engine: Engine) -> list[Path]:
    """What a disk tier or a shared region could leave behind."""
    assert engine.disk_folder is not None
    return [*engine.disk_folder.iterdir(), *SHARED_MEMORY.glob("vllm_offload_*")]


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, engine_python: Path, models: Path
) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    disk = folder / "disk"
    disk.mkdir()
    probe_file = folder / "probe.jsonl"
    probe_file.touch()
    before = set(SHARED_MEMORY.glob("vllm_offload_*"))
    engine = Engine(
        engine_python,
        models / "kv-heavy",
        scheduler_class="probe.ProbedScheduler",
        host_bytes=HOST_BYTES,
        disk_bytes=4 * GIB,
        disk_folder=disk,
        can_switch_mover=True,
        check_every=CHECK_EVERY,
        environment={
            "PYTHONPATH": str(Path(__file__).parent),
            "KVREADY_PROBE_FILE": str(probe_file),
        },
    )
    recording = folder / "run.kvr"
    recorder = subprocess.Popen(
        [sys.executable, "-m", "kvready.advisor.cli", "record", str(recording)]
        + ["--kv-events", engine.kv_events_endpoint, "--replay", engine.kv_replay_endpoint]
        + ["--observer-dir", str(engine.observer_folder), "--publisher", KV_TAP],
        stdin=subprocess.DEVNULL,
    )
    answers: list[load.Answer] = []
    shape = replace(load.SHAPES["small"], turns=2, abort_share=0.0, seed=7)
    try:
        engine.start()
        try:
            # The same documents again: what the first turn stored, the others fetch and load.
            for mover, questions in TURNS:
                engine.use_mover(mover)
                turn = replace(shape, questions=questions)
                answers += load.run(engine.url, engine.model.name, turn)
            wait_until_settled(engine, probe_file)
            during = [path for path in files_of(engine) if path not in before]
        finally:
            engine.kill()  # as a crash would
        after = [path for path in files_of(engine) if path not in before]
        time.sleep(1.0)
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(30) == 0
    finally:
        recorder.kill()
    truth = [json.loads(line) for line in probe_file.read_text().splitlines()]
    found = Run(recording, truth, answers, during, after)
    found.items = list(read_recording(recording))
    yield found


@pytest.fixture(scope="module")
def played(run: Run) -> Playback:
    return play(run.recording)


def test_every_request_was_answered(run: Run) -> None:
    assert [answer.error for answer in run.answers if answer.error] == []
    assert all(answer.output for answer in run.answers)


def test_movers_take_turns_without_a_restart_and_each_load_names_the_one_that_ran(
    run: Run,
) -> None:
    methods = [load.method for load in run.loads]
    counted = Counter(methods)
    assert set(counted) == set(MOVERS)
    assert min(counted.values()) >= 5
    assert [method for method, _ in groupby(methods)] == [mover for mover, _ in TURNS]
    epochs = [
        item.record
        for item in run.items
        if isinstance(item.record, TapStatus) and item.record.event is TapEvent.EPOCH
    ]
    assert epochs == []


def test_gathered_loads_were_checked_as_often_as_asked_and_none_differed(
    run: Run, played: Playback
) -> None:
    gathered = sum(load.method == "gather" for load in run.loads)
    checked = [item.record for item in run.items if isinstance(item.record, LoadChecked)]
    assert len(checked) == -(-gathered // CHECK_EVERY)
    totals = played.pipeline.totals
    assert (totals.checked_loads, totals.mismatched_loads) == (len(checked), 0)


def test_requests_wait_for_fetches_from_disk_and_fetches_are_forecast(
    run: Run, played: Playback
) -> None:
    pipeline = played.pipeline
    assert pipeline.totals.wait_seconds[WaitState.FETCH] > 0
    assert pipeline.ledger.counts[Target.FETCH, PairState.PAIRED] >= 5
    waited = sum(pipeline.totals.wait_seconds.values())
    assert pipeline.totals.unattributed_seconds < 0.02 * waited
    orders = {
        item.record.load_id: item.record
        for item in run.items
        if isinstance(item.record, LoadDecided) and Tier.DISK in moved_between(item.record)
    }
    ends = [
        item.record
        for item in run.items
        if isinstance(item.record, LoadFinished) and item.record.load_id in orders
    ]
    assert {moved_between(end) for end in ends} == {(Tier.HOST, Tier.DISK), (Tier.DISK, Tier.HOST)}
    for end in ends:
        order = orders[end.load_id]
        assert (end.payload_bytes, end.fragments) == (order.payload_bytes, order.fragments)
        assert end.started_seconds is not None
        assert order.decided_seconds <= end.started_seconds <= end.ready_seconds


def moved_between(record: LoadDecided | LoadFinished) -> tuple[Tier, Tier]:
    return record.source, record.destination


def test_the_inventory_of_each_tier_equals_the_engines_own(run: Run) -> None:
    inventory = Inventory()
    pending = [point for point in run.truth if point["kv_sequence"] is not None]
    compared = 0
    for item in [*run.items, None]:
        record = item.record if item is not None else None
        is_event = isinstance(record, BlocksStored | BlocksRemoved | TierCleared)
        sequence = record.sequence if is_event else None
        over = item is None
        while pending and (over or (sequence or -1) > int(str(pending[0]["kv_sequence"]))):
            point = pending.pop(0)
            for tier in (Tier.HBM, Tier.HOST, Tier.DISK):
                told = point[tier.value]
                assert isinstance(told, dict | list)
                assert set(inventory.blocks(tier)) == {int(block) for block in told}, tier
            compared += 1
        if record is not None:
            inventory.apply(record)
    assert compared >= 5
    assert max(len(str(point["disk"])) for point in run.truth) > 2


def test_a_killed_engine_leaves_no_file_behind(run: Run) -> None:
    assert run.files_while_running == []
    assert run.files_after_kill == []
