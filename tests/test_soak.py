"""Minutes under a flood: what is bounded stays bounded, and nothing is lost unseen."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from publisher import Publisher
from served import Served, serving

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
LIVE_BLOCKS = 4_096
BLOCKS_PER_MESSAGE = 8
WARM_UP_RATIO = 0.3
MAX_GROWTH_RATIO = 1.2

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SOAK_SECONDS + 300)]


def test_memory_stays_level_and_the_inventory_exact_under_churn(
    short_dir: Path, free_port: int
) -> None:
    with (
        Publisher(short_dir) as engine,
        serving(
            *("serve", "--kv-events", engine.events, "--recording", short_dir / "run.kvr"),
            port=free_port,
        ) as served,
    ):
        served.wait_for(lambda: served.get("/readyz").status_code == 200)
        ends = time.monotonic() + SOAK_SECONDS
        warm = time.monotonic() + SOAK_SECONDS * WARM_UP_RATIO
        warm_bytes = 0.0
        stored = 0
        while time.monotonic() < ends:
            for _ in range(200):
                stored = _churn(engine, stored)
            if not warm_bytes and time.monotonic() > warm:
                warm_bytes = _value(served, "kvready_process_resident_memory_bytes")
            time.sleep(0.005)
        served.wait_for(lambda: _live(served) == min(stored, LIVE_BLOCKS))
        assert _value(served, "kvready_process_resident_memory_bytes") < (
            warm_bytes * MAX_GROWTH_RATIO
        )
        code, errors = served.end()
    assert code == 0, errors


def _churn(engine: Publisher, stored: int) -> int:
    """Store the next chain and remove the one that makes room; hashes never come back."""
    first = stored + 1
    chain = list(range(first, first + BLOCKS_PER_MESSAGE))
    events: list[object] = [
        {
            "type": "BlockStored",
            "block_hashes": chain,
            "parent_block_hash": None,
            "token_ids": [],
            "block_size": 32,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
    ]
    if stored >= LIVE_BLOCKS:
        oldest = first - LIVE_BLOCKS
        gone = list(range(oldest, oldest + BLOCKS_PER_MESSAGE))
        events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
    engine.send(*events)
    return stored + BLOCKS_PER_MESSAGE


def _live(served: Served) -> int:
    return int(served.get("/v1/status").json()["inventory"]["live_blocks"]["hbm"])


def _value(served: Served, name: str) -> float:
    lines = served.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
