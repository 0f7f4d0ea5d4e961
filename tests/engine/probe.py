"""The engine's own word on where its blocks are, to hold the inventory against.

A scheduler for tests alone: it looks into the cache manager and the offloading manager, which the
observer never does. Loaded by name with this folder on the engine's PYTHONPATH. At every N-th
finished batch, and whenever the engine has nothing left to do, it appends one line of JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.kv_offload.base import get_offload_block_hash

from kvready.collectors.engine.vllm_observer import ObservedScheduler

FILE_VARIABLE = "KVREADY_PROBE_FILE"
EVERY_VARIABLE = "KVREADY_PROBE_EVERY"


def short(digest: bytes) -> int:
    """A block hash as KV events carry it."""
    return int.from_bytes(digest[-8:], "big")


class ProbedScheduler(ObservedScheduler):
    """Writes the truth at the moment to which `kv_sequence` refers."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._every = int(os.environ.get(EVERY_VARIABLE, "10"))
        self._file = Path(os.environ[FILE_VARIABLE])
        self._batches = 0
        self._idle_written: int | None = -1

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        assert self.step_observer is not None
        if scheduler_output.num_scheduled_tokens:
            self._batches += 1
            if self._batches % self._every == 0:
                self._write(idle=False)
        if not self.has_requests():
            sequence = self.step_observer._kv_sequence()
            if sequence != self._idle_written:
                self._idle_written = sequence
                self._write(idle=True)
        return outputs

    def _write(self, idle: bool) -> None:
        assert self.step_observer is not None
        line = {
            "step": self._batches,  # the observer numbers the same batches, from 1
            "kv_sequence": self.step_observer._kv_sequence(),
            "idle": idle,
            "hbm": self._hbm(),
            "host": self._host(),
            "disk": self._disk(),
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _hbm(self) -> dict[str, int]:
        """Blocks per hash: the engine may keep several of the same content."""
        cached = self.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        found: dict[str, int] = {}
        for key, blocks in cached.items():
            name = str(short(get_block_hash(key)))
            found[name] = found.get(name, 0) + (len(blocks) if isinstance(blocks, dict) else 1)
        return found

    def _host(self) -> list[str]:
        """Chunks that can be loaded now."""
        connector = self.connector
        if connector is None:
            return []
        manager = connector.connector_scheduler.manager
        chunks = getattr(manager, "primary_tier", manager)._policy.chunks
        return sorted(
            str(short(get_offload_block_hash(key)))
            for key, chunk in chunks.items()
            if chunk.is_ready
        )

    def _disk(self) -> list[str]:
        """Chunks that can be fetched now."""
        if self.connector is None:
            return []
        manager = self.connector.connector_scheduler.manager
        tiers = getattr(manager, "secondary_tiers", ())
        return sorted(
            str(short(get_offload_block_hash(key)))
            for tier in tiers
            for key, held in tier._slots._held.items()
            if held.ready
        )
