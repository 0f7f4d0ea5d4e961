"""A host pool, a device pool, and a move of pages between them: what every mover is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvready.kernels.errors import MoveError
from kvready.kernels.layout import KvLayout


class Direction(StrEnum):
    """Which way pages go."""

    LOAD = "load"  # host pool -> device pool
    STORE = "store"  # device pool -> host pool


@dataclass(frozen=True)
class Pools:
    """Where a page-first host pool and a layer-first device pool lie. Addresses and bytes."""

    host_address: int
    host_pages: int
    host_page_stride_bytes: int
    plane_addresses: tuple[int, ...]  # of the device pool, one per plane
    hbm_pages: int
    hbm_page_stride_bytes: int  # between neighbouring pages of a plane
    fragment_bytes: int

    def __post_init__(self) -> None:
        if self.fragment_bytes < 1 or not self.plane_addresses:
            raise MoveError("pools need at least one plane and fragments of at least one byte")
        if self.host_page_stride_bytes < self.planes * self.fragment_bytes:
            raise MoveError(
                f"host pages {self.host_page_stride_bytes} bytes apart cannot hold "
                f"{self.planes} fragments of {self.fragment_bytes} bytes"
            )
        if self.hbm_page_stride_bytes < self.fragment_bytes:
            raise MoveError(
                f"device pages {self.hbm_page_stride_bytes} bytes apart cannot hold fragments of "
                f"{self.fragment_bytes} bytes"
            )

    @classmethod
    def of_layout(
        cls, layout: KvLayout, host_address: int, host_pages: int, hbm_address: int, hbm_pages: int
    ) -> Pools:
        """Two dense pools of one layout."""
        return cls(
            host_address,
            host_pages,
            layout.page_bytes,
            tuple(
                hbm_address + layout.hbm_offset(0, plane, hbm_pages)
                for plane in range(layout.planes)
            ),
            hbm_pages,
            layout.fragment_bytes,
            layout.fragment_bytes,
        )

    @property
    def planes(self) -> int:
        """Fragments that a page falls into."""
        return len(self.plane_addresses)


@dataclass(frozen=True)
class Move:
    """Pages to bring over, pair by pair, in all planes or in a window of them (a layer's)."""

    direction: Direction
    host_pages: Sequence[int]
    hbm_pages: Sequence[int]
    first_plane: int = 0
    planes: int | None = None  # None: all from first_plane on

    def plane_window(self, pools: Pools) -> range:
        """The planes that move."""
        count = pools.planes - self.first_plane if self.planes is None else self.planes
        return range(self.first_plane, self.first_plane + count)

    def fragments(self, pools: Pools) -> int:
        """Separate ranges that move."""
        return len(self.host_pages) * len(self.plane_window(pools))

    def check_extent(self, pools: Pools) -> None:
        """Raise `MoveError` for planes that the pools lack, or pages that do not pair."""
        window = self.plane_window(pools)
        if not 0 <= window.start < window.stop <= pools.planes:
            raise MoveError(
                f"planes {window.start} to {window.stop} of a pool that has {pools.planes}"
            )
        if len(self.host_pages) != len(self.hbm_pages):
            raise MoveError(
                f"{len(self.host_pages)} host pages cannot pair with {len(self.hbm_pages)} device "
                "pages"
            )

    def check(self, pools: Pools) -> None:
        """Raise `MoveError` for pages or planes that the pools lack, or a page written twice."""
        self.check_extent(pools)
        if not self.host_pages:
            return
        for kind, wanted, pool_pages in (
            ("host", self.host_pages, pools.host_pages),
            ("device", self.hbm_pages, pools.hbm_pages),
        ):
            low, high = min(wanted), max(wanted)
            if low < 0 or high >= pool_pages:
                raise MoveError(
                    f"{kind} page {low if low < 0 else high} of a pool of {pool_pages} pages"
                )
        written = self.hbm_pages if self.direction is Direction.LOAD else self.host_pages
        if len(set(written)) != len(written):
            raise MoveError("a page is written twice in one move; its content would be chance")


class Mover(Protocol):
    """One way to move pages. `move` returns when the bytes are usable at their destination."""

    name: str  # dma_per_page | dma_batch | gather, as the records call it
    backend: str  # what carried it out; samples of two back-ends are never mixed in a fit

    def move(self, pools: Pools, move: Move) -> int:
        """Bring the pages over; returns payload bytes. Raises `MoveError` before touching any."""
        ...

    def close(self) -> None:
        """Give threads and memory back. Safe twice."""
        ...
