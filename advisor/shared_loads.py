"""What of a load a batch brings already: chains of block hashes that share their beginnings.

A block's hash names all that lies before it, so two loads share blocks exactly when they begin with
the same one, and then up to where they part. Kept as a radix tree over the chains themselves: no
hash is copied, and a chain is compared by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_Edge = tuple[Sequence[int], int]  # a chain that no branch leaves before this position


class Parting(NamedTuple):
    """Where a chain leaves what the batch brings."""

    edge_hash: int | None  # the edge on which it does
    shared_blocks: int


NOTHING_SHARED = Parting(None, 0)


class SharedLoads:
    """The union of a batch's loads. A chain's position counts from its first block to load."""

    def __init__(self) -> None:
        self._edges: dict[int, _Edge] = {}  # by the first hash of each

    def parting(self, chain: Sequence[int]) -> Parting:
        """How far a load is shared."""
        length = len(chain)
        if not length or (edge := self._edges.get(chain[0])) is None:
            return NOTHING_SHARED
        position = 0
        while True:
            edge_hash = chain[position]
            on_edge, end = edge
            position = common_blocks(on_edge, chain, position + 1, min(end, length))
            if position < end or position == length:
                return Parting(edge_hash, position)
            following = self._edges.get(chain[position])
            if following is None:
                return Parting(edge_hash, position)
            edge = following

    def add(self, chain: Sequence[int], parting: Parting) -> None:
        """Take in a load whose parting was found in this very state."""
        edge_hash, shared = parting
        if shared == len(chain):
            return
        if edge_hash is not None:
            on_edge, end = self._edges[edge_hash]
            if shared < end:
                self._edges[edge_hash] = (on_edge, shared)
                self._edges[on_edge[shared]] = (on_edge, end)
        self._edges[chain[shared]] = (chain, len(chain))


def common_blocks(one: Sequence[int], other: Sequence[int], low: int, high: int) -> int:
    """The first position in [low, high] from which two chains differ; they are equal before low.

    Sought from the end in growing strides: questions about a document differ in their last blocks.
    """
    stride = 1
    while low < high:
        probe = high - stride
        if probe < low:
            probe = low
        if one[probe] == other[probe]:
            low = probe + 1
            break
        high = probe
        stride += stride
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low
