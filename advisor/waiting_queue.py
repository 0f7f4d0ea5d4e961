"""The requests that wait, each with its match: what of its prompt is in HBM, what can be loaded.

A match is made when a request comes and renewed only after one of its blocks left a tier or the
first past it came, so that planning a step costs nothing for those that nothing happened to. The
same queue serves the sidecar (residency from its inventory), an engine's hook (from the engine's
own maps) and the simulator (from its cache). What earlier requests bring is read from
`TransientBlocks`, which the host keeps: tell the queue with `follow` when one of those has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvready.advisor.strata import Plan, Waiting
from kvready.advisor.transient import TransientBlocks

MAX_WATCHED_BLOCKS = 1 << 20  # distinct; matches of requests beyond it stay as they came
STRIDE = 64  # blocks looked up at a time: mostly a match grows by a chunk
SPARE_PLACES = 1_024  # of blocks that nobody waits for any more, before a family is cleaned


class Match(NamedTuple):
    """How many blocks of a chain, without a gap from its start, are there."""

    hbm_blocks: int
    held_blocks: int  # in any tier


HBM, ANY_TIER = 0, 1  # the fields of a match

Residency = Callable[[Sequence[int]], Match]


class _Family:
    """Requests whose prompts begin with the same block. A hash has one depth in all of them."""

    __slots__ = ("depth", "members")

    def __init__(self) -> None:
        self.depth: dict[int, int] = {}
        self.members: dict[str, _Entry] = {}


class _Entry:
    """One waiting request."""

    __slots__ = (
        "awaited_end",
        "awaited_from",
        "chain",
        "family",
        "hbm_blocks",
        "held_blocks",
        "held_since",
        "is_stale",
        "number",
        "prompt_tokens",
        "waiting",
    )

    def __init__(self, number: int, request_id: str, prompt_tokens: int, chain: Sequence[int]):
        self.number = number  # in order of arrival
        self.prompt_tokens = prompt_tokens
        self.chain = chain  # the blocks that can be found
        self.hbm_blocks = self.held_blocks = 0
        self.awaited_from = self.awaited_end = 0  # the blocks that others bring
        self.held_since: float | None = None
        self.is_stale = True
        self.family: _Family | None = None
        self.waiting = Waiting(request_id, max(1, prompt_tokens))


class WaitingQueue:
    """In the order in which Strata scans it: of arrival, but the deferred come first."""

    def __init__(self, residency: Residency, transient: TransientBlocks, block_tokens: int) -> None:
        self.unwatched = 0  # requests whose match no event renews, for the bound
        self._residency = residency
        self._transient = transient
        self.block_tokens = block_tokens
        self._entries: dict[str, _Entry] = {}
        self._order: list[Waiting] = []
        self._families: dict[int, _Family] = {}
        self._watched: dict[int, _Family] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def arrive(
        self, request_id: str, prompt_tokens: int, chain: Sequence[int], *, first: bool = False
    ) -> None:
        """A request waits; `first`: it was preempted and goes before the others."""
        if request_id in self._entries:
            return
        # One token is always computed, so a prompt can never be found whole.
        findable = chain[: max(0, prompt_tokens - 1) // self.block_tokens]
        self._arrivals += 1
        entry = _Entry(self._arrivals, request_id, prompt_tokens, findable)
        self._entries[request_id] = entry
        self._order.insert(0 if first else len(self._order), entry.waiting)
        self._watch(request_id, entry)
        self._refresh(entry)
        self._find_leader(entry)
        self._say(entry)

    def leave(self, request_id: str) -> None:
        """It runs now, or ended."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        self._order.remove(entry.waiting)
        family = entry.family
        if family is None:
            return
        del family.members[request_id]
        if not family.members:
            del self._families[entry.chain[0]]
            self._forget(family.depth)
        elif len(family.depth) > SPARE_PLACES + 2 * _blocks(family):
            self._clean(family)

    def stored(self, block_hashes: Iterable[int]) -> None:
        """These came into some tier."""
        for family, places in self._touched(block_hashes):
            for entry in family.members.values():
                _renew(entry, places)

    def removed(self, block_hashes: Iterable[int]) -> None:
        """These left some tier."""
        for family, places in self._touched(block_hashes):
            for entry in family.members.values():
                _shorten(entry, places)

    def renew_all(self) -> None:
        """Too much changed to name it: a tier was cleared, or events were lost."""
        for entry in self._entries.values():
            entry.hbm_blocks = entry.held_blocks = 0
            entry.is_stale = True

    def follow(self, leader: str) -> None:
        """A request that others waited for has completed, or ended: find who leads them now."""
        for entry in self._entries.values():
            if entry.waiting.leader == leader:
                self._refresh(entry)
                self._find_leader(entry)
                self._say(entry)

    def waiting(self, now_seconds: float) -> list[Waiting]:
        """All of them, as they stand; to be read, and not kept past the next change."""
        for entry in self._entries.values():
            self._bring_up_to_date(entry, now_seconds)
        return list(self._order)

    def these(self, request_ids: Iterable[str], now_seconds: float) -> list[Waiting]:
        """Those of the named that wait, in the order named."""
        found = [entry for name in request_ids if (entry := self._entries.get(name)) is not None]
        for entry in found:
            self._bring_up_to_date(entry, now_seconds)
        return [entry.waiting for entry in found]

    def settle(self, plan: Plan, now_seconds: float) -> None:
        """A round was planned so: the deferred come first, and who was passed over is held."""
        deferred = set(plan.deferred)
        self._order.sort(key=lambda waiting: waiting.request_id not in deferred)
        admitted = {admission.request_id for admission in plan.admitted}
        numbers = [self._entries[name].number for name in admitted if name in self._entries]
        latest = max(numbers, default=0)
        for name, entry in self._entries.items():
            passed = name in deferred or (entry.number < latest and name not in admitted)
            if passed and entry.held_since is None:
                entry.held_since = now_seconds

    def _bring_up_to_date(self, entry: _Entry, now_seconds: float) -> None:
        if entry.is_stale:
            self._refresh(entry)
        if entry.held_since is not None:
            entry.waiting.held_seconds = now_seconds - entry.held_since

    def _refresh(self, entry: _Entry) -> None:
        """Match on from where nothing changed, and say what follows from it."""
        entry.hbm_blocks = self._extend(entry.chain, entry.hbm_blocks, HBM)
        held_blocks = max(entry.held_blocks, entry.hbm_blocks)
        entry.held_blocks = self._extend(entry.chain, held_blocks, ANY_TIER)
        entry.is_stale = False
        if entry.held_blocks < entry.awaited_from:
            self._find_leader(entry)
        self._say(entry)

    def _extend(self, chain: Sequence[int], end: int, which: int) -> int:
        """Where a match that reaches this far ends now."""
        while stretch := chain[end : end + STRIDE]:
            found = self._residency(stretch)[which]
            end += found
            if found < len(stretch):
                break
        return end

    def _find_leader(self, entry: _Entry) -> None:
        start = entry.held_blocks
        request_id = entry.waiting.request_id
        awaited = self._transient.awaited(entry.chain, start, len(entry.chain), request_id)
        entry.awaited_from, entry.awaited_end = start, start + awaited.blocks
        entry.waiting.leader = awaited.leader

    def _say(self, entry: _Entry) -> None:
        """What the planner reads."""
        size, waiting = self.block_tokens, entry.waiting
        waiting.context_tokens = entry.held_blocks * size
        waiting.compute_tokens = max(1, entry.prompt_tokens - waiting.context_tokens)
        waiting.load_hashes = entry.chain[entry.hbm_blocks : entry.held_blocks]
        waiting.load_tokens = len(waiting.load_hashes) * size
        waiting.awaited_tokens = max(0, entry.awaited_end - entry.held_blocks) * size
        waiting.blocks_needed = -(-entry.prompt_tokens // size) - entry.hbm_blocks

    def _touched(
        self, block_hashes: Iterable[int]
    ) -> Iterable[tuple[_Family, list[tuple[int, int]]]]:
        """The families of these blocks, each with their places in order of depth."""
        watched = self._watched
        touched: dict[_Family, list[tuple[int, int]]] = {}
        for block_hash in block_hashes:
            family = watched.get(block_hash)
            if family is not None:
                touched.setdefault(family, []).append((family.depth[block_hash], block_hash))
        for places in touched.values():
            places.sort()
        return touched.items()

    def _watch(self, request_id: str, entry: _Entry) -> None:
        chain = entry.chain
        if not chain:
            return
        if len(self._watched) + len(chain) > MAX_WATCHED_BLOCKS:
            self.unwatched += 1
            return
        family = entry.family = self._families.setdefault(chain[0], _Family())
        family.members[request_id] = entry
        family.depth.update(zip(chain, range(len(chain)), strict=True))
        self._watched.update(dict.fromkeys(chain, family))

    def _clean(self, family: _Family) -> None:
        """Forget the places of those that left."""
        self._forget(family.depth)
        family.depth = {}
        for entry in family.members.values():
            family.depth.update(zip(entry.chain, range(len(entry.chain)), strict=True))
        self._watched.update(dict.fromkeys(family.depth, family))

    def _forget(self, block_hashes: Iterable[int]) -> None:
        for block_hash in block_hashes:
            del self._watched[block_hash]


def _renew(entry: _Entry, places: Sequence[tuple[int, int]]) -> None:
    """A match grows only by the first block past it, in HBM or in any tier."""
    for depth, block_hash in places:
        if depth > entry.held_blocks:
            return
        if depth in (entry.hbm_blocks, entry.held_blocks) and depth < len(entry.chain):
            entry.is_stale |= entry.chain[depth] == block_hash


def _shorten(entry: _Entry, places: Sequence[tuple[int, int]]) -> None:
    """Take a match back to the first of its blocks that left a tier; another may still hold it."""
    for depth, block_hash in places:
        if depth >= entry.held_blocks:
            return
        if entry.chain[depth] == block_hash:
            entry.hbm_blocks = min(entry.hbm_blocks, depth)
            entry.held_blocks = depth
            entry.is_stale = True
            return


def _blocks(family: _Family) -> int:
    return sum(len(entry.chain) for entry in family.members.values())
