"""The shapes of vLLM's KV events as msgspec types: maps since 0.24, positional arrays before.

Only what becomes part of a record is named: msgspec skips the rest without building it, which is
how token ids are dropped before they exist when content keys are off. Fields of later versions
are skipped the same way, behind the last position as well as under an unknown name. What each
version sends is in docs/vllm-events.md.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

Unsigned = Annotated[int, msgspec.Meta(ge=0)]  # vLLM cuts its digests to unsigned 64-bit
BlockHash = Unsigned | bytes  # bytes under VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0


class Stored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    """Blocks became findable. `block_size` is tokens per block, 0 in a placeholder."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    block_size: int
    lora_id: int | None = None
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


class PositionalStored(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    """`Stored` until 0.23: the tag first, then these in this order, as many as the version has."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: msgspec.Raw  # passed over, not built
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: ClassVar[str | None] = None  # this one and the next are younger than the maps
    session_id: ClassVar[str | None] = None


class PositionalStoredWithTokens(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    """The same, with token ids."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: ClassVar[str | None] = None
    session_id: ClassVar[str | None] = None


class PositionalRemoved(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    """`Removed` until 0.23."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: ClassVar[str | None] = None


class PositionalCleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    """`Cleared` until 0.23."""


class PositionalBatch(msgspec.Struct, array_like=True, gc=False):
    """`Batch` until 0.23."""

    ts: float
    events: list[PositionalStored | PositionalRemoved | PositionalCleared]
    rank: int | None = None


class PositionalBatchWithTokens(msgspec.Struct, array_like=True, gc=False):
    """The same, with token ids."""

    ts: float
    events: list[PositionalStoredWithTokens | PositionalRemoved | PositionalCleared]
    rank: int | None = None


AnyStored = Stored | PositionalStored | PositionalStoredWithTokens
AnyRemoved = Removed | PositionalRemoved
AnyCleared = Cleared | PositionalCleared
AnyBatch = Batch | BatchWithTokens | PositionalBatch | PositionalBatchWithTokens

STORED_TYPES = (Stored, PositionalStored, PositionalStoredWithTokens)
EVENT_TYPES: dict[str, type[Stored | Removed | Cleared]] = {
    "BlockStored": StoredWithTokens,
    "BlockRemoved": Removed,
    "AllBlocksCleared": Cleared,
}
# What stands where behind the tag, for events that are read one by one.
POSITIONS: dict[str, tuple[str, ...]] = {
    "BlockStored": PositionalStoredWithTokens.__struct_fields__,
    "BlockRemoved": PositionalRemoved.__struct_fields__,
    "AllBlocksCleared": (),
}
