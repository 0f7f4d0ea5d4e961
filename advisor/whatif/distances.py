"""How far apart the uses of a prefix lie, and what a cache of a given size could have hit.

A request touches its blocks from the last to the first, so that under LRU a prefix outlives what
continues it. Along a chain the last use then never grows younger, which is what keeps all this at
one tree look-up a request and a step a block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain

from kvready.advisor.whatif.workload import Workload


class LastUses:
    """Which request used each block last; counts the blocks whose last use is recent.

    A Fenwick tree over requests: `touch` and `since` cost its logarithm.
    """

    def __init__(self, requests: int) -> None:
        self._last: dict[int, int] = {}
        self._tree = [0] * (requests + 1)
        self._blocks = 0

    def of(self, block: int) -> int:
        """The request that used the block last; -1: none did."""
        return self._last.get(block, -1)

    def since(self, request: int) -> int:
        """Distinct blocks whose last use came after that request."""
        upto, index = 0, request + 1
        while index:
            upto += self._tree[index]
            index &= index - 1
        return self._blocks - upto

    def touch(self, blocks: Sequence[int], request: int) -> None:
        """The request used these, a chain from its start."""
        last = self._last
        moved: dict[int, int] = {}  # few: the requests that used parts of this chain last
        for block in blocks:
            before = last.get(block, -1)
            moved[before] = moved.get(before, 0) + 1
            last[block] = request
        for before, count in moved.items():
            if before >= 0:
                self._add(before, -count)
                self._blocks -= count
        self._add(request, len(blocks))
        self._blocks += len(blocks)

    def _add(self, request: int, count: int) -> None:
        index = request + 1
        while index < len(self._tree):
            self._tree[index] += count
            index += index & -index


def reuse_tokens(
    workload: Workload,
    order: Sequence[int] | None = None,
    aside: Sequence[int] | None = None,
) -> list[int | None]:
    """Distinct tokens of others asked for since each request's longest known prefix was last.

    None: no block of it was asked for before. `order`: the requests' indices as they came, where
    that is not the workload's own (rounds come when the one before has ended). `aside`: each
    request's leading blocks that are nobody's own, such as a system prompt; a request that knows
    no more than these is a first use.
    """
    requests = workload.requests
    uses = LastUses(len(requests))
    reuse: list[int | None] = [None] * len(requests)
    for turn, index in enumerate(range(len(requests)) if order is None else order):
        request = requests[index]
        depth = bisect_left(request.blocks, True, key=lambda block: uses.of(block) < 0)
        if depth > (aside[index] if aside else 0):
            known = uses.of(request.blocks[depth - 1])
            younger = _younger(request.blocks[:depth], known, uses)
            reuse[index] = (uses.since(known) - younger) * workload.block_tokens
        uses.touch((*request.blocks, *request.output_blocks), turn)
    return reuse


def _younger(blocks: Sequence[int], known: int, uses: LastUses) -> int:
    """Leading blocks whose last use came after `known`."""
    # Along a chain last uses fall, so the negated ones rise.
    return bisect_left(blocks, -known, key=lambda block: -uses.of(block))


def block_distances(chains: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """For each request its blocks' LRU stack distances, in blocks; -1: never used before.

    A block of distance d is hit by an LRU cache of more than d blocks.
    """
    uses = LastUses(len(chains))
    for turn, blocks in enumerate(chains):
        found: list[int] = []
        known = -1
        since = alike = 0
        for depth, block in enumerate(blocks):
            last = uses.of(block)
            if last < 0:
                break
            if last != known:
                known, alike, since = last, 0, uses.since(last)
            # Touched after it back then: its ancestors. Before it now: what continues it.
            found.append(since + alike + len(blocks) - depth - 1)
            alike += 1
        yield found + [-1] * (len(blocks) - len(found))
        uses.touch(blocks, turn)


def lru_hit_ratios(workload: Workload, capacities_tokens: Sequence[int]) -> list[float]:
    """Share of prompt tokens that one LRU cache of each capacity would hit, whole blocks only."""
    chains = [request.blocks for request in workload.requests]
    within = [0] * (len(capacities_tokens) + 1)
    limits = sorted(capacity // workload.block_tokens for capacity in capacities_tokens)
    for distance in chain.from_iterable(block_distances(chains)):
        if distance >= 0:
            within[bisect_left(limits, distance + 1)] += 1
    prompts = sum(request.prompt_tokens for request in workload.requests)
    ratio = {
        limit: sum(within[: index + 1]) * workload.block_tokens / max(prompts, 1)
        for index, limit in enumerate(limits)
    }
    return [ratio[capacity // workload.block_tokens] for capacity in capacities_tokens]


def ideal_hit_ratio(workload: Workload) -> float:
    """Share of prompt tokens whose prefix some earlier request asked for, whole blocks only."""
    seen: set[int] = set()
    hits = 0
    for request in workload.requests:
        for block in request.blocks:
            if block not in seen:
                break
            hits += workload.block_tokens
        seen.update(request.blocks)
    return hits / max(sum(request.prompt_tokens for request in workload.requests), 1)
