"""Loads and stores between pinned host memory and a GPU, by every mover that runs here."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Sequence

import numpy as np

from kvready.kernels.bench import Timing, curves_of, wrong_bytes
from kvready.kernels.copy_ranges import ranges_of
from kvready.kernels.cuda_driver import CudaDriver
from kvready.kernels.cuda_mover import CudaMover
from kvready.kernels.cuda_stream import CudaBuffer, CudaContext
from kvready.kernels.dma import BatchDma, ContiguousDma, PerPageDma
from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.gather_triton import UNIT_BYTES, TritonGatherMover
from kvready.kernels.layout import LATENT, KvLayout
from kvready.kernels.pools import Direction, Move, Pools
from kvready.kernels.sweep import (
    KIB,
    MIB,
    PLANES,
    CurveKey,
    Shape,
    host_shapes,
    limit_shapes,
    model_shapes,
)

POOL_BYTES = 512 * MIB  # many times what an L2 cache holds
SM_BUDGETS = (1, 2, 4, 8, 16)
COPY_ENGINES = 1
LONG_LOAD_BYTES = 64 * MIB  # takes long enough to slow a few steps of a compute load down
LONG_LOAD_FRAGMENTS = (2 * KIB, 16 * KIB, 128 * KIB, MIB)
FILLING = np.uint64(0x9E3779B97F4A7C15)  # odd: words of the pool differ everywhere
COMPARED_BYTES = 4_096  # of one fragment per move


class GpuBench:
    """A pinned page-first pool and a layer-first pool in HBM."""

    def __init__(
        self,
        driver: CudaDriver,
        shapes: int,
        seed: int,
        layout: KvLayout | None = None,
        *,
        ordinal: int = 0,
        pool_bytes: int = POOL_BYTES,
        sm_budgets: Sequence[int] = SM_BUDGETS,
    ) -> None:
        self._shape_count = shapes
        self._seed = seed
        self._layout = layout
        self._pool_bytes = pool_bytes
        self._random = random.Random(seed)
        self._conditions = {"gpu_pool_bytes": str(pool_bytes), "gpu": driver.device_name(ordinal)}
        self._context = CudaContext(driver, ordinal)
        self._movers: dict[tuple[str, int], CudaMover] = {}
        self._buffers: list[CudaBuffer] = []
        self._warm: set[tuple[str, int, int, Direction]] = set()
        self._laid_out: dict[Shape, Pools] = {}
        try:
            self._open(driver, ordinal, sm_budgets)
        except MoveError as error:
            self.close()
            raise MoverUnavailable(
                f"two pools of {pool_bytes >> 20} MiB cannot be had on the GPU ({error}); free "
                "some of its memory, or of this machine's"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def curves(self) -> Sequence[CurveKey]:
        """Each mover in both directions; of the gather, each SM budget."""
        return curves_of(self._movers)

    def shapes(self, curve: CurveKey) -> Sequence[Shape]:
        """The same for every mover but the one that copies in one piece."""
        if curve.mover == ContiguousDma.name:
            long = Shape(LONG_LOAD_BYTES, 1, 1)
            return (*limit_shapes(self._pool_bytes), *self._fitting([long]))
        wanted = list(host_shapes(self._shape_count, self._pool_bytes, self._seed))
        wanted += self._fitting(
            Shape(size, LONG_LOAD_BYTES // size, PLANES) for size in LONG_LOAD_FRAGMENTS
        )
        layout = self._layout
        if layout is not None and self._walks(curve, layout.fragment_bytes):
            wanted += model_shapes(layout.fragment_bytes, layout.planes, self._pool_bytes)
        return tuple(dict.fromkeys(wanted))

    def time(self, curve: CurveKey, shape: Shape) -> Timing:
        """Make one move of pages at random and compare the bytes of one fragment.

        A mover's first move of a shape is made twice: a kernel is compiled, an address looked up.
        """
        mover = self._movers[curve.mover, curve.workers]
        pools = self._laid_out.setdefault(shape, self._pools(shape))
        move = Move(curve.direction, self._pages(pools, shape), self._pages(pools, shape))
        key = (curve.mover, curve.workers, shape.fragment_bytes, curve.direction)
        if key not in self._warm:
            mover.move(pools, move)
            self._warm.add(key)
        mover.prepare(pools)
        times = mover.timed_move(pools, move)
        self._compare(mover, pools, move)
        return Timing(times.ordered_seconds, times.started_seconds, times.ready_seconds)

    def conditions(self) -> dict[str, str]:
        """Sizes, and why a mover is missing."""
        return dict(self._conditions)

    def close(self) -> None:
        """Give memory and streams back. Safe twice."""
        for mover in self._movers.values():
            mover.close()
        if self._buffers:
            with self._context.current():
                for buffer in self._buffers:
                    buffer.close()
        self._movers.clear()
        self._buffers.clear()
        self._context.close()

    def _open(self, driver: CudaDriver, ordinal: int, sm_budgets: Sequence[int]) -> None:
        with self._context.current():
            for size, on_host in (
                (self._pool_bytes, True),
                (self._pool_bytes, False),
                (COMPARED_BYTES, True),
            ):
                self._buffers.append(CudaBuffer(driver, size, on_host=on_host))
        place = (ctypes.c_uint64 * (self._pool_bytes // 8)).from_address(self._buffers[0].address)
        words = np.ctypeslib.as_array(place)
        np.multiply(np.arange(len(words), dtype=np.uint64), FILLING, out=words)
        self._movers[PerPageDma.name, COPY_ENGINES] = PerPageDma(driver, ordinal)
        self._movers[ContiguousDma.name, COPY_ENGINES] = ContiguousDma(driver, ordinal)
        try:
            self._movers[BatchDma.name, COPY_ENGINES] = BatchDma(driver, ordinal)
        except MoverUnavailable as error:
            self._conditions["without_dma_batch"] = str(error)
        available = driver.multiprocessors(ordinal)
        for sms in sorted({*(budget for budget in sm_budgets if budget < available), available}):
            try:
                self._movers[TritonGatherMover.name, sms] = self._gather(sms, driver, ordinal)
            except MoverUnavailable as error:
                self._conditions["without_gather"] = str(error)
                break

    def _gather(self, sms: int, driver: CudaDriver, ordinal: int) -> TritonGatherMover:
        return TritonGatherMover(sms, driver, ordinal)

    def _walks(self, curve: CurveKey, fragment_bytes: int) -> bool:
        """Whether a mover can take a model's fragments; why not is kept with the figures."""
        if curve.mover != TritonGatherMover.name or fragment_bytes % UNIT_BYTES == 0:
            return True
        self._conditions["model_without_gather"] = (
            f"its fragments of {fragment_bytes} bytes are no multiple of {UNIT_BYTES}"
        )
        return False

    def _fitting(self, shapes: Iterable[Shape]) -> list[Shape]:
        return [shape for shape in shapes if shape.payload_bytes <= self._pool_bytes // 2]

    def _pools(self, shape: Shape) -> Pools:
        layout = KvLayout(shape.planes, LATENT, 1, shape.fragment_bytes, 1, 1)
        pages = self._pool_bytes // layout.page_bytes
        host, hbm, _ = self._buffers
        return Pools.of_layout(layout, host.address, pages, hbm.address, pages)

    def _pages(self, pools: Pools, shape: Shape) -> list[int]:
        return self._random.sample(range(pools.host_pages), shape.pages)

    def _compare(self, mover: CudaMover, pools: Pools, move: Move) -> None:
        """A mover that brings other bytes has no speed."""
        last = Move(
            move.direction, move.host_pages[-1:], move.hbm_pages[-1:], first_plane=pools.planes - 1
        )
        fragment = ranges_of(pools, last)
        ends = int(fragment.destinations[0]), int(fragment.sources[0])
        host, hbm = ends if move.direction is Direction.STORE else reversed(ends)
        size = min(COMPARED_BYTES, pools.fragment_bytes)
        scratch = self._buffers[-1].address
        limit = self._movers[ContiguousDma.name, COPY_ENGINES]
        limit.move(Pools(scratch, 1, size, (hbm,), 1, size, size), Move(Direction.STORE, [0], [0]))
        if ctypes.string_at(host, size) != ctypes.string_at(scratch, size):
            raise wrong_bytes(mover, pools)
