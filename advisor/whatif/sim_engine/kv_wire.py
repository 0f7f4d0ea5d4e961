"""KV events as vLLM 0.32 puts them on the wire: maps tagged by `type`, a message a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec

from kvready.collectors.records import Tier

MEDIUM_OF_TIER = {Tier.HBM: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE"}
SPEC_KIND = "full_attention"
VOCABULARY = 32_000  # token ids are made up from the block, so that equal blocks have equal tokens
TOKEN_STEP = 7_919
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


class Stored(msgspec.Struct, frozen=True):
    """Blocks of one chain became findable in a tier, after `parent` (None: the first)."""

    tier: Tier
    blocks: tuple[int, ...]
    parent: int | None = None


class Removed(msgspec.Struct, frozen=True):
    """Blocks stopped being findable in a tier."""

    tier: Tier
    blocks: tuple[int, ...]


CacheEvent = Stored | Removed


class _BlockStored(msgspec.Struct, tag="BlockStored", tag_field="type", omit_defaults=True):
    """Fields in the order in which the engine sends them; the first seven always."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class _BlockRemoved(msgspec.Struct, tag="BlockRemoved", tag_field="type", omit_defaults=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


def block_hash(block: int) -> int:
    """An opaque unsigned 64-bit name for a block of the workload (a bijection: no collisions)."""
    mixed = (block + GOLDEN) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


@cache
def _cycle() -> tuple[list[int], list[int]]:
    """The vocabulary in steps of a number that is prime to it, twice over; each token's place."""
    tokens = [place * TOKEN_STEP % VOCABULARY for place in range(VOCABULARY)]
    places = [0] * VOCABULARY
    for place, token in enumerate(tokens):
        places[token] = place
    return tokens * 2, places


def token_ids(block: int, block_tokens: int) -> list[int]:
    """Token ids that a block holds: made up, the same whenever it is stored."""
    tokens, places = _cycle()
    place = places[block_hash(block) % VOCABULARY]
    return tokens[place : place + block_tokens]


def encode(
    events: Sequence[CacheEvent], block_tokens: int, wall_seconds: float, rank: int = 0
) -> bytes:
    """One message: publishing time, events in order, rank."""
    told: list[_BlockStored | _BlockRemoved] = []
    for event in events:
        medium = MEDIUM_OF_TIER[event.tier]
        local = None if event.tier is Tier.HBM else "LOCAL"
        hashes = [block_hash(block) for block in event.blocks]
        if isinstance(event, Stored):
            tokens: list[int] = []
            for block in event.blocks:
                tokens += token_ids(block, block_tokens)
            told.append(
                _BlockStored(
                    hashes,
                    None if event.parent is None else block_hash(event.parent),
                    tokens,
                    block_tokens,
                    None,
                    medium,
                    None,
                    [None] * len(hashes) if event.tier is Tier.HBM else None,
                    0,
                    SPEC_KIND,
                    local,
                )
            )
        elif event.tier is Tier.HBM:  # the main cache names one block an event
            told += [_BlockRemoved([one], medium, 0, local) for one in hashes]
        else:
            told.append(_BlockRemoved(hashes, medium, 0, local))
    return msgspec.msgpack.encode((wall_seconds, told, rank))
