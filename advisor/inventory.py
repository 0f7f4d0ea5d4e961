"""Which block is in which tier, kept from records alone.

vLLM's rule (0.32): a hash may name several blocks; each store of it adds one, each removal takes
one, and it can be hit while any is left. One other thing looks like a store: a request that asks
for it has its hit blocks announced again, from position 0. We count so that a block is never
called live that the engine lacks; where two readings are possible the lower count is taken:

* a store from position 0 whose hashes are all live in HBM is read as such a report, not as second
  blocks (counted in `ambiguous_stores`);
* where messages stayed lost, a store from position 0 adds only the hashes that are not live: it may
  be a report that names blocks whose stores were lost;
* a lower tier holds a chunk once, so one hash stored again there is the same chunk; only chunks of
  several hashes, which may share some, add up.

Each (publisher, rank, group) has one dict, hash -> counts by tier packed into one small integer:
16 bits a tier, HBM lowest. One lookup then tells every tier a block is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from itertools import takewhile

import msgspec

from kvready.collectors.records import (
    AnyRecord,
    BlocksRemoved,
    BlocksStored,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
    TierCleared,
)

MAX_LIVE_BLOCKS = 16_000_000  # over all ranks and groups; stores beyond it are shed and counted
MAX_PUBLISHERS = 256  # whose news is kept; more are shed and counted
MAX_SHARDS = 256  # (publisher, rank, group): more are shed and counted

TIERS = (Tier.HBM, Tier.HOST, Tier.DISK, Tier.REMOTE)  # nearest first
TIER_BITS = 16
TIER_MASK = (1 << TIER_BITS) - 1
SHIFT = {tier: place * TIER_BITS for place, tier in enumerate(TIERS)}

ShardKey = tuple[str, int, int]  # publisher, rank, group


class Knowledge(StrEnum):
    """How far what we hold of a publisher's blocks can be trusted."""

    UNKNOWN = "unknown"  # nothing heard yet, or the connection is gone
    LIVE = "live"
    DEGRADED = "degraded"  # something is missing: what we hold is old, or not all


class InventoryCount(StrEnum):
    """What `Inventory.counts` counts."""

    AMBIGUOUS_STORES = "ambiguous_stores"  # read as hit reports
    RESTORED_BLOCKS = "restored_blocks"  # lower-tier chunks stored again
    UNKNOWN_REMOVES = "unknown_removes"  # hashes removed that were not held
    SHED_BLOCKS = "shed_blocks"  # not taken for the bound
    DROPPED_BLOCKS = "dropped_blocks"  # forgotten because they could not be confirmed
    SHED_PUBLISHERS = "shed_publishers"  # news of taps beyond the bound


class TierPrefix(msgspec.Struct, frozen=True, gc=False):
    """The longest resident prefix, each block counted in the nearest tier it is in."""

    blocks: int
    tokens: int
    blocks_by_tier: dict[Tier, int]
    degraded: bool


class _Shard:
    """Blocks of one rank's KV-cache group."""

    __slots__ = ("block_tokens", "live", "publisher", "tier_blocks")

    def __init__(self, publisher: str) -> None:
        self.publisher = publisher
        self.live: dict[int, int] = {}
        self.tier_blocks = dict.fromkeys(TIERS, 0)  # different hashes
        self.block_tokens = 0

    def forget(self) -> None:
        """Hold nothing any more."""
        self.live = {}
        self.tier_blocks = dict.fromkeys(TIERS, 0)


class Inventory:
    """Residency by tier. `apply` takes records in ingest order; none of them makes it raise."""

    def __init__(self, max_live_blocks: int = MAX_LIVE_BLOCKS) -> None:
        self.counts: Counter[InventoryCount] = Counter()
        self.version = 0  # rises with whatever may change an answer
        self._max_live_blocks = max_live_blocks
        self._shards: dict[ShardKey, _Shard] = {}
        self._known: dict[str, Knowledge] = {}  # by tap, at most MAX_PUBLISHERS
        self._partial: set[str] = set()  # taps from whose history something is missing for good
        self._interned: dict[int, int] = {}  # packed counts above CPython's small integers
        self._shard_limit = max_live_blocks
        self._apply: dict[type, Callable[..., None]] = {
            BlocksStored: self._stored,
            BlocksRemoved: self._removed,
            TierCleared: self._cleared,
            TapStatus: self._status,
        }

    def apply(self, record: AnyRecord) -> None:
        """Take one record; kinds that say nothing of blocks are ignored."""
        change = self._apply.get(type(record))
        if change is not None:
            self.version += 1
            change(record)

    # What is known

    def state(self, publisher: str | None = None, rank: int | None = None) -> Knowledge:
        """How far a publisher's blocks can be trusted; without a name, the least of all.

        With a rank, of those that spoke of its blocks, or of all where nobody did yet.
        """
        if publisher is not None:
            return self._known.get(publisher, Knowledge.UNKNOWN)
        publishers = {
            shard.publisher for key, shard in self._shards.items() if rank in (None, key[1])
        }
        states = {
            self._known.get(name, Knowledge.UNKNOWN) for name in publishers or self._known.keys()
        }
        if not states or Knowledge.UNKNOWN in states:
            return Knowledge.UNKNOWN
        return Knowledge.DEGRADED if Knowledge.DEGRADED in states else Knowledge.LIVE

    def knows(self, publisher: str) -> bool:
        """Whether this publisher ever spoke of blocks."""
        return any(key[0] == publisher for key in self._shards)

    @property
    def degraded(self) -> bool:
        """Whether anything is missing from what is known of any publisher."""
        return self.state() is not Knowledge.LIVE

    def resident(
        self,
        block_hash: int,
        tier: Tier,
        *,
        publisher: str | None = None,
        rank: int = 0,
        group: int = 0,
    ) -> bool:
        """Whether a block is in a tier."""
        shard = self._shard(publisher, rank, group)
        if shard is None:
            return False
        return bool(shard.live.get(block_hash, 0) >> SHIFT[tier] & TIER_MASK)

    def tier_prefix(
        self,
        block_hashes: Sequence[int],
        *,
        publisher: str | None = None,
        rank: int = 0,
        group: int = 0,
    ) -> TierPrefix:
        """The longest prefix of a chain that is resident, block by block in its nearest tier.

        Without a publisher the first one that spoke of this rank and group is meant. Tokens are 0
        until a store has told the block size. What a tier can return may be less: an offload tier
        returns whole chunks only.
        """
        blocks = dict.fromkeys(TIERS, 0)
        shard = self._shard(publisher, rank, group)
        if shard is None:
            return TierPrefix(0, 0, blocks, degraded=True)
        found = list(map(shard.live.get, block_hashes))
        kinds = set(found)  # few, and each is one object: counting them is all in C
        if None in kinds:
            found = found[: found.index(None)]
            kinds = set(found)
        total = len(found)
        for packed in kinds:
            assert packed
            nearest = ((packed & -packed).bit_length() - 1) // TIER_BITS
            blocks[TIERS[nearest]] += found.count(packed)
        size = shard.block_tokens
        degraded = self._known.get(shard.publisher) is not Knowledge.LIVE
        return TierPrefix(total, total * size, blocks, degraded)

    def leading_blocks(
        self, block_hashes: Sequence[int], rank: int = 0, group: int = 0
    ) -> tuple[int, int]:
        """How many blocks of a chain, without a gap from its start, are in HBM, and in any tier."""
        shard = self._shard(None, rank, group)
        if shard is None:
            return 0, 0
        live = shard.live
        found = [live[block_hash] for block_hash in takewhile(live.__contains__, block_hashes)]
        # Few values, each one object: looking for those without HBM is all in C.
        gaps = [found.index(packed) for packed in set(found) if not packed & TIER_MASK]
        return min(gaps, default=len(found)), len(found)

    def live(self, rank: int = 0, group: int = 0) -> Collection[int]:
        """The hashes that are in some tier."""
        shard = self._shard(None, rank, group)
        return shard.live.keys() if shard is not None else ()

    def block_tokens(self, rank: int = 0, group: int = 0) -> int:
        """Tokens of a block; 0 until a store has told."""
        shard = self._shard(None, rank, group)
        return shard.block_tokens if shard is not None else 0

    def live_blocks(self, tier: Tier) -> int:
        """Different hashes in a tier, over all ranks and groups."""
        return sum(shard.tier_blocks[tier] for shard in self._shards.values())

    @property
    def distinct_blocks(self) -> int:
        """Different hashes in any tier, over all ranks and groups."""
        return sum(len(shard.live) for shard in self._shards.values())

    def blocks(
        self, tier: Tier, *, publisher: str | None = None, rank: int = 0, group: int = 0
    ) -> dict[int, int]:
        """Blocks per hash in a tier, to compare with the engine's own map."""
        shard = self._shard(publisher, rank, group)
        if shard is None:
            return {}
        shift = SHIFT[tier]
        counts = ((one, packed >> shift & TIER_MASK) for one, packed in shard.live.items())
        return {block_hash: count for block_hash, count in counts if count}

    # What changes it

    def _stored(self, record: BlocksStored) -> None:
        key = (record.publisher, record.rank, record.group)
        shard = self._shards.get(key) or self._new_shard(key)
        if shard is None:
            self.counts[InventoryCount.SHED_BLOCKS] += len(record.block_hashes)
            return
        live = shard.live
        hashes = record.block_hashes
        if len(live) + len(hashes) > self._shard_limit:
            self.counts[InventoryCount.SHED_BLOCKS] += len(hashes)
            return
        if record.block_tokens > shard.block_tokens:
            shard.block_tokens = record.block_tokens  # a shorter one is the end of a chain
        one = 1 << SHIFT[record.tier]
        if live.keys().isdisjoint(hashes):
            before = len(live)
            live.update(dict.fromkeys(hashes, self._intern(one)))
            shard.tier_blocks[record.tier] += len(live) - before
            return
        if record.tier is Tier.HBM:
            if record.parent_hash is None:
                held = [block_hash for block_hash in hashes if live.get(block_hash, 0) & TIER_MASK]
                if len(held) == len(hashes):
                    self.counts[InventoryCount.AMBIGUOUS_STORES] += 1
                    return
                if held and record.publisher in self._partial:
                    self.counts[InventoryCount.AMBIGUOUS_STORES] += 1
                    hashes = tuple(set(hashes).difference(held))
        elif len(hashes) == 1 and live[hashes[0]] >> SHIFT[record.tier] & TIER_MASK:
            self.counts[InventoryCount.RESTORED_BLOCKS] += 1
            return
        self._add(shard, hashes, record.tier)

    def _add(self, shard: _Shard, hashes: Sequence[int], tier: Tier) -> None:
        live = shard.live
        shift = SHIFT[tier]
        one = 1 << shift
        new = 0
        for block_hash in hashes:
            packed = live.get(block_hash, 0)
            held = packed >> shift & TIER_MASK
            if held != TIER_MASK:  # a full count may only read too low
                live[block_hash] = self._intern(packed + one)
            new += not held
        shard.tier_blocks[tier] += new

    def _removed(self, record: BlocksRemoved) -> None:
        shard = self._shards.get((record.publisher, record.rank, record.group))
        if shard is None:
            self.counts[InventoryCount.UNKNOWN_REMOVES] += len(record.block_hashes)
            return
        live = shard.live
        shift = SHIFT[record.tier]
        one = 1 << shift
        take = live.pop
        kept = 0
        for block_hash in record.block_hashes:
            packed = take(block_hash, 0)
            if packed == one:
                continue
            held = packed >> shift & TIER_MASK
            if held:
                live[block_hash] = self._intern(packed - one)
                kept += held > 1
            else:
                self.counts[InventoryCount.UNKNOWN_REMOVES] += 1
                kept += 1
                if packed:
                    live[block_hash] = packed
        shard.tier_blocks[record.tier] -= len(record.block_hashes) - kept

    def _cleared(self, record: TierCleared) -> None:
        place = TIER_MASK << SHIFT[record.tier]
        for (publisher, rank, _), shard in self._shards.items():
            if publisher == record.publisher and rank == record.rank:
                shard.live = {
                    block_hash: self._intern(packed & ~place)
                    for block_hash, packed in shard.live.items()
                    if packed & ~place
                }
                shard.tier_blocks[record.tier] = 0

    def _status(self, status: TapStatus) -> None:
        """A tap's news. Its stream may carry several ranks: what is lost is lost to all of them."""
        publisher = status.tap
        if publisher not in self._known and len(self._known) >= MAX_PUBLISHERS:
            self.counts[InventoryCount.SHED_PUBLISHERS] += 1
            return
        unreadable = status.event is TapEvent.DECODE_ERROR and status.first_missing is not None
        if status.event in (TapEvent.EPOCH, TapEvent.DROPPED) or unreadable:
            self._forget(publisher)
            if status.event is TapEvent.EPOCH:
                self._partial.discard(publisher)
            else:
                self._partial.add(publisher)
        if status.state is TapState.LIVE and publisher not in self._partial:
            self._known[publisher] = Knowledge.LIVE
        elif status.state is TapState.CLOSED:
            self._known[publisher] = Knowledge.UNKNOWN
        else:
            self._known[publisher] = Knowledge.DEGRADED

    def _forget(self, publisher: str) -> None:
        for key, shard in self._shards.items():
            if key[0] == publisher:
                self.counts[InventoryCount.DROPPED_BLOCKS] += len(shard.live)
                shard.forget()

    def _shard(self, publisher: str | None, rank: int, group: int) -> _Shard | None:
        if publisher is not None:
            return self._shards.get((publisher, rank, group))
        for key, shard in self._shards.items():
            if key[1] == rank and key[2] == group:
                return shard
        return None

    def _new_shard(self, key: ShardKey) -> _Shard | None:
        if len(self._shards) >= MAX_SHARDS:
            return None
        shard = self._shards[key] = _Shard(key[0])
        self._shard_limit = self._max_live_blocks // len(self._shards)
        return shard

    def _intern(self, packed: int) -> int:
        """One object per distinct value: ten million blocks then share a handful of integers."""
        return self._interned.setdefault(packed, packed)
