"""Drives a disk tier as vLLM's tiering manager does, in the engine's own Python, without an engine.

Prints one line of JSON: what each question was answered, in order.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob

from kvready.kernels.disk import aligned_buffer
from kvready.kernels.engine.disk_tier import DiskTier

CHUNK_BYTES = 8192
CHUNKS = 6
SLOTS = 3


class Drive:
    """A tier over a host memory of its own, and everything that it said."""

    def __init__(self, folder: str) -> None:
        memory = np.frombuffer(aligned_buffer(CHUNKS * CHUNK_BYTES), dtype=np.int8)
        self.host = memory.reshape(CHUNKS, CHUNK_BYTES)
        spec = SimpleNamespace(
            tokens_per_block=(16,),
            blocks_per_chunk=2,
            kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
            config=SimpleNamespace(parallel=SimpleNamespace(data_parallel_index=0)),
        )
        size = SLOTS * CHUNK_BYTES + 1  # a little more than fits: rounded down
        self.tier = DiskTier(spec, memoryview(self.host), "disk", size, folder, depth=2)
        self._context = ReqContext("r")
        self._jobs = 0

    def job(self, is_fetch: bool, **placed: int) -> dict[str, Any]:
        """Run a job that brings named chunks from or to places in host memory."""
        self._jobs += 1
        job = TransferJob(
            self._jobs,
            [key(name) for name in placed],
            np.array(list(placed.values()), dtype=np.int32),
            is_fetch,
            self._context,
        )
        (self.tier.submit_load if is_fetch else self.tier.submit_store)(job)
        self.tier.drain_jobs()
        [result] = self.tier.get_finished_jobs()
        assert result.job_id == self._jobs
        return {
            "success": result.success,
            "kept": [name_of(k) for k in result.successful_keys or ()],
            "bytes": result.transfer_bytes,
            "events": [
                ("removed" if event.removed else "stored", event.medium.value, name_of(k))
                for event in self.tier.take_events()
                for k in event.keys
            ],
            "present": {n: self.tier.lookup(key(n), self._context).name for n in "abcd"},
        }


def key(name: str) -> Any:
    return make_offload_key(name.encode() * 32, 0)


def name_of(offload_key: bytes) -> str:
    return offload_key[:1].decode()


def main() -> None:
    drive = Drive(sys.argv[1])
    for chunk in range(3):
        drive.host[chunk] = chunk + 1
    said = {"stored": drive.job(False, a=0, b=1)}
    said["again"] = drive.job(False, b=1)
    drive.host[3:] = 0
    said["fetched"] = drive.job(True, a=4, b=3)
    said["content"] = [int(drive.host[4].min()), int(drive.host[3].max())]
    said["third"] = drive.job(False, c=2)
    said["touched"] = drive.job(True, a=5)  # b is the least recently used now
    said["evicts"] = drive.job(False, d=0)
    said["gone"] = drive.job(True, b=3, c=4)
    os.ftruncate(drive.tier._file._file, 0)  # from here on the disk fails
    said["broken"] = drive.job(True, a=3)
    drive.tier.shutdown()
    drive.tier.shutdown()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
