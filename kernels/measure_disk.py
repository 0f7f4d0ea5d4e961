"""Reads of the disk tier's pages into memory, by page size and reads in flight."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path

import numpy as np

from kvready.kernels.bench import Timing
from kvready.kernels.disk import ALIGNMENT_BYTES, DIRECT, DiskFile, DiskQueue, aligned_buffer
from kvready.kernels.layout import KvLayout
from kvready.kernels.sweep import DISK_LOAD_BYTES, MIB, CurveKey, Shape, disk_shapes

READ = "read"
DEPTHS = (1, 4, 16, 32)
FILE_BYTES = 256 * MIB
WRITTEN_BYTES = 2 * MIB  # per write while the file is made
LARGEST_PAGE_BYTES = 64 * MIB  # a model's page above this is left out


class DiskBench:
    """A file without a name: it is gone with this process, however that ends."""

    def __init__(
        self, folder: Path, shapes: int, seed: int, layout: KvLayout | None = None
    ) -> None:
        """Writes the file. Raises `DiskError` where the folder cannot hold it."""
        self._shapes = disk_shapes(shapes, _page_bytes(layout))
        self._random = np.random.default_rng(seed)
        self._queues: dict[int, DiskQueue] = {}
        self._memory = aligned_buffer(
            max(DISK_LOAD_BYTES, WRITTEN_BYTES, *(shape.payload_bytes for shape in self._shapes))
        )
        self._file = DiskFile(folder, FILE_BYTES // WRITTEN_BYTES, WRITTEN_BYTES)
        try:
            self._write()
        except BaseException:
            self.close()
            raise

    @property
    def curves(self) -> Sequence[CurveKey]:
        """One per number of reads in flight."""
        return [CurveKey("disk", "host", READ, self._file.backend, depth) for depth in DEPTHS]

    def shapes(self, curve: CurveKey) -> Sequence[Shape]:
        """Page sizes; with more reads in flight than pages nothing more would be in flight."""
        return [shape for shape in self._shapes if shape.pages >= min(curve.workers, 4)]

    def time(self, curve: CurveKey, shape: Shape) -> Timing:
        """Read some pages at random places and wait for all of them."""
        page = shape.fragment_bytes
        queue = self._queue(curve.workers)
        self._file.recut(page)
        slots = self._random.choice(self._file.slots, shape.pages, replace=False).tolist()
        with memoryview(self._memory) as memory:
            places = [memory[at * page : (at + 1) * page] for at in range(shape.pages)]
            reads = [queue.read(slot, place) for slot, place in zip(slots, places, strict=True)]
            wait(reads)
            for place in places:
                place.release()
            done = [read.result() for read in reads]
        return Timing(
            min(read.asked_seconds for read in done),
            min(read.started_seconds for read in done),
            max(read.ready_seconds for read in done),
        )

    def conditions(self) -> dict[str, str]:
        """How the file is reached."""
        direct = self._file.backend == DIRECT
        return {
            "disk": "measured" if direct else "measured through the page cache: memory, not disk",
            "disk_direct": "yes" if direct else "no, O_DIRECT was refused",
            "disk_file_bytes": str(FILE_BYTES),
        }

    def close(self) -> None:
        """End threads, give the space back. Safe twice."""
        for queue in self._queues.values():
            queue.close()
        self._file.close()

    def _queue(self, depth: int) -> DiskQueue:
        if depth not in self._queues:
            self._queues[depth] = DiskQueue(self._file, depth)
        return self._queues[depth]

    def _write(self) -> None:
        """Bytes that no disk stores as zeros, from one buffer."""
        with memoryview(self._memory)[:WRITTEN_BYTES] as memory:
            memory[:] = self._random.bytes(WRITTEN_BYTES)
            for slot in range(self._file.slots):
                self._file.write(slot, memory)


def _page_bytes(layout: KvLayout | None) -> int | None:
    """A model's page, in whole blocks of the disk."""
    if layout is None or layout.page_bytes > LARGEST_PAGE_BYTES:
        return None
    return -(-layout.page_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
