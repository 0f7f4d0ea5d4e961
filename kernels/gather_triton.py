"""The gather on a GPU: the kernel as a mover. torch and triton are imported when one is made.

Use it for loads, which requests wait for; stores are better left to `BatchDma`, which costs no SM
(Strata, OSDI 2026, section 4.2). Not yet run on a GPU: equal to its reference in Triton's
interpreter, compiled ahead of time for sm_80, sm_90 and sm_100. `make gpu-check` tries it.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kvready.kernels.cuda_driver import CudaDriver
from kvready.kernels.cuda_mover import CudaMover
from kvready.kernels.cuda_reach import require_reachable
from kvready.kernels.cuda_stream import CudaEvent
from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.pools import Move, Pools
from kvready.kernels.torch_device import TorchDevice
from kvready.kernels.workers import GATHER_SMS

if TYPE_CHECKING:
    import torch

UNIT_BYTES = 16
MAX_CLOCK_GAP_SECONDS = 60.0  # between moves; the driver then tells it within 4 us


class TritonGatherMover(CudaMover):
    """Reads and writes pinned host memory from at most `sms` programs, one to an SM."""

    name = "gather"

    def __init__(
        self,
        sms: int = GATHER_SMS,
        driver: CudaDriver | None = None,
        ordinal: int = 0,
        *,
        interpreted: bool = False,  # on a driver whose device memory is this process's own
    ) -> None:
        self._kernel = _imported_kernel()
        driver = driver or CudaDriver()
        if self._kernel.INTERPRETED and not interpreted:
            raise MoverUnavailable(
                "TRITON_INTERPRET is set, and the interpreter cannot reach a GPU's memory; unset it"
            )
        self._device = TorchDevice(ordinal, interpreted=self._kernel.INTERPRETED)
        available = driver.multiprocessors(ordinal)
        if not 1 <= sms <= available:
            raise MoverUnavailable(
                f"sms={sms} on a device that has {available} (of a MIG instance only its own "
                f"count); choose 1 to {available}"
            )
        super().__init__(driver, ordinal)
        self.sms = sms
        self.backend = f"triton-{self._kernel.triton.__version__}"
        if self._kernel.INTERPRETED:
            self.backend += "-interpreted"
        self._host_address = 0
        self._plane_units: torch.Tensor | None = None
        self._reference: CudaEvent | None = None
        try:
            with self.context.current(), self._on_stream():
                self._began = self._int64([0] * sms)
                if not self._kernel.INTERPRETED:
                    self._set_clock()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the stream back. Safe twice."""
        if self._reference is not None:
            with self.context.current():
                self._reference.close()
            self._reference = None
        super().close()

    def _reach(self, pools: Pools) -> None:
        require_units(pools)
        self._host_address = require_reachable(self.driver, self.ordinal, pools)
        units = [address // UNIT_BYTES for address in pools.plane_addresses]
        with self._on_stream():
            self._plane_units = self._int64(units)

    def _run(self, pools: Pools, move: Move) -> float:
        stream = self._stream.handle
        programs = min(self.sms, self._kernel.tiles_in(move.fragments(pools), pools.fragment_bytes))
        timed = self._reference is not None and programs > 0
        with self._on_stream(), self._launching():
            pages = self._int64(move.host_pages), self._int64(move.hbm_pages)
            self._started.record(stream)
            if programs:
                began = self._began if timed else None
                self._kernel.launch(
                    self._host_address, self._plane_units, pages, pools, move, programs, began
                )
            self._ended.record(stream)
            self._stream.synchronize()
            started_after_seconds = self._started.seconds_since(self._anchor)
            return started_after_seconds + (self._unstarted_seconds(programs) if timed else 0.0)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, self._kernel.TritonError) as error:
            raise MoveError(
                f"the gather kernel could not be run ({error}); use dma_batch, and run "
                "`make gpu-check`"
            ) from error

    def _unstarted_seconds(self, programs: int) -> float:
        """How long the kernel waited for its first SM, launch apart.

        Each move is the next one's reference: the driver tells time between marks in 24 bits, too
        few after a minute. Then the clock is set anew, and that one wait counts as none.
        """
        assert self._reference is not None
        since_seconds = self._started.seconds_since(self._reference)
        if since_seconds > MAX_CLOCK_GAP_SECONDS:
            self._set_clock()
            return 0.0
        began_nanoseconds = int(self._began[:programs].min()) - self._reference_nanoseconds
        self._reference_nanoseconds += round(since_seconds * 1e9)
        self._started, self._reference = self._reference, self._started
        return began_nanoseconds / 1e9 - since_seconds

    def _set_clock(self) -> None:
        """Tie the device's clock to an event, so that a kernel's wait for an SM can be told from
        its run. Twice, since the first launch compiles."""
        self._reference = self._reference or CudaEvent(self.driver)
        for _ in range(2):
            self._stream.synchronize()
            self._reference.record(self._stream.handle)
            with self._launching():
                self._kernel.launch_empty(self._began)
            self._stream.synchronize()
        self._reference_nanoseconds = int(self._began[0])

    def _on_stream(self) -> AbstractContextManager[Any]:
        return self._device.on_stream(self._stream.handle)

    def _int64(self, values: Sequence[int]) -> torch.Tensor:
        torch = self._device.torch
        if not len(values):
            return torch.zeros(0, dtype=torch.int64, device=self._device.device)
        numbers = torch.frombuffer(array("q", values), dtype=torch.int64)
        return numbers.to(self._device.device, copy=True)


def require_units(pools: Pools) -> None:
    """Raise `MoveError` for pools that 16-byte accesses cannot walk."""
    for what, number in (
        ("fragment", pools.fragment_bytes),
        ("host page stride", pools.host_page_stride_bytes),
        ("device page stride", pools.hbm_page_stride_bytes),
        ("host pool's address", pools.host_address),
        *((f"address of plane {n}", address) for n, address in enumerate(pools.plane_addresses)),
    ):
        if number % UNIT_BYTES:
            raise MoveError(
                f"the {what} is {number}, no multiple of {UNIT_BYTES} bytes; align it, or use "
                "dma_batch"
            )


def _imported_kernel() -> ModuleType:
    try:
        return importlib.import_module("kvready.kernels.gather_kernel")
    except ImportError as error:
        raise MoverUnavailable(
            f"the GPU gather needs torch and triton ({error}); pip install 'kvready[gpu]'"
        ) from error
