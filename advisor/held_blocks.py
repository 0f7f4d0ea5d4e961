"""Which blocks requests hold in HBM: a hit on one takes none, on an idle one takes it from free.

An engine counts cached blocks that nobody holds as free. A holder holds a prefix of its chain, so
that along any chain the held blocks come first: counts are found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


class HeldBlocks:
    """How many requests hold each block, by chained hash."""

    def __init__(self) -> None:
        self._holders: Counter[int] = Counter()
        self._chains: dict[str, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def hold(self, request_id: str, block_hashes: Sequence[int]) -> None:
        """A request holds its prompt's blocks from now on; once, however often it is told."""
        if request_id not in self._chains:
            self._chains[request_id] = block_hashes
            self._holders.update(block_hashes)

    def release(self, request_id: str) -> None:
        """It holds nothing any more."""
        for block_hash in self._chains.pop(request_id, ()):
            left = self._holders[block_hash] - 1
            if left:
                self._holders[block_hash] = left
            else:
                del self._holders[block_hash]

    def clear(self) -> None:
        """The engine restarted."""
        self._holders.clear()
        self._chains.clear()

    def held(self, block_hashes: Sequence[int], end: int, by: int = 1) -> int:
        """How many of the first `end` blocks of a chain at least `by` requests hold."""
        last = max(0, min(end, len(block_hashes)))  # -1 would mean all to bisect
        holders = self._holders
        return bisect_left(
            block_hashes, True, hi=last, key=lambda block: holders.get(block, 0) < by
        )
