"""One tier of a simulated cache: blocks in order of use, and those that somebody holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile


class Tier:
    """So many blocks. Who is held is never evicted; of the others the least recently used is."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.holds: dict[int, int] = {}  # how many hold it
        self.idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self.blocks: set[int] = set()  # both

    def __contains__(self, block: int) -> bool:
        return block in self.blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def leading(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Of a chain, those before the first that is not here."""
        return tuple(takewhile(self.blocks.__contains__, blocks))

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep resident blocks, or bring in new ones, until released."""
        holds, idle = self.holds, self.idle
        self.blocks.update(blocks)
        for block in blocks:
            if block in holds:
                holds[block] += 1
            else:
                idle.pop(block, None)
                holds[block] = 1

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a chain. Its end is evicted before its beginning: a chain without one is
        worth nothing."""
        holds, idle = self.holds, self.idle
        for block in reversed(blocks):
            count = holds[block]
            if count == 1:
                del holds[block]
                idle[block] = None
            else:
                holds[block] = count - 1

    def use(self, blocks: Sequence[int]) -> None:
        """They are the most recently used, a chain's beginning last."""
        idle = self.idle
        for block in reversed(blocks):
            if block in idle:
                idle.move_to_end(block)

    def put(self, blocks: Sequence[int]) -> list[int]:
        """Bring in a chain that nobody holds; returns what that evicted, oldest first."""
        holds, idle = self.holds, self.idle
        for block in reversed(blocks):
            if block in idle:
                idle.move_to_end(block)
            elif block not in holds:
                idle[block] = None
        self.blocks.update(blocks)
        return self.evict(len(self.blocks) - self.capacity_blocks)

    def evict(self, count: int) -> list[int]:
        """So many of those that nobody holds, or all of these; oldest first."""
        idle = self.idle
        evicted = [idle.popitem(last=False)[0] for _ in range(min(count, len(idle)))]
        self.blocks.difference_update(evicted)
        return evicted
