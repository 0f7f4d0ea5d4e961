"""What a disk tier does, told with the scheduler's own steps.

The tier lives in the scheduler's process and its orders concern requests whose arrival the
scheduler's observer has yet to send, so they wait here for its next step. Named in the engine's
configuration: `"fetch_observer": "kvready.collectors.engine.fetches:observer"`.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from kvready.collectors.engine.publisher import observer_folder
from kvready.collectors.records import AnyRecord, LoadDecided, LoadFinished, LoadStarted, Tier

MAX_WAITING_RECORDS = 4_096  # between two steps
FIRST_LOAD_ID = 1 << 40  # beyond all that a connector counts to: a tier numbers its own


class Taken(NamedTuple):
    """What waited, and how many records found no room."""

    records: list[AnyRecord]
    lost: int


class Fetches:
    """Keeps a disk tier's news until the scheduler's observer takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[AnyRecord] = []
        self._lost = 0

    def decided(
        self,
        job: int,
        request_id: str,
        is_fetch: bool,
        tokens: int,
        payload_bytes: int,
        fragments: int,
        decided_seconds: float,
    ) -> None:
        """A transfer was ordered for a request."""
        source, destination = _tiers(is_fetch)
        self._keep(
            LoadDecided(
                load_id=FIRST_LOAD_ID + job,
                request_id=request_id,
                source=source,
                destination=destination,
                tokens=tokens,
                payload_bytes=payload_bytes,
                fragments=fragments,
                decided_seconds=decided_seconds,
            )
        )

    def started(self, job: int, is_fetch: bool, started_seconds: float) -> None:
        """The disk took it up."""
        source, destination = _tiers(is_fetch)
        self._keep(LoadStarted(FIRST_LOAD_ID + job, source, destination, started_seconds))

    def finished(
        self,
        job: int,
        is_fetch: bool,
        started_seconds: float,
        ready_seconds: float,
        payload_bytes: int,
        fragments: int,
    ) -> None:
        """It became usable at its destination."""
        source, destination = _tiers(is_fetch)
        self._keep(
            LoadFinished(
                load_id=FIRST_LOAD_ID + job,
                source=source,
                destination=destination,
                started_seconds=started_seconds,
                ready_seconds=ready_seconds,
                payload_bytes=payload_bytes,
                fragments=fragments,
            )
        )

    def take(self) -> Taken:
        """All that waits, in order."""
        with self._lock:
            taken = Taken(self._records, self._lost)
            self._records, self._lost = [], 0
        return taken

    def _keep(self, record: AnyRecord) -> None:
        with self._lock:
            if len(self._records) < MAX_WAITING_RECORDS:
                self._records.append(record)
            else:
                self._lost += 1


_by_rank: dict[int, Fetches] = {}  # one engine's scheduler and its tier meet in one process


def observer(rank: int) -> Fetches | None:
    """Where a rank's disk tier tells; None while observing is off."""
    if observer_folder() is None:
        return None
    fetches = _by_rank[rank] = Fetches()
    return fetches


def fetches_of(rank: int) -> Fetches | None:
    """What a rank's disk tier tells; None where there is no such tier."""
    return _by_rank.get(rank)


def _tiers(is_fetch: bool) -> tuple[Tier, Tier]:
    return (Tier.DISK, Tier.HOST) if is_fetch else (Tier.HOST, Tier.DISK)
