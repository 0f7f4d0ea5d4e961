"""Blocks that do not exist yet: who computes them, or will.

Strata's transient nodes. A request that waits promises the blocks it will compute (`in_queue`); in
a batch it is computing them (`in_flight`); once computed they are ordinary blocks and nothing is
kept of them here. The first promise stands. If who made it ends without keeping it, each of its
blocks falls to the next earliest request that brings it, or to nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

MAX_TRANSIENT_BLOCKS = 1 << 20


class Mark(StrEnum):
    """How far a promise is on its way."""

    IN_QUEUE = "in_queue"
    IN_FLIGHT = "in_flight"


class Awaited(NamedTuple):
    """What earlier requests bring of a chain, past what is there."""

    blocks: int
    first_leader: str  # who brings the first of them; empty: nobody
    leader: str  # who brings the last


NOBODY = Awaited(0, "", "")


class _Claim(NamedTuple):
    """A stretch of its chain that one request brings."""

    chain: Sequence[int]
    start: int
    end: int


class TransientBlocks:
    """Promised blocks: hash -> the earliest request that brings it."""

    def __init__(self) -> None:
        self._producer: OrderedDict[int, str] = OrderedDict()
        self._claims: OrderedDict[str, _Claim] = OrderedDict()
        self._in_flight: set[str] = set()

    def __len__(self) -> int:
        return len(self._producer)

    def producer(self, block_hash: int) -> str | None:
        """The live request that brings this block, if any."""
        return self._producer.get(block_hash)

    def mark(self, request_id: str) -> Mark:
        """Whether a producer waits still."""
        return Mark.IN_FLIGHT if request_id in self._in_flight else Mark.IN_QUEUE

    def awaited(self, chain: Sequence[int], start: int, end: int, request_id: str) -> Awaited:
        """What others bring of chain[start:end], without a gap from its start."""
        first_leader = leader = ""
        blocks = 0
        for found in map(self._producer.get, islice(chain, start, end)):
            if found is None or found == request_id:
                break
            first_leader, leader = first_leader or found, found
            blocks += 1
        return Awaited(blocks, first_leader, leader) if blocks else NOBODY

    def promise(
        self, chain: Sequence[int], start: int, request_id: str, end: int | None = None
    ) -> None:
        """A request brings chain[start:end]; promised again, the stretch grows."""
        end = len(chain) if end is None else end
        if start >= end:
            return
        keep_first = self._producer.setdefault
        for block_hash in islice(chain, start, end):
            keep_first(block_hash, request_id)
        known = self._claims.get(request_id)
        if known is not None:
            start, end = min(start, known.start), max(end, known.end)
        self._claims[request_id] = _Claim(chain, start, end)
        while len(self._producer) > MAX_TRANSIENT_BLOCKS:
            self._producer.popitem(last=False)

    def dispatch(self, request_id: str) -> None:
        """It is in a batch."""
        if request_id in self._claims:
            self._in_flight.add(request_id)

    def requeue(self, request_id: str) -> None:
        """It was preempted."""
        self._in_flight.discard(request_id)

    def complete(self, request_id: str) -> None:
        """It computed what it promised."""
        for _ in self._drop(request_id):
            pass

    def abort(self, request_id: str) -> None:
        """It never will: each block falls to the next earliest that brings it."""
        claim = self._claims.get(request_id)
        released = set(self._drop(request_id))
        if claim is None or not released:
            return
        for heir, other in self._claims.items():
            start = max(claim.start, other.start)
            end = min(claim.end, other.end)
            if start >= end or other.chain[start] != claim.chain[start]:
                continue
            for block_hash in islice(other.chain, start, end):
                if block_hash in released:
                    self._producer.setdefault(block_hash, heir)

    def clear(self) -> None:
        """The engine restarted."""
        self._producer.clear()
        self._claims.clear()
        self._in_flight.clear()

    def _drop(self, request_id: str) -> Iterator[int]:
        self._in_flight.discard(request_id)
        claim = self._claims.pop(request_id, None)
        if claim is None:
            return
        for block_hash in islice(claim.chain, claim.start, claim.end):
            if self._producer.get(block_hash) == request_id:
                del self._producer[block_hash]
                yield block_hash
