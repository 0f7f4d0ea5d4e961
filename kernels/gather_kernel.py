"""The gather as a Triton kernel: fragments of many pages in tiles, few programs, either direction.

Imports torch and triton; `TRITON_INTERPRET=1`, set before this is imported, runs it on a CPU.

Addresses, strides and sizes come in units of 16 bytes, so that 16-byte accesses are possible
whatever their values are, with one compiled form per tile shape and direction. Planes have a base
address each, since engines hold one tensor per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.errors import TritonError as TritonError
from triton.language.extra import cuda

from kvready.kernels.pools import Direction, Move, Pools

INTERPRETED = bool(triton.knobs.runtime.interpret)
UNIT_BYTES = 16
WORD_BYTES = 8
TILE_WORDS = 4096  # 32 KiB in flight per program
MIN_COLUMNS = 16  # 128 bytes, what a PCIe read asks for
WARPS = 8  # eight 16-byte accesses per thread and tile


def gather_pages(
    host_units: tl.int64,  # the host pool's address as the device sees it
    plane_units: tl.tensor,  # *int64: address of each plane
    host_pages: tl.tensor,  # *int64: one per pair
    hbm_pages: tl.tensor,  # *int64
    fragments: tl.int32,  # pairs x planes of the window
    window_planes: tl.int32,
    first_plane: tl.int32,
    fragment_units: tl.int64,
    host_page_units: tl.int64,
    hbm_page_units: tl.int64,
    began: tl.tensor,  # *int64: nanoseconds at which each program began
    LOAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TIMED: tl.constexpr,
) -> None:
    """Copy fragments between a page-first host pool and a layer-first device pool."""
    if TIMED:
        tl.store(began + tl.program_id(0), cuda.globaltimer())
    word = tl.pointer_type(tl.int64)
    fragment_words = fragment_units * 2
    column_tiles = tl.cdiv(fragment_words, COLUMNS)
    tiles = tl.cdiv(fragments, ROWS) * column_tiles
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        rows = ((tile // column_tiles) * ROWS).to(tl.int32) + tl.arange(0, ROWS)
        columns = (tile % column_tiles) * COLUMNS + tl.arange(0, COLUMNS)
        live = rows < fragments
        pair = rows // window_planes  # page by page: neighbours in the host pool come together
        plane = first_plane + rows % window_planes
        host_page = tl.load(host_pages + pair, mask=live, other=0)
        hbm_page = tl.load(hbm_pages + pair, mask=live, other=0)
        plane_at = tl.load(plane_units + plane, mask=live, other=0)
        host_at = host_units + host_page * host_page_units + plane * fragment_units
        hbm_at = plane_at + hbm_page * hbm_page_units
        # The compiler does not follow a multiple through the cast to a pointer: say it again.
        host_row = tl.multiple_of((host_at * 16).to(word), 16)
        hbm_row = tl.multiple_of((hbm_at * 16).to(word), 16)
        host = host_row[:, None] + columns[None, :]
        hbm = hbm_row[:, None] + columns[None, :]
        inside = live[:, None] & (columns < fragment_words)[None, :]
        if LOAD:
            words = tl.load(host, mask=inside, eviction_policy="evict_first")
            tl.store(hbm, words, mask=inside, cache_modifier=".cs")
        else:
            words = tl.load(hbm, mask=inside, eviction_policy="evict_first")
            tl.store(host, words, mask=inside, cache_modifier=".cs")


NEVER_SPECIALIZED = (
    "host_units",
    "fragments",
    "window_planes",
    "first_plane",
    "fragment_units",
    "host_page_units",
    "hbm_page_units",
)
# Otherwise a count of 1, or a multiple of 16, would be compiled anew in the middle of a request.
kernel = triton.jit(gather_pages, do_not_specialize=NEVER_SPECIALIZED)


def launch(
    host_address: int,
    plane_units: torch.Tensor,
    pages: tuple[torch.Tensor, torch.Tensor],
    pools: Pools,
    move: Move,
    programs: int,
    began: torch.Tensor | None,
) -> None:
    """Order a checked move on torch's current stream. `began` gets each program's start."""
    tile = tile_for(pools.fragment_bytes)
    window = move.plane_window(pools)
    kernel[(programs,)](
        host_address // UNIT_BYTES,
        plane_units,
        *pages,
        move.fragments(pools),
        len(window),
        window.start,
        pools.fragment_bytes // UNIT_BYTES,
        pools.host_page_stride_bytes // UNIT_BYTES,
        pools.hbm_page_stride_bytes // UNIT_BYTES,
        plane_units if began is None else began,
        LOAD=move.direction is Direction.LOAD,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        TIMED=began is not None,
        num_warps=WARPS,
    )


def launch_empty(began: torch.Tensor) -> None:
    """Order a program that only says when it began."""
    nowhere = Pools(0, 1, UNIT_BYTES, (0,), 1, UNIT_BYTES, UNIT_BYTES)
    launch(0, began, (began, began), nowhere, Move(Direction.LOAD, (), ()), 1, began)


@dataclass(frozen=True)
class Tile:
    """Fragments by words that one program has in flight."""

    rows: int
    columns: int


def tile_for(fragment_bytes: int) -> Tile:
    """The widest tile that pads a fragment by at most an eighth, 128 bytes wide at least."""
    words = fragment_bytes // WORD_BYTES
    columns = TILE_WORDS
    while columns > MIN_COLUMNS and -(-words // columns) * columns * 8 > words * 9:
        columns //= 2
    return Tile(TILE_WORDS // columns, columns)


def tiles_in(fragments: int, fragment_bytes: int) -> int:
    """Tiles of a move: more programs than these would have nothing to do."""
    tile = tile_for(fragment_bytes)
    return -(-fragments // tile.rows) * -(-(fragment_bytes // WORD_BYTES) // tile.columns)
