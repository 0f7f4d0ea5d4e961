"""vLLM 0.28, attached live: its events are read, its scheduler is refused with a reason."""

from __future__ import annotations

import random
import time
from pathlib import Path

import load
import pytest
from engine import STOCK_SCHEDULER, Engine, EngineError

from kvready.advisor.inventory import Inventory
from kvready.collectors.hashing import content_keys
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.records import AnyRecord, BlocksStored, Tier

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BLOCK_TOKENS = 32
VOCABULARY = 2048
QUIET_SECONDS = 2.0


def test_its_events_tell_which_prompts_are_in_hbm(older_python: Path, models: Path) -> None:
    chance = random.Random(28)
    prompts = [[chance.randrange(VOCABULARY) for _ in range(9 * BLOCK_TOKENS)] for _ in range(3)]
    inventory = Inventory()
    keys: dict[int, int] = {}  # content key -> block hash
    taken: list[AnyRecord] = []

    def sink(record: AnyRecord, received_seconds: float, tap: str) -> None:
        taken.append(record)
        inventory.apply(record)
        if isinstance(record, BlocksStored):
            keys.update(zip(record.content_keys, record.block_hashes, strict=True))

    with Engine(
        older_python,
        models / "check",
        scheduler_class=STOCK_SCHEDULER,
        observe=False,
        host_bytes=0,
        max_model_tokens=1024,
    ) as engine:
        tap = KvEventTap(
            "older", engine.kv_events_endpoint, engine.kv_replay_endpoint, with_content_keys=True
        )
        # Attached in mid-life: the first prompt's events are gone and come by replay.
        load.ask(engine.url, "check", "before", prompts[0], output_tokens=2)
        tap.start(sink)
        for number, prompt in enumerate(prompts[1:]):
            load.ask(engine.url, "check", f"after-{number}", prompt, output_tokens=2)
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            if tap.poll(0.1):
                deadline = time.monotonic() + QUIET_SECONDS
        coverage = tap.coverage()
        tap.stop()

    assert coverage.decode_errors == 0
    for prompt in prompts:
        hashes = [keys[key] for key in content_keys(prompt, BLOCK_TOKENS)]
        assert len(hashes) == 9
        assert inventory.tier_prefix(hashes).blocks_by_tier[Tier.HBM] == 9


def test_its_scheduler_is_refused_with_the_fix(older_python: Path, models: Path) -> None:
    engine = Engine(older_python, models / "check", host_bytes=0, max_model_tokens=1024)
    with pytest.raises(EngineError) as refused:
        engine.start()
    log = engine.log.read_text()
    assert "the observer was tested with vLLM 0.32, this is 0.28.0" in log
    assert "KVREADY_OBSERVER=off" in log
    assert "ended with status" in str(refused.value)
