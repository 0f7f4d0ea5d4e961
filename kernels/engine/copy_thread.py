"""One direction of a mover: jobs in order, copied on a thread of its own, collected by polling."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvready.kernels.engine.transfer_observer import TransferObserver

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 10.0  # a drain slower than this is abandoned: the engine is going away


class Copied(NamedTuple):
    """What a copy moved, and how. `mismatched` is None unless the bytes were checked."""

    payload_bytes: int
    fragments: int
    method: str
    mismatched: bool | None = None


class DoneJob(NamedTuple):
    """A finished job with its times, in seconds of CLOCK_MONOTONIC."""

    job: int
    failed: bool
    payload_bytes: int
    started_seconds: float
    ready_seconds: float


Copy = Callable[[], Copied]


class CopyThread:
    """Copies jobs one after another. `submit` returns at once; `take_finished` never waits.

    Bounded by the engine: it submits a job only for blocks that it holds.
    """

    def __init__(
        self,
        is_load: bool,
        observer: TransferObserver | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._is_load = is_load
        self._observer = observer
        self._prepare = prepare
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, Copy]] = deque()
        self._open: set[int] = set()  # submitted, not yet copied
        self._finished: deque[DoneJob] = deque()
        self._stopping = False
        self.observer_failures = 0
        self._thread = threading.Thread(
            target=self._run, daemon=True, name="load-copies" if is_load else "store-copies"
        )
        self._thread.start()

    def submit(self, job: int, copy: Copy) -> None:
        """Queue a copy behind the ones before it."""
        with self._changed:
            if self._stopping:
                raise RuntimeError("the host tier is shut down and takes no more copies")
            self._open.add(job)
            self._queue.append((job, copy))
            self._changed.notify_all()

    def take_finished(self) -> list[DoneJob]:
        """Jobs that ended since the last call."""
        with self._changed:
            done = list(self._finished)
            self._finished.clear()
        return done

    def wait(self, jobs: Iterable[int]) -> None:
        """Block until none of these jobs is open; jobs never submitted are not waited for."""
        wanted = set(jobs)
        with self._changed:
            self._changed.wait_for(lambda: not (wanted & self._open))

    def shutdown(self) -> None:
        """Finish what was submitted and end the thread. Safe twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(SHUTDOWN_SECONDS)
        if self._thread.is_alive():
            logger.warning("copies still run after %.0f s; leaving them", SHUTDOWN_SECONDS)

    def _run(self) -> None:
        if self._prepare is not None:
            self._prepare()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                job, copy = self._queue.popleft()
            done = self._copy(job, copy)
            with self._changed:
                self._finished.append(done)
                self._open.discard(job)
                self._changed.notify_all()

    def _copy(self, job: int, copy: Copy) -> DoneJob:
        started = time.monotonic()
        self._tell_started(job, started)
        try:
            moved = copy()
        except Exception:
            # The engine must hear of it through its own channel: it decides what a lost copy means.
            logger.exception("copy %d failed", job)
            return DoneJob(job, True, 0, started, time.monotonic())
        ready = time.monotonic()
        self._tell_finished(job, started, ready, moved)
        return DoneJob(job, False, moved.payload_bytes, started, ready)

    def _tell_started(self, job: int, started: float) -> None:
        if self._observer is None:
            return
        try:
            self._observer.started(job, self._is_load, started)
        except Exception:  # noqa: BLE001 - an observer may not stop a copy
            self._count_failure()

    def _tell_finished(self, job: int, started: float, ready: float, moved: Copied) -> None:
        if self._observer is None:
            return
        try:
            if moved.mismatched is not None:
                self._observer.checked(job, self._is_load, moved.mismatched)
            self._observer.finished(
                job,
                self._is_load,
                started,
                ready,
                moved.payload_bytes,
                moved.fragments,
                moved.method,
            )
        except Exception:  # noqa: BLE001 - an observer may not stop a copy
            self._count_failure()

    def _count_failure(self) -> None:
        """An observer's trouble is its own: counted, said once, never the copy's."""
        self.observer_failures += 1
        if self.observer_failures == 1:
            logger.exception("the transfer observer failed; copies go on")


def widen_affinity() -> None:
    """Let this thread run where the parent process may, not only on the core that computes.

    A CPU engine pins its worker to the cores it computes on, and threads inherit that; a copy
    engine beside the compute cores is what is being stood in for.
    """
    try:
        allowed = os.sched_getaffinity(0) | os.sched_getaffinity(os.getppid())
        os.sched_setaffinity(0, allowed)
    except OSError as error:
        logger.warning("copies stay on the compute cores (%s)", error)
