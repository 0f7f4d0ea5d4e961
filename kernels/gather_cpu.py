"""The gather on a CPU: C with non-temporal stores, built on first use, shared by threads."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path

from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.gather_numpy import NumpyGatherMover
from kvready.kernels.native import load_library
from kvready.kernels.pools import Direction, Move, Pools
from kvready.kernels.workers import GATHER_THREADS

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("gather.c")
BACKENDS = ("c-memcpy", "c-sse2-nt", "c-avx2-nt", "c-avx512-nt")  # by the level of gather.c
MAX_THREADS = 64
NO_MEMORY = 2  # of gather.c's refusals; the other is a page absent from its pool or written twice
CLOSED = "this mover was closed; make another"

_ARGUMENTS = (
    ctypes.c_void_p,  # pool
    ctypes.c_int,  # to the host
    ctypes.c_void_p,  # host pool, at the window's first plane
    ctypes.c_int64,  # pages of it
    ctypes.c_int64,  # bytes between them
    ctypes.c_void_p,  # addresses of the window's planes
    ctypes.c_int64,  # how many
    ctypes.c_int64,  # pages of the device pool
    ctypes.c_int64,  # bytes between them
    ctypes.c_int64,  # fragment bytes
    ctypes.c_void_p,  # host pages
    ctypes.c_void_p,  # device pages
    ctypes.c_int64,  # pairs
)


class GatherMover:
    """Gathers and scatters fragments in one call, without the interpreter's lock.

    Moves of one mover wait for each other. More than one thread helps only where a core does not
    saturate the memory by itself; `kvready calibrate` tells. They start at the first move, and so
    run on the cores that the moving thread may use; in a forked child they start anew.
    """

    name = "gather"
    fallback_reason = ""  # none: this is what was wanted

    def __init__(self, threads: int = GATHER_THREADS, backend: str | None = None) -> None:
        """The best back-end that this processor has, unless one is named."""
        if not 1 <= threads <= MAX_THREADS:
            raise MoverUnavailable(f"{threads} gather threads; name 1 to {MAX_THREADS}")
        available = available_backends()
        self.backend = available[-1] if backend is None else backend
        if self.backend not in available:
            raise MoverUnavailable(
                f"this processor cannot run {self.backend}; name one of {', '.join(available)}"
            )
        self.threads = threads
        self._closed = False
        self._pools: dict[int, _ThreadPool] = {}  # by process: a parent's has no threads here

    def move(self, pools: Pools, move: Move) -> int:
        """Bring the pages over; returns payload bytes. Raises `MoveError` before touching any."""
        if self._closed:
            raise MoverUnavailable(CLOSED)
        move.check_extent(pools)
        moved_bytes = self._thread_pool().move(pools, move)
        if moved_bytes is None:
            move.check(pools)  # says which page is wrong
            raise MoveError("the pages to move changed while they were read; nothing was moved")
        return moved_bytes

    def close(self) -> None:
        """End the threads. Safe twice."""
        self._closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    def _thread_pool(self) -> _ThreadPool:
        """This process's. No lock: one that another thread held during a fork would stay held."""
        process = os.getpid()
        pool = self._pools.get(process)
        if pool is None:
            fresh = _ThreadPool(self.threads, BACKENDS.index(self.backend))
            pool = self._pools.setdefault(process, fresh)
            if pool is not fresh:
                fresh.close()
        return pool


class _ThreadPool:
    """gather.c's pool: one move at a time."""

    def __init__(self, threads: int, level: int) -> None:
        self._library = _library()
        self._lock = threading.Lock()
        self._handle: int | None = self._library.kvready_create(threads, level)
        if self._handle is None:
            raise MoverUnavailable(
                f"cannot start {threads} gather threads ({os.strerror(ctypes.get_errno())}); name "
                "fewer"
            )

    def move(self, pools: Pools, move: Move) -> int | None:
        """Bytes moved; None where a page is bad, which gather.c looks for before it begins."""
        window = move.plane_window(pools)
        planes = array("Q", pools.plane_addresses[window.start : window.stop])
        try:
            host_pages, hbm_pages = _int64s(move.host_pages), _int64s(move.hbm_pages)
        except OverflowError:
            return None
        if len(host_pages) != len(hbm_pages):
            return None
        with self._lock:
            if self._handle is None:
                raise MoverUnavailable(CLOSED)
            refused: int = self._library.kvready_move(
                self._handle,
                move.direction is Direction.STORE,
                pools.host_address + window.start * pools.fragment_bytes,
                pools.host_pages,
                pools.host_page_stride_bytes,
                planes.buffer_info()[0],
                len(planes),
                pools.hbm_pages,
                pools.hbm_page_stride_bytes,
                pools.fragment_bytes,
                host_pages.buffer_info()[0],
                hbm_pages.buffer_info()[0],
                len(host_pages),
            )
        if refused == NO_MEMORY:
            raise MoverUnavailable("no memory left to check the pages; move fewer at a time")
        return None if refused else len(host_pages) * len(planes) * pools.fragment_bytes

    def close(self) -> None:
        with self._lock:
            if self._handle is not None:
                self._library.kvready_destroy(self._handle)
                self._handle = None


def open_gather(threads: int = GATHER_THREADS) -> GatherMover | NumpyGatherMover:
    """The compiled gather, or what stands in for it; `fallback_reason` and a warning say why."""
    try:
        return GatherMover(threads)
    except MoverUnavailable as error:
        mover = NumpyGatherMover(str(error))
        _warn_once(f"gathering with {mover.backend}, on one thread and slower: {error}")
        return mover


def available_backends() -> tuple[str, ...]:
    """What this processor can run, the best one last. Raises `MoverUnavailable`."""
    return BACKENDS[: _library().kvready_best_level() + 1]


@functools.cache
def _library() -> ctypes.CDLL:
    library = load_library(SOURCE)
    library.kvready_create.restype = ctypes.c_void_p
    library.kvready_destroy.argtypes = (ctypes.c_void_p,)
    library.kvready_destroy.restype = None
    library.kvready_move.argtypes = _ARGUMENTS
    return library


@functools.lru_cache(maxsize=8)
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _int64s(pages: Sequence[int]) -> array[int]:
    """Our own copy: other threads may run, and change theirs, between the check and the move."""
    return array("q", pages)
