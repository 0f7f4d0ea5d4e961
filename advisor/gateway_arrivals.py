"""What a gateway told of requests before their engine knew them, joined by name. Pure.

A hold in front of the engine is invisible in what the engine says: its clock of a request begins
when the hold is over. So where a gateway told of an arrival, waits and time to first token count
from there, and the gateway's prefix group, by which it drew whom to hold, is the request's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from enum import StrEnum

import msgspec

from kvready.collectors.records import (
    DeferReason,
    Observed,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    Surface,
)
from kvready.collectors.request_ids import reported_id


class Told(StrEnum):
    """What became of requests that a gateway told of. A held one is also something else."""

    JOINED = "joined"
    HELD = "held"
    LEFT_HELD = "left_held"  # their client left while they were held
    LOST = "lost"  # forgotten at the bound, or of one name with another


MAX_AWAITED = 16_384  # the oldest is forgotten, counted


class Upstream(msgspec.Struct):
    """One request as its gateway saw it."""

    arrived_seconds: float
    group: int | None  # the key of its prefix's beginning, in the gateway's own terms
    was_held: bool = False


class GatewayArrivals:
    """Requests that a gateway has, and that no scheduler has shown yet."""

    def __init__(self) -> None:
        self.counts: Counter[Told] = Counter()
        self._awaited: OrderedDict[str, Upstream] = OrderedDict()

    def __len__(self) -> int:
        return len(self._awaited)

    def take(self, record: Observed) -> bool:
        """Whether a record was a gateway's, and needs no more looking at."""
        match record:
            case RequestArrived(surface=Surface.GATEWAY):
                self._arrived(record)
                return True
            case RequestDeferred(reason=DeferReason.HOLD):
                found = self._awaited.get(record.request_id)
                if found is not None and not found.was_held:
                    found.was_held = True
                    self.counts[Told.HELD] += 1
                return found is not None
            case RequestFinished():
                found = self._awaited.pop(record.request_id, None)
                self.counts[Told.LEFT_HELD] += found is not None and found.was_held
                return found is not None
            case _:
                return False

    def join(self, scheduler_id: str) -> Upstream | None:
        """What the gateway told of a request that has reached the scheduler; once."""
        found = self._awaited.pop(reported_id(scheduler_id), None)
        self.counts[Told.JOINED] += found is not None
        return found

    def _arrived(self, record: RequestArrived) -> None:
        if self._awaited.pop(record.request_id, None) is not None:
            self.counts[Told.LOST] += 2  # which of the two an engine's request is, nobody can say
            return
        group = record.block_hashes[0] if record.block_hashes else None
        self._awaited[record.request_id] = Upstream(record.arrived_seconds, group)
        if len(self._awaited) > MAX_AWAITED:
            self._awaited.popitem(last=False)
            self.counts[Told.LOST] += 1
