"""The baseline that engines have: one copy per fragment, each ordered from Python."""

from __future__ import annotations

import ctypes

from kvready.kernels.pools import Direction, Move, Pools


def copy_fragments(pools: Pools, move: Move) -> int:
    """Order the copies of a move that was checked, one by one; returns payload bytes."""
    window = move.plane_window(pools)
    length = pools.fragment_bytes
    planes = [(plane * length, pools.plane_addresses[plane]) for plane in window]
    loads = move.direction is Direction.LOAD
    copy = ctypes.memmove
    for host_page, hbm_page in zip(move.host_pages, move.hbm_pages, strict=True):
        host = pools.host_address + host_page * pools.host_page_stride_bytes
        hbm = hbm_page * pools.hbm_page_stride_bytes
        for in_page, plane_address in planes:
            if loads:
                copy(plane_address + hbm, host + in_page, length)
            else:
                copy(host + in_page, plane_address + hbm, length)
    return move.fragments(pools) * length


class PerPageMover:
    """Moves fragment by fragment, as engines do."""

    name = "dma_per_page"
    backend = "memmove"

    def move(self, pools: Pools, move: Move) -> int:
        """Bring the pages over; returns payload bytes. Raises `MoveError` before touching any."""
        move.check(pools)
        return copy_fragments(pools, move)

    def close(self) -> None:
        """Holds nothing."""
