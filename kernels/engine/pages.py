"""Which bytes a transfer moves: the pages of HBM blocks against slots of host chunks.

A host chunk holds `blocks_per_chunk` consecutive blocks of a request. The engine names HBM
blocks one by one, chunks one by one, and says per group where in the request its first block
lies, since a transfer may begin inside a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Page(NamedTuple):
    """One contiguous copy: a page of one HBM block in one tensor, and its place in a chunk."""

    tensor: int
    hbm_block: int
    host_chunk: int
    slot: int  # of the block within its chunk
    page_bytes: int


class TensorPage(NamedTuple):
    """What one cache tensor holds of each block of a group."""

    tensor: int
    page_bytes: int


def block_slots(
    blocks: Sequence[int], chunks: Sequence[int], first_index: int, blocks_per_chunk: int
) -> Iterator[tuple[int, int, int]]:
    """Pair each block with (block, chunk, slot); `first_index` is where the request has it."""
    for position, block in enumerate(blocks, start=first_index % blocks_per_chunk):
        chunk, slot = divmod(position, blocks_per_chunk)
        yield block, chunks[chunk], slot


def chunk_count(blocks: int, first_index: int, blocks_per_chunk: int) -> int:
    """How many chunks a run of blocks touches."""
    return -(-(blocks + first_index % blocks_per_chunk) // blocks_per_chunk) if blocks else 0


def pages(
    hbm_blocks: Sequence[int],
    host_chunks: Sequence[int],
    group_sizes: Sequence[int],
    first_indices: Sequence[int],
    tensors_by_group: Sequence[Sequence[TensorPage]],
    blocks_per_chunk: int,
) -> list[Page]:
    """Every copy of a transfer, block by block. Raises ValueError where the names do not add up."""
    if not len(group_sizes) == len(first_indices) == len(tensors_by_group):
        raise ValueError(
            f"a transfer names {len(group_sizes)} groups of blocks, the cache has "
            f"{len(tensors_by_group)}: the engine and this host tier disagree on the cache layout"
        )
    found: list[Page] = []
    block_at = chunk_at = 0
    for size, first_index, tensors in zip(
        group_sizes, first_indices, tensors_by_group, strict=True
    ):
        touched = chunk_count(size, first_index, blocks_per_chunk)
        blocks = hbm_blocks[block_at : block_at + size]
        chunks = host_chunks[chunk_at : chunk_at + touched]
        if len(blocks) != size or len(chunks) != touched:
            raise ValueError(
                f"a transfer names {len(hbm_blocks)} blocks and {len(host_chunks)} chunks, too "
                f"few for its groups {list(group_sizes)} at {blocks_per_chunk} blocks per chunk"
            )
        for block, chunk, slot in block_slots(blocks, chunks, first_index, blocks_per_chunk):
            for tensor, page_bytes in tensors:
                found.append(Page(tensor, block, chunk, slot, page_bytes))
        block_at += size
        chunk_at += touched
    if block_at != len(hbm_blocks) or chunk_at != len(host_chunks):
        raise ValueError(
            f"a transfer names {len(hbm_blocks)} blocks and {len(host_chunks)} chunks, its groups "
            f"{list(group_sizes)} use {block_at} and {chunk_at}"
        )
    return found
