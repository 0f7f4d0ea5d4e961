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

MEMMOVE_FROM_BYTES = (
    8 << 10
)  # per fragment; from here on numpy's second copy costs more than a call
BLOCK_BYTES = 4 << 20  # moved plane by plane at a time, while its other planes are near


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
    written = numpy.asarray(move.hbm_pages, numpy.intp)
    read = numpy.asarray(move.host_pages, numpy.intp)
    if move.direction is Direction.STORE:
        written, read = read, written
    pairs = []
    for plane in window:
        host_address = pools.host_address + plane * length
        host = _plane(numpy, host_address, pools.host_pages, pools.host_page_stride_bytes, length)
        hbm_address = pools.plane_addresses[plane]
        hbm = _plane(numpy, hbm_address, pools.hbm_pages, pools.hbm_page_stride_bytes, length)
        pairs.append((hbm, host) if move.direction is Direction.LOAD else (host, hbm))
    block = max(1, BLOCK_BYTES // (len(window) * length))
    for start in range(0, len(written), block):
        there, here = written[start : start + block], read[start : start + block]
        for destination, source in pairs:
            destination[there] = source[here]
    return move.fragments(pools) * length


def _plane(numpy: Any, address: int, pages: int, stride_bytes: int, length: int) -> Any:
    """One plane of a pool, each fragment an element; ends with the last one's last byte."""
    memory = (ctypes.c_char * ((pages - 1) * stride_bytes + length)).from_address(address)
    return numpy.ndarray((pages,), numpy.dtype((numpy.void, length)), memory, 0, (stride_bytes,))
