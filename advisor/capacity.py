"""What memory there is for KV, what it holds, and how long prompts and prefixes are. Pure.

Bytes follow from blocks by what the engine says of itself; where it says nothing, or its KV state
is of another kind, they are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from kvready.advisor.distribution import TOKEN_BUCKETS, Distribution
from kvready.advisor.inventory import TIERS, Inventory, Knowledge
from kvready.collectors.records import Tier

if TYPE_CHECKING:
    from kvready.advisor.engine_rank import EngineRank
    from kvready.advisor.requests import RequestState
    from kvready.collectors.records import EngineDescribed


class PromptLengths:
    """Tokens of prompts, and of the part of each that was held or on its way at arrival."""

    def __init__(self) -> None:
        self.prompts = Distribution(TOKEN_BUCKETS)
        self.prefixes = Distribution(TOKEN_BUCKETS)  # of requests of which that was known

    def arrive(self, state: RequestState) -> None:
        """A request appeared."""
        self.prompts.add(state.arrived.prompt_tokens)
        if state.nominal_tokens is not None:
            self.prefixes.add(state.expected_tokens)


class Capacity(msgspec.Struct, frozen=True):
    """Memory over all ranks, in bytes; a tier that nobody told of is missing, None is unknown."""

    token_bytes: int | None
    tier_bytes: dict[Tier, int]
    held_bytes: dict[Tier, int]
    free_hbm_bytes: int | None
    disk_ratio: float | None  # of the blocks held anywhere, those that disk holds


def capacity(ranks: Iterable[EngineRank], inventory: Inventory) -> Capacity:
    """As it stands now."""
    described = [(rank, rank.engine) for rank in ranks if rank.engine is not None]
    engines = [engine for _, engine in described]
    held = inventory.distinct_blocks
    is_known = inventory.state() is not Knowledge.UNKNOWN
    return Capacity(
        token_bytes=max((one.kv_bytes_per_token for one in engines), default=0) or None,
        tier_bytes=_tier_bytes(engines),
        held_bytes=_held_bytes(engines, inventory) if is_known else {},
        free_hbm_bytes=_free_bytes(described),
        disk_ratio=inventory.live_blocks(Tier.DISK) / held if is_known and held else None,
    )


def block_bytes(engine: EngineDescribed) -> int:
    """Of one block of KV; 0 where that cannot be told."""
    if not engine.supported_kv_state:
        return 0
    return engine.block_tokens * engine.kv_bytes_per_token


def _tier_bytes(engines: list[EngineDescribed]) -> dict[Tier, int]:
    sizes = {
        Tier.HBM: sum(one.hbm_blocks * block_bytes(one) for one in engines),
        Tier.HOST: sum(one.host_bytes for one in engines),
        Tier.DISK: sum(one.disk_bytes for one in engines),
    }
    return {tier: size for tier, size in sizes.items() if size}


def _held_bytes(engines: list[EngineDescribed], inventory: Inventory) -> dict[Tier, int]:
    """Ranks of one engine have blocks of one size; blocks of several sizes are not summed."""
    sizes = {block_bytes(one) for one in engines}
    if len(sizes) != 1 or 0 in sizes:
        return {}
    [size] = sizes
    return {tier: inventory.live_blocks(tier) * size for tier in TIERS}


def _free_bytes(described: list[tuple[EngineRank, EngineDescribed]]) -> int | None:
    """None until each rank's batches told how many blocks they left."""
    total = 0
    for rank, engine in described:
        free, size = rank.forecaster.free_blocks, block_bytes(engine)
        if free is None or not size:
            return None
        total += free * size
    return total if described else None
