"""A move as ranges of bytes to copy, and the fewest ranges that copy the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvready.kernels.pools import Direction, Move, Pools

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class CopyRanges:
    """Addresses and bytes of separate copies, as three arrays that a driver can read."""

    destinations: Words
    sources: Words
    sizes: Words

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total_bytes(self) -> int:
        """Of all copies together."""
        return int(self.sizes.sum())


def ranges_of(pools: Pools, move: Move) -> CopyRanges:
    """One range per fragment, page by page. The move must have been checked."""
    window = move.plane_window(pools)
    host_pages = np.asarray(move.host_pages, dtype=np.uint64)[:, None]
    hbm_pages = np.asarray(move.hbm_pages, dtype=np.uint64)[:, None]
    planes = np.arange(window.start, window.stop, dtype=np.uint64)
    bases = np.array(pools.plane_addresses[window.start : window.stop], dtype=np.uint64)
    host = (
        np.uint64(pools.host_address)
        + host_pages * np.uint64(pools.host_page_stride_bytes)
        + planes * np.uint64(pools.fragment_bytes)
    ).ravel()
    hbm = (bases + hbm_pages * np.uint64(pools.hbm_page_stride_bytes)).ravel()
    sizes = np.full(len(host), pools.fragment_bytes, dtype=np.uint64)
    if move.direction is Direction.LOAD:
        return CopyRanges(hbm, host, sizes)
    return CopyRanges(host, hbm, sizes)


def merged(ranges: CopyRanges) -> CopyRanges:
    """The same bytes in as few ranges as neighbours on both sides allow; empty ones are dropped.

    In order of destination. Ranges whose destinations overlap are the caller's error.
    """
    kept = np.flatnonzero(ranges.sizes)
    order = kept[np.argsort(ranges.destinations[kept], kind="stable")]
    destinations, sources = ranges.destinations[order], ranges.sources[order]
    sizes = ranges.sizes[order]
    if not len(sizes):
        return CopyRanges(destinations, sources, sizes)
    joins = (destinations[:-1] + sizes[:-1] == destinations[1:]) & (
        sources[:-1] + sizes[:-1] == sources[1:]
    )
    starts = np.concatenate(([0], np.flatnonzero(~joins) + 1))
    return CopyRanges(
        destinations[starts], sources[starts], np.add.reduceat(sizes, starts).astype(np.uint64)
    )
