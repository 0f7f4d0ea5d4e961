"""What copies came to: bandwidth by size, alone and contended, cost by mover, order to usable.

Plain sums over all ranks. Only copies whose start was told have a time of their own; the others
are counted apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from enum import StrEnum

from kvready.advisor.distribution import COPY_BUCKETS, Distribution
from kvready.advisor.requests import Copy
from kvready.collectors.records import CopyMethod, LoadFinished, Tier

SIZE_BOUNDS = (1 << 20, 8 << 20, 64 << 20, 512 << 20)  # payload bytes


class CopyPath(StrEnum):
    """What a copy is for, by where it goes."""

    LOAD = "load"  # into HBM
    FETCH = "fetch"  # into host memory, from below it
    BACKUP = "backup"  # out of HBM
    SPILL = "spill"  # out of host memory, to below it
    OTHER = "other"


class CopySize(StrEnum):
    """Payload of one copy."""

    BELOW_1_MIB = "below_1mib"
    BELOW_8_MIB = "below_8mib"
    BELOW_64_MIB = "below_64mib"
    BELOW_512_MIB = "below_512mib"
    FROM_512_MIB = "from_512mib"


class Beside(StrEnum):
    """What else went on while a copy was under way."""

    NOTHING = "nothing"
    COMPUTE = "compute"  # a batch ran when it was ordered
    COPIES = "copies"  # a copy of another direction shared its link, with or without a batch


SIZES = tuple(CopySize)
AWAITED = (CopyPath.LOAD, CopyPath.FETCH)  # what requests wait for


def path_of(source: Tier, destination: Tier) -> CopyPath:
    """The path between two tiers."""
    if destination is Tier.HBM:
        return CopyPath.LOAD
    if source is Tier.HBM:
        return CopyPath.BACKUP
    if source is destination:
        return CopyPath.OTHER
    if destination is Tier.HOST:
        return CopyPath.FETCH
    return CopyPath.SPILL if source is Tier.HOST else CopyPath.OTHER


def size_of(payload_bytes: int) -> CopySize:
    """The bin of a payload."""
    return SIZES[bisect_right(SIZE_BOUNDS, payload_bytes)]


class CopyAccount:
    """Fed with each copy as it ends."""

    def __init__(self) -> None:
        self.transfer_bytes: Counter[tuple[CopyPath, CopySize, Beside]] = Counter()
        self.transfer_seconds: dict[tuple[CopyPath, CopySize, Beside], float] = {}
        self.mover_fragments: Counter[tuple[CopyPath, CopyMethod | None]] = Counter()
        self.mover_bytes: Counter[tuple[CopyPath, CopyMethod | None]] = Counter()
        self.mover_seconds: dict[tuple[CopyPath, CopyMethod | None], float] = {}
        self.untimed: Counter[CopyPath] = Counter()
        self.usable = {path: Distribution(COPY_BUCKETS) for path in AWAITED}  # since ordered
        self.start_wait_seconds = dict.fromkeys(AWAITED, 0.0)  # of that, before the mover began

    def finish(self, copy: Copy, record: LoadFinished, shared_ratio: float | None) -> None:
        """A copy is usable. `shared_ratio`: of its time, with copies of other directions beside
        it on its link; None where its start was not told."""
        decided, ready = copy.decided, copy.ready_seconds
        assert ready is not None
        path = path_of(decided.source, decided.destination)
        awaited = path in AWAITED
        if awaited:
            whole_seconds = max(0.0, ready - decided.decided_seconds)
            self.usable[path].add(whole_seconds, decided.request_id, ready)
        if copy.started_seconds is None or shared_ratio is None:
            self.untimed[path] += 1
            return
        seconds = max(0.0, ready - copy.started_seconds)
        if awaited:
            waited = max(0.0, copy.started_seconds - decided.decided_seconds)
            self.start_wait_seconds[path] += waited
        size = record.payload_bytes or decided.payload_bytes
        cell = path, size_of(size), _beside(copy, shared_ratio)
        self.transfer_bytes[cell] += size
        self.transfer_seconds[cell] = self.transfer_seconds.get(cell, 0.0) + seconds
        mover = path, record.method
        self.mover_fragments[mover] += record.fragments or decided.fragments
        self.mover_bytes[mover] += size
        self.mover_seconds[mover] = self.mover_seconds.get(mover, 0.0) + seconds


def _beside(copy: Copy, shared_ratio: float) -> Beside:
    if shared_ratio > 0.0:
        return Beside.COPIES
    return Beside.COMPUTE if copy.step_seconds > 0.0 else Beside.NOTHING
