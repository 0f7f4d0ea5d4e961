"""Jobs of a disk tier: groups of slot transfers that are ordered and answered together."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kvready.kernels.disk import DiskFile, DiskQueue, Transferred
from kvready.kernels.errors import KernelError

logger = logging.getLogger(__name__)

WRITE_SHARE = 4  # of the depth that reads get one in four goes to writes: a fetch is waited for


class Transfer(NamedTuple):
    """One slot's way to or from memory. `memory` must stay until the job is done."""

    key: bytes
    slot: int
    memory: memoryview


class DoneJob(NamedTuple):
    """A finished job; seconds of CLOCK_MONOTONIC, None where not a byte moved."""

    job: int
    is_fetch: bool
    good: tuple[bytes, ...]
    bad: tuple[bytes, ...]
    payload_bytes: int
    started_seconds: float | None
    ready_seconds: float


@dataclass
class _Open:
    is_fetch: bool
    on_started: Callable[[float], None]
    left: int
    good: list[bytes] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)
    payload_bytes: int = 0
    started_seconds: float | None = None


class DiskJobs:
    """Submitting returns at once; `take_finished` never waits.

    Bounded by whoever submits: a job names memory that is held for it.
    """

    def __init__(self, file: DiskFile, depth: int) -> None:
        self._reads = DiskQueue(file, depth)
        self._writes = DiskQueue(file, max(1, depth // WRITE_SHARE))
        self._changed = threading.Condition()
        self._open: dict[int, _Open] = {}
        self._finished: deque[DoneJob] = deque()
        self.failed_transfers = 0

    def fetch(
        self, job: int, transfers: Sequence[Transfer], on_started: Callable[[float], None]
    ) -> None:
        """Read slots into memory."""
        self._submit(job, True, transfers, on_started)

    def store(
        self, job: int, transfers: Sequence[Transfer], on_started: Callable[[float], None]
    ) -> None:
        """Write memory into slots."""
        self._submit(job, False, transfers, on_started)

    def take_finished(self) -> list[DoneJob]:
        """Jobs that ended since the last call."""
        with self._changed:
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def wait_idle(self) -> None:
        """Until nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def close(self) -> None:
        """Finish what is queued and end the threads. Safe twice."""
        self._reads.close()
        self._writes.close()

    def _submit(
        self,
        job: int,
        is_fetch: bool,
        transfers: Sequence[Transfer],
        on_started: Callable[[float], None],
    ) -> None:
        opened = _Open(is_fetch, on_started, len(transfers))
        with self._changed:
            self._open[job] = opened
            if not transfers:
                self._end(job, opened, time.monotonic())
        order = self._reads.read if is_fetch else self._writes.write
        for transfer in transfers:
            try:
                queued = order(transfer.slot, transfer.memory)
            except KernelError as error:
                self._note(job, transfer.key, None, error)
                continue
            queued.add_done_callback(partial(self._transferred, job, transfer.key))

    def _transferred(self, job: int, key: bytes, done: Future[Transferred]) -> None:
        error = done.exception()
        self._note(job, key, None if error else done.result(), error)

    def _note(
        self, job: int, key: bytes, moved: Transferred | None, error: BaseException | None
    ) -> None:
        """One transfer of a job is over, on whichever thread made it."""
        now = time.monotonic()
        with self._changed:
            opened = self._open[job]
            opened.left -= 1
            if moved is None:
                self._count(error)
                opened.bad.append(key)
            else:
                opened.good.append(key)
                opened.payload_bytes += moved.payload_bytes
                began = moved.started_seconds
                if opened.started_seconds is None or began < opened.started_seconds:
                    if opened.started_seconds is None:
                        opened.on_started(began)
                    opened.started_seconds = began
            if not opened.left:
                self._end(job, opened, moved.ready_seconds if moved else now)

    def _end(self, job: int, opened: _Open, ready_seconds: float) -> None:
        del self._open[job]
        self._finished.append(
            DoneJob(
                job,
                opened.is_fetch,
                tuple(opened.good),
                tuple(opened.bad),
                opened.payload_bytes,
                opened.started_seconds,
                ready_seconds,
            )
        )
        self._changed.notify_all()

    def _count(self, error: BaseException | None) -> None:
        self.failed_transfers += 1
        if self.failed_transfers == 1:
            logger.warning("the disk tier failed a transfer (%s); further ones are counted", error)
