"""Ids of whole prefixes: equal ids mean equal tokens from the first one on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from kvready.collectors.errors import WorkloadError

MAX_REQUESTS = 2_000_000
MAX_BLOCK_REFERENCES = 128_000_000  # over all requests: about 1 GiB of them

ROOT = -1


class Chains:
    """Numbers prefixes densely, from 0, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, Hashable], int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, parent: int, names: Iterable[Hashable]) -> tuple[int, ...]:
        """The ids of the prefixes that continue `parent` (`ROOT`: from the start)."""
        ids = self._ids
        chain = []
        for name in names:
            parent = ids.setdefault((parent, name), len(ids))
            chain.append(parent)
        return tuple(chain)


class Allowance:
    """What one workload may hold. Raises `WorkloadError` beyond it."""

    def __init__(self) -> None:
        self._requests = 0
        self._references = 0

    def take(self, blocks: int) -> None:
        """One more request with so many blocks."""
        self._requests += 1
        self._references += blocks
        if self._requests > MAX_REQUESTS or self._references > MAX_BLOCK_REFERENCES:
            raise WorkloadError(
                f"more than {MAX_REQUESTS:,} requests or {MAX_BLOCK_REFERENCES:,} blocks in all do "
                "not fit in one run; read fewer requests, or use larger blocks"
            )
