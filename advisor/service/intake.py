"""The bounded queue between the taps' threads and the one thread that ingests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvready.collectors.records import AnyRecord

MAX_QUEUED_RECORDS = 262_144


class Shed(NamedTuple):
    """In the place of a tap's records that found the queue full."""

    records: int


Received = tuple[AnyRecord | Shed, float, str]  # record, reception (monotonic seconds), tap


class Intake:
    """Takes records from any thread without ever blocking it; one thread drains.

    A full queue drops what comes and counts it by tap: an engine must never be held up. Whoever
    drains learns of it in the order of that tap's records, since what is lost taints what came
    before it and nothing that comes after.
    """

    def __init__(self, taps: Iterable[str], limit: int = MAX_QUEUED_RECORDS) -> None:
        self.dropped: dict[str, int] = dict.fromkeys(taps, 0)
        self.lag_seconds = 0.0
        self._marked: dict[str, int] = dict(self.dropped)  # by the taps' threads
        self._told: dict[str, int] = dict(self.dropped)  # by the thread that drains
        self._limit = limit
        # Appends and pops of a deque are atomic, so that no lock is taken per record.
        self._queue: deque[Received] = deque()
        self._something = threading.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        """Queue one record, or count it as dropped. Each tap calls from one thread."""
        dropped = self.dropped.get(tap, 0)
        if len(self._queue) >= self._limit:
            self.dropped[tap] = dropped + 1
            self._something.set()
            return
        if dropped > self._marked.get(tap, 0):
            self._marked[tap] = dropped
            self._queue.append((Shed(dropped), received_seconds, tap))
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

    def drain(self, limit: int, now_seconds: float) -> Iterator[Received]:
        """At most `limit` queued records, oldest first, and what was shed between or after them."""
        shed_so_far = dict(self.dropped)  # all that is queued now is older than the last of these
        for _ in range(limit):
            try:
                record, received_seconds, tap = self._queue.popleft()
            except IndexError:
                for tap, count in shed_so_far.items():
                    yield from self._shed(tap, count, now_seconds)
                return
            if isinstance(record, Shed):
                yield from self._shed(tap, record.records, received_seconds)
            else:
                yield record, received_seconds, tap

    def _shed(self, tap: str, count: int, seconds: float) -> Iterator[Received]:
        fresh = count - self._told.get(tap, 0)
        if fresh > 0:
            self._told[tap] = count
            yield Shed(fresh), seconds, tap
