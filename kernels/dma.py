"""Copy engines: a copy per fragment, as engines do it, and all fragments in one batch.

They cost no SM. Choose per direction (Strata, OSDI 2026, section 4.2): the gather kernel for loads,
which requests wait for; a batch of copies for stores, which nothing waits for.
"""

from __future__ import annotations

from abc import abstractmethod

from kvready.kernels.copy_ranges import CopyRanges, merged, ranges_of
from kvready.kernels.cuda_driver import (
    OVERLAP_WITH_COMPUTE,
    SOURCE_AT_ANY_TIME,
    SOURCE_IN_STREAM_ORDER,
    CopyAttributes,
    CudaDriver,
)
from kvready.kernels.cuda_mover import CudaMover
from kvready.kernels.errors import MoveError
from kvready.kernels.pools import Direction, Move, Pools
from kvready.kernels.profile import CONTIGUOUS

MAX_COPIES_PER_CALL = 65_536
# Small copies gain from the flag and large ones lose by it (rmm #2511, on three GPUs).
OVERLAP_UP_TO_BYTES = 128 << 10


class _CopyEngine(CudaMover):
    """Copies that the driver carries out."""

    def _run(self, pools: Pools, move: Move) -> float:
        ranges = self._ranges(pools, move)
        self._started.record(self._stream.handle)
        self._order(ranges, move.direction)
        self._ended.record(self._stream.handle)
        self._stream.synchronize()
        return self._started.seconds_since(self._anchor)

    def _ranges(self, pools: Pools, move: Move) -> CopyRanges:
        return ranges_of(pools, move)

    @abstractmethod
    def _order(self, ranges: CopyRanges, direction: Direction) -> None:
        """Put the copies on the stream."""


class PerPageDma(_CopyEngine):
    """One copy per fragment: what page-sized copies get from a link."""

    name = "dma_per_page"

    def _order(self, ranges: CopyRanges, direction: Direction) -> None:
        stream = self._stream.handle
        copy = self.driver.copy
        for destination, source, size in zip(
            ranges.destinations.tolist(),
            ranges.sources.tolist(),
            ranges.sizes.tolist(),
            strict=True,
        ):
            copy(destination, source, size, stream)


class BatchDma(_CopyEngine):
    """All fragments in one call, neighbours merged first. Needs a driver of 12.8 or newer."""

    name = "dma_batch"

    def __init__(self, driver: CudaDriver | None = None, ordinal: int = 0) -> None:
        driver = driver or CudaDriver()
        driver.require_batch_copy()
        super().__init__(driver, ordinal)

    def _ranges(self, pools: Pools, move: Move) -> CopyRanges:
        return merged(ranges_of(pools, move))

    def _order(self, ranges: CopyRanges, direction: Direction) -> None:
        attributes = attributes_of(ranges, direction)
        for first in range(0, len(ranges), MAX_COPIES_PER_CALL):
            self.driver.copy_batch(
                ranges.destinations[first:].ctypes.data,
                ranges.sources[first:].ctypes.data,
                ranges.sizes[first:].ctypes.data,
                min(MAX_COPIES_PER_CALL, len(ranges) - first),
                attributes,
                self._stream.handle,
            )


def attributes_of(ranges: CopyRanges, direction: Direction) -> CopyAttributes:
    """How the driver may carry a batch out.

    A page in the host pool is stable while it is loaded; a page in HBM may still be written by what
    runs before the store.
    """
    order = SOURCE_AT_ANY_TIME if direction is Direction.LOAD else SOURCE_IN_STREAM_ORDER
    small = ranges.total_bytes <= OVERLAP_UP_TO_BYTES * len(ranges)
    return CopyAttributes(source_access_order=order, flags=OVERLAP_WITH_COMPUTE if small else 0)


class ContiguousDma(_CopyEngine):
    """One large copy, the limit that all others are held against.

    Its pools must be one page of one plane, as large as what is to be copied.
    """

    name = CONTIGUOUS

    def _order(self, ranges: CopyRanges, direction: Direction) -> None:
        if len(ranges) != 1:
            raise MoveError(
                f"a contiguous copy of {len(ranges)} ranges; describe one page of one plane"
            )
        stream = self._stream.handle
        self.driver.copy(
            int(ranges.destinations[0]), int(ranges.sources[0]), int(ranges.sizes[0]), stream
        )
