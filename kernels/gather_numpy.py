"""The gather where no compiler is: numpy for small fragments, memmove for large ones.

numpy is imported when the mover is made, and only if it is there: an engine's environment may lack
it, and then every fragment is copied by memmove.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from kvready.kernels.per_page_cpu import copy_fragments
from kvready.kernels.pools import Direction, Move, Pools

if TYPE_CHECKING:
    from types import ModuleType

MEMMOVE_FROM_BYTES = 64 << 10  # per fragment; from here on a copy costs more than its call
BLOCK_BYTES = 512 << 10  # gathered at a time, so that it is still in the cache when scattered


class NumpyGatherMover:
    """Gathers without compiled code of ours. `fallback_reason` says why it stands in."""

    name = "gather"

    def __init__(self, fallback_reason: str = "") -> None:
        self.fallback_reason = fallback_reason
        self._numpy = _numpy()
        self.backend = "memmove" if self._numpy is None else "numpy+memmove"

    def move(self, pools: Pools, move: Move) -> int:
        """Bring the pages over; returns payload bytes. Raises `MoveError` before touching any."""
        move.check(pools)
        if self._numpy is None or pools.fragment_bytes >= MEMMOVE_FROM_BYTES:
            return copy_fragments(pools, move)
        return _gather(self._numpy, pools, move)

    def close(self) -> None:
        """Holds nothing."""


def _numpy() -> ModuleType | None:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _gather(numpy: Any, pools: Pools, move: Move) -> int:
    window = move.plane_window(pools)
    length = pools.fragment_bytes
    fragment = numpy.dtype((numpy.void, length))
    host = numpy.ndarray(
        (pools.host_pages, len(window)),
        fragment,
        _memory(
            pools.host_address + window.start * length,
            (pools.host_pages - 1) * pools.host_page_stride_bytes + len(window) * length,
        ),
        strides=(pools.host_page_stride_bytes, length),
    )
    hbm_bytes = (pools.hbm_pages - 1) * pools.hbm_page_stride_bytes + length
    planes = [
        numpy.ndarray(
            (pools.hbm_pages,),
            fragment,
            _memory(pools.plane_addresses[plane], hbm_bytes),
            strides=(pools.hbm_page_stride_bytes,),
        )
        for plane in window
    ]
    host_pages = numpy.asarray(move.host_pages, numpy.intp)
    hbm_pages = numpy.asarray(move.hbm_pages, numpy.intp)
    block = max(1, BLOCK_BYTES // (len(window) * length))
    loads = move.direction is Direction.LOAD
    for start in range(0, len(host_pages), block):
        here, there = host_pages[start : start + block], hbm_pages[start : start + block]
        if loads:
            stage = host[here]
            for place, plane in enumerate(planes):
                plane[there] = stage[:, place]
        else:
            host[here] = numpy.stack([plane[there] for plane in planes], axis=1)
    return move.fragments(pools) * length


def _memory(address: int, length: int) -> Any:
    return (ctypes.c_char * length).from_address(address)
