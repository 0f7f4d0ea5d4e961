"""Which block has which content: found again from tokens, whatever the engine called it."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.inventory import Inventory
from kvready.collectors.records import BlocksStored

MAX_RANKS = 64
SLACK_KEYS = 65_536  # beyond twice the live blocks, what is not live any more is forgotten


class ContentIndex:
    """Content key -> block hash, by rank. What the inventory no longer holds may still be named
    here: residency is asked of the inventory alone."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._hashes: dict[int, dict[int, int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no store ever told its content: content keys are off, or nothing was stored."""
        return not self._hashes

    def stored(self, record: BlocksStored) -> None:
        """Take in a store that tells its content."""
        known = self._hashes.get(record.rank)
        if known is None:
            if len(self._hashes) >= MAX_RANKS:
                return
            known = self._hashes[record.rank] = {}
        known.update(zip(record.content_keys, record.block_hashes, strict=False))
        live = self._inventory.live(record.rank)
        if len(known) > 2 * len(live) + SLACK_KEYS:
            kept = {key: one for key, one in known.items() if one in live}
            self._hashes[record.rank] = kept

    def block_hashes(self, keys: Sequence[int], rank: int) -> tuple[int, ...]:
        """The blocks of the longest prefix of these keys that was ever stored."""
        get = self._hashes.get(rank, {}).get
        found = []
        for key in keys:
            one = get(key)
            if one is None:
                break
            found.append(one)
        return tuple(found)
