"""The shapes of vLLM's KV events since 0.24 (maps tagged by `type`), as msgspec types.

Only what becomes part of a record is named: msgspec skips the rest without building it, which is
how token ids are dropped before they exist when content keys are off. Fields of later versions
are skipped the same way.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Unsigned = Annotated[int, msgspec.Meta(ge=0)]  # vLLM cuts its digests to unsigned 64-bit
BlockHash = Unsigned | bytes  # bytes under VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0


class Stored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    """Blocks became findable. `block_size` is tokens per block, 0 in a placeholder."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    session_id: str | None = None


class StoredWithTokens(Stored, tag="BlockStored", tag_field="type", gc=False):
    """The same, read with the token ids that content keys are made of."""

    token_ids: list[int] = []


class Removed(msgspec.Struct, tag="BlockRemoved", tag_field="type", gc=False):
    """Blocks stopped being findable."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type", gc=False):
    """The prefix cache in HBM was reset; other tiers say nothing when they are."""


class Batch(msgspec.Struct, array_like=True, gc=False):
    """One message: wall time in seconds, events in order, data-parallel rank."""

    ts: float
    events: list[Stored | Removed | Cleared]
    rank: int | None = None


class BatchWithTokens(msgspec.Struct, array_like=True, gc=False):
    """The same, with token ids."""

    ts: float
    events: list[StoredWithTokens | Removed | Cleared]
    rank: int | None = None


EVENT_TYPES: dict[str, type[Stored | Removed | Cleared]] = {
    "BlockStored": StoredWithTokens,
    "BlockRemoved": Removed,
    "AllBlocksCleared": Cleared,
}
