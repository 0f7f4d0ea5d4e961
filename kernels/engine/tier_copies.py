"""Copies between the host pool and the engine's cache, by the mover of the moment.

Gathered loads are checked now and then: what lies in HBM is compared, byte for byte, with a
per-page copy of the same pages. One mismatch is repaired on the spot and turns the gather off for
the rest of this process's life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from kvready.kernels.engine.copy_thread import Copied
from kvready.kernels.engine.host_pool import HbmTensor, HostPool
from kvready.kernels.engine.mover_choice import MoverFile, MoverName, MoverSettings
from kvready.kernels.engine.pages import Page
from kvready.kernels.errors import KernelError
from kvready.kernels.pools import Direction, Move, Mover, Pools

logger = logging.getLogger(__name__)

OpenGather = Callable[[int], Mover]


class TierCopies:
    """All copies of one worker. Loads run on one thread, stores on another."""

    def __init__(
        self,
        host: HostPool,
        hbm: Sequence[HbmTensor],
        pools: Pools | str,  # or why there can be no gather
        slots: int,
        settings: MoverSettings,
        open_gather: OpenGather,
    ) -> None:
        self._host = host
        self._hbm = hbm
        self._slots = slots
        self._stores = settings.store_mover
        self._load_choice = MoverFile(settings.mover, settings.mover_file)
        self._check_every = settings.check_every
        self._gathered_loads = 0
        self.gather_failures = 0
        self.gather_off = ""  # why, for good; empty while it may be used
        self._pools: Pools | None = None
        self._gathers: dict[Direction, Mover] = {}
        if isinstance(pools, str):
            self.gather_off = pools
            if settings.may_gather:
                logger.warning("no gather, copies go page by page: %s", pools)
        elif settings.may_gather:
            self._pools = pools
            # One each, since moves of one mover wait for each other.
            self._gathers = {way: open_gather(settings.gather_threads) for way in Direction}

    def load(self, wanted: Sequence[Page]) -> Copied:
        """Bring pages into HBM."""
        if self._load_choice.current() is not MoverName.GATHER:
            return self._load_per_page(wanted)
        moved = self._gather(Direction.LOAD, wanted)
        if moved is None:
            return self._load_per_page(wanted)
        self._gathered_loads += 1
        # The first one too: what is broken from the start should not load 999 times.
        if (self._gathered_loads - 1) % self._check_every:
            return moved
        if self._equal_per_page_copies(wanted):
            return moved._replace(mismatched=False)
        self.gather_off = "a checked load differed from per-page copies"
        logger.error(
            "gathered load %d differed from per-page copies of the same pages: repaired, and the "
            "gather stays off until this worker restarts; please report it with the engine's log",
            self._gathered_loads,
        )
        return self._load_per_page(wanted)._replace(mismatched=True)

    def store(self, wanted: Sequence[Page]) -> Copied:
        """Bring pages into the host pool."""
        if self._stores is MoverName.GATHER:
            moved = self._gather(Direction.STORE, wanted)
            if moved is not None:
                return moved
        for tensor, block, chunk, slot, size in wanted:
            there = self._host.tensors[tensor][chunk, slot, :size]
            there.copy_(self._hbm[tensor].rows[block, :size])
        return _per_page(wanted)

    def close(self) -> None:
        """Give threads and memory back. Safe twice; no copy may be under way."""
        for mover in self._gathers.values():
            mover.close()
        self._host.close()

    def _gather(self, direction: Direction, wanted: Sequence[Page]) -> Copied | None:
        """Gather the pages; None where that cannot be, and nothing was moved."""
        if self._pools is None or self.gather_off:
            return None
        one_per_block = wanted[:: self._pools.planes]
        host_pages = [page.host_chunk * self._slots + page.slot for page in one_per_block]
        hbm_pages = [page.hbm_block for page in one_per_block]
        try:
            moved = self._gathers[direction].move(
                self._pools, Move(direction, host_pages, hbm_pages)
            )
        except KernelError as error:
            self.gather_failures += 1
            if self.gather_failures == 1:
                logger.warning("a gather was refused (%s); those pages go one by one", error)
            return None
        return Copied(moved, len(wanted), MoverName.GATHER)

    def _load_per_page(self, wanted: Sequence[Page]) -> Copied:
        for tensor, block, chunk, slot, size in wanted:
            here = self._hbm[tensor].rows[block, :size]
            here.copy_(self._host.tensors[tensor][chunk, slot, :size])
        return _per_page(wanted)

    def _equal_per_page_copies(self, wanted: Sequence[Page]) -> bool:
        copy = torch.empty(max((page.page_bytes for page in wanted), default=0), dtype=torch.int8)
        for tensor, block, chunk, slot, size in wanted:
            copy[:size].copy_(self._host.tensors[tensor][chunk, slot, :size])
            if not torch.equal(copy[:size], self._hbm[tensor].rows[block, :size]):
                return False
        return True


def _per_page(wanted: Sequence[Page]) -> Copied:
    return Copied(sum(page.page_bytes for page in wanted), len(wanted), MoverName.DMA_PER_PAGE)
