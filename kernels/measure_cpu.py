"""Loads between two pools in this machine's memory, handed to a thread as an engine does."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Sequence

import numpy as np

from kvready.kernels.bench import Timing, curves_of, wrong_bytes
from kvready.kernels.engine.copy_thread import Copied, CopyThread
from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.gather_cpu import open_gather
from kvready.kernels.layout import KvLayout
from kvready.kernels.per_page_cpu import PerPageMover
from kvready.kernels.pools import Move, Mover, Pools
from kvready.kernels.profile import CONTIGUOUS
from kvready.kernels.sweep import CurveKey, Shape, host_shapes, limit_shapes, model_shapes

GATHER_THREADS = (1, 2)
FILLED_WORDS = 1 << 16  # at a time: no copy of a pool is needed to fill it
COMPARED_BYTES = 4_096  # of one fragment per load


class HostBench:
    """A page-first and a layer-first pool, each much larger than the cache."""

    def __init__(
        self, pool_bytes: int, cpus: int, shapes: int, seed: int, layout: KvLayout | None = None
    ) -> None:
        self._pool_bytes = pool_bytes
        self._shapes = shapes
        self._seed = seed
        self._layout = layout
        self._movers: dict[tuple[str, int], Mover] = {}
        self._pages: dict[Shape, _PageOrder] = {}
        self._jobs = 0
        try:
            self._host = mmap.mmap(-1, pool_bytes)
            self._hbm = mmap.mmap(-1, pool_bytes)
            _fill(self._host, 1)
            _fill(self._hbm, 2)
            # One fragment in one call: what copying in one piece gives.
            self._movers[CONTIGUOUS, 1] = PerPageMover()
            self._movers["dma_per_page", 1] = PerPageMover()
            for threads in (t for t in GATHER_THREADS if t <= cpus):
                mover = open_gather(threads)
                if threads == 1 or not mover.fallback_reason:  # what stands in has one thread
                    self._movers["gather", threads] = mover
        except OSError as error:
            raise MoverUnavailable(
                f"two pools of {pool_bytes >> 20} MiB cannot be had ({error.strerror}); free some "
                "memory, or raise the limit of this container or shell"
            ) from error
        self._thread = CopyThread(True)

    @property
    def curves(self) -> Sequence[CurveKey]:
        """Each mover in both directions."""
        return curves_of(self._movers)

    def shapes(self, curve: CurveKey) -> Sequence[Shape]:
        """The same for every mover but the one that copies in one piece."""
        if curve.mover == CONTIGUOUS:
            return limit_shapes(self._pool_bytes)
        generic = host_shapes(self._shapes, self._pool_bytes, self._seed)
        if self._layout is None:
            return generic
        own = model_shapes(self._layout.fragment_bytes, self._layout.planes, self._pool_bytes)
        return (*generic, *(shape for shape in own if shape not in generic))

    def time(self, curve: CurveKey, shape: Shape) -> Timing:
        """Hand one load over and wait for it; the bytes of one fragment are compared."""
        mover = self._movers[curve.mover, curve.workers]
        pools = self._laid_out(shape)
        order = self._pages.setdefault(shape, _PageOrder(pools.host_pages, self._seed))
        move = Move(curve.direction, order.take(shape.pages), order.take(shape.pages))
        timing = self._hand_over(mover, pools, move)
        self._compare(pools, move, mover)
        return timing

    def conditions(self) -> dict[str, str]:
        """Sizes, and why a mover fell back."""
        told = {
            "pool_bytes": str(self._pool_bytes),
            "hand_over": "to a thread of this process; the order waits for the thread to wake",
        }
        reasons = {getattr(mover, "fallback_reason", "") for mover in self._movers.values()} - {""}
        if reasons:
            told["gather_fallback"] = "; ".join(sorted(reasons))
        return told

    def close(self) -> None:
        """End threads, free pools. Safe twice."""
        self._thread.shutdown()
        for mover in self._movers.values():
            mover.close()
        self._host.close()
        self._hbm.close()

    def _laid_out(self, shape: Shape) -> Pools:
        page_bytes = shape.fragment_bytes * shape.planes
        pages = self._pool_bytes // page_bytes
        start = _address(self._hbm)
        return Pools(
            host_address=_address(self._host),
            host_pages=pages,
            host_page_stride_bytes=page_bytes,
            plane_addresses=tuple(
                start + plane * pages * shape.fragment_bytes for plane in range(shape.planes)
            ),
            hbm_pages=pages,
            hbm_page_stride_bytes=shape.fragment_bytes,
            fragment_bytes=shape.fragment_bytes,
        )

    def _hand_over(self, mover: Mover, pools: Pools, move: Move) -> Timing:
        def copy() -> Copied:
            return Copied(mover.move(pools, move), move.fragments(pools), mover.name)

        self._jobs += 1
        ordered = time.monotonic()
        self._thread.submit(self._jobs, copy)
        self._thread.wait([self._jobs])
        (done,) = self._thread.take_finished()
        if done.failed:
            raise MoveError(
                f"{mover.name} ({mover.backend}) failed with fragments of {pools.fragment_bytes} "
                "bytes; the message above says why"
            )
        return Timing(ordered, done.started_seconds, done.ready_seconds)

    def _compare(self, pools: Pools, move: Move, mover: Mover) -> None:
        """A mover that brings other bytes has no speed."""
        plane = pools.planes - 1
        host = (
            pools.host_address
            + move.host_pages[-1] * pools.host_page_stride_bytes
            + plane * pools.fragment_bytes
        )
        hbm = pools.plane_addresses[plane] + move.hbm_pages[-1] * pools.hbm_page_stride_bytes
        length = min(COMPARED_BYTES, pools.fragment_bytes)
        if ctypes.string_at(host, length) != ctypes.string_at(hbm, length):
            raise wrong_bytes(mover, pools)


class _PageOrder:
    """Pages at random, none again until all had their turn: what was just moved is in the cache."""

    def __init__(self, pages: int, seed: int) -> None:
        self._order: list[int] = np.random.default_rng(seed).permutation(pages).tolist()
        self._next = 0

    def take(self, count: int) -> list[int]:
        """The next ones, each once."""
        if self._next + count > len(self._order):
            self._next = 0
        taken = self._order[self._next : self._next + count]
        self._next += count
        return taken


def _fill(pool: mmap.mmap, seed: int) -> None:
    """Bytes that differ everywhere, and from the other pool's; touching them makes them real."""
    words = np.frombuffer(pool, np.uint64)
    block = np.arange(FILLED_WORDS, dtype=np.uint64) * np.uint64(2 * seed + 1)
    for start in range(0, len(words), FILLED_WORDS):
        part = words[start : start + FILLED_WORDS]
        np.add(block[: len(part)], np.uint64(start * seed), out=part)


def _address(pool: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pool))
