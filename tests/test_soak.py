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
MESSAGES_AT_ONCE = 2_000
# Published and not yet ingested. The flood is as fast as it is taken in, whatever else the machine
# does: a faster one fills the queue to its bound, and what finds it full is lost by design.
MAX_AHEAD_RECORDS = 10_000
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
        churn = Churn(engine)
        began = time.monotonic()
        warm_bytes = 0.0
        while time.monotonic() < began + SOAK_SECONDS:
            for _ in range(MESSAGES_AT_ONCE):
                churn.send()
            served.wait_for(lambda: _ingested(served) > churn.records - MAX_AHEAD_RECORDS)
            if not warm_bytes and time.monotonic() > began + SOAK_SECONDS * WARM_UP_RATIO:
                warm_bytes = _resident_bytes(served, churn)
        assert _resident_bytes(served, churn) < warm_bytes * MAX_GROWTH_RATIO
        churn.remove_all_but_the_last()
        served.wait_for(lambda: _live(served) == BLOCKS_PER_MESSAGE)
        assert served.get("/v1/status").json()["ingest"]["dropped"] == 0
        code, errors = served.end()
    assert code == 0, errors


class Churn:
    """Stores a chain and removes the one that makes room, again and again; no hash comes back."""

    def __init__(self, engine: Publisher) -> None:
        self.records = 0  # that what was sent so far comes to
        self._engine = engine
        self._stored = 0

    def send(self) -> None:
        """One message."""
        first = self._stored + 1
        events: list[object] = [
            {
                "type": "BlockStored",
                "block_hashes": list(range(first, first + BLOCKS_PER_MESSAGE)),
                "parent_block_hash": None,
                "token_ids": [],
                "block_size": 32,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        ]
        if self._stored >= LIVE_BLOCKS:
            oldest = first - LIVE_BLOCKS
            events.append(_removal(range(oldest, oldest + BLOCKS_PER_MESSAGE)))
        self._engine.send(*events)
        self.records += len(events)
        self._stored += BLOCKS_PER_MESSAGE

    def remove_all_but_the_last(self) -> None:
        """What is live then tells whether every message before counted."""
        oldest = self._stored - LIVE_BLOCKS + 1
        self._engine.send(_removal(range(oldest, self._stored - BLOCKS_PER_MESSAGE + 1)))


def _removal(hashes: range) -> object:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


def _ingested(served: Served) -> int:
    return int(served.get("/v1/status").json()["ingest"]["records"])


def _resident_bytes(served: Served, churn: Churn) -> float:
    """Once all that was sent is ingested: what waits is not what is held."""
    served.wait_for(lambda: _ingested(served) >= churn.records)
    return _value(served, "kvready_process_resident_memory_bytes")


def _live(served: Served) -> int:
    return int(served.get("/v1/status").json()["inventory"]["live_blocks"]["hbm"])


def _value(served: Served, name: str) -> float:
    lines = served.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
