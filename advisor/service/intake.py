"""The bounded queue between the taps' threads and the one thread that ingests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from kvready.collectors.records import AnyRecord

MAX_QUEUED_RECORDS = 262_144

Received = tuple[AnyRecord, float, str]  # record, reception (monotonic seconds), tap


class Intake:
    """Takes records from any thread without ever blocking it; one thread drains.

    A full queue drops what comes and counts it by tap: an engine must never be held up.
    """

    def __init__(self, taps: Iterable[str], limit: int = MAX_QUEUED_RECORDS) -> None:
        self.dropped: dict[str, int] = dict.fromkeys(taps, 0)
        self.lag_seconds = 0.0
        self._told: dict[str, int] = dict(self.dropped)
        self._limit = limit
        # Appends and pops of a deque are atomic, so that no lock is taken per record.
        self._queue: deque[Received] = deque()
        self._something = threading.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        """Queue one record, or count it as dropped. Each tap calls from one thread."""
        if len(self._queue) >= self._limit:
            self.dropped[tap] = self.dropped.get(tap, 0) + 1
            return
        self._queue.append((record, received_seconds, tap))
        if not self._something.is_set():
            self._something.set()

    def wake(self) -> None:
        """End a `wait` early."""
        self._something.set()

    def wait(self, timeout_seconds: float) -> None:
        """Return once something is queued, `wake` was called, or the time is over."""
        self._something.wait(timeout_seconds)
        # Cleared before the queue is looked at: what arrives from here on sets it again.
        self._something.clear()

    def drain(self, limit: int) -> Iterator[Received]:
        """At most `limit` queued records, oldest first."""
        for _ in range(limit):
            try:
                yield self._queue.popleft()
            except IndexError:
                return

    def new_drops(self) -> dict[str, int]:
        """Drops by tap since the last call."""
        fresh = {
            tap: count - self._told.get(tap, 0)
            for tap, count in dict(self.dropped).items()
            if count > self._told.get(tap, 0)
        }
        for tap, count in fresh.items():
            self._told[tap] = self._told.get(tap, 0) + count
        return fresh
