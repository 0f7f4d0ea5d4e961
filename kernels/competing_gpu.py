"""A compute load on a GPU beside which moves are timed: matrix products, one after the other.

In this process, since without MPS the products of another would take turns with a kernel rather
than share the device with it. A thread keeps two short runs of products ordered ahead, so that the
device never waits and Python rarely runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kvready.kernels.competing import Step
from kvready.kernels.cuda_driver import CudaDriver
from kvready.kernels.cuda_stream import CudaContext, CudaEvent, CudaStream, anchored
from kvready.kernels.errors import KernelError, MoverUnavailable
from kvready.kernels.torch_device import TorchDevice

if TYPE_CHECKING:
    import torch

MATRIX_ROWS = 4096  # bfloat16: about 0.2 ms on an H200
STEPS_PER_RUN = 8
KEPT_STEPS = 65_536
SETTLING_RUNS = 4
END_SECONDS = 10.0


class GpuCompute:
    """Paused until `resume`. A context manager."""

    processes = 1

    def __init__(
        self,
        driver: CudaDriver,
        ordinal: int = 0,
        *,
        rows: int = MATRIX_ROWS,
        interpreted: bool = False,
    ) -> None:
        self.description = f"{rows} x {rows} products in bfloat16 on one stream of the GPU"
        self._device = TorchDevice(ordinal, interpreted=interpreted)
        self._context = CudaContext(driver, ordinal)
        self._matrices: list[torch.Tensor] = []
        self._steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: KernelError | RuntimeError | None = None
        with self._context.current():
            self._stream = CudaStream(self._context)
            self._anchor = CudaEvent(driver)
            self._runs = [_Run(driver), _Run(driver)]
        try:
            self._settle(rows)
        except RuntimeError as error:
            self.close()
            raise MoverUnavailable(
                f"the competing compute load on the GPU could not be set up ({error}); free some "
                "of its memory and run this again"
            ) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GpuCompute:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self) -> None:
        """Compute from now on."""
        if self._thread is None:
            self._wanted.set()
            self._thread = threading.Thread(target=self._work, name="kvready-compute", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Compute no more; returns once the device has done what was ordered."""
        thread, self._thread = self._thread, None
        self._wanted.clear()
        if thread is not None:
            thread.join(END_SECONDS)
        if self._failure is not None or (thread is not None and thread.is_alive()):
            raise MoverUnavailable(
                f"the competing compute load on the GPU failed ({self._failure or 'it hangs'}); "
                "free some of its memory and run this again"
            )

    def steps(self, since_seconds: float) -> Sequence[Step]:
        """Steps that ended after a moment, oldest first. Ask while paused."""
        return [step for step in self._steps if step.ended_seconds > since_seconds]

    def close(self) -> None:
        """End it and give its memory back. Safe twice."""
        if not self._stream.handle:
            return
        try:
            self.pause()
        finally:
            with self._context.current():
                for run in self._runs:
                    run.close()
                self._anchor.close()
                self._stream.close()
            self._context.close()
            self._matrices.clear()

    def _settle(self, rows: int) -> None:
        torch = self._device.torch
        with self._context.current(), self._device.on_stream(self._stream.handle):
            self._matrices += [
                torch.randn(rows, rows, dtype=torch.bfloat16, device=self._device.device)
                for _ in range(3)
            ]
            for _ in range(SETTLING_RUNS):  # the first product loads libraries
                self._multiply()
            self._stream.synchronize()

    def _work(self) -> None:
        try:
            with self._context.current(), self._device.on_stream(self._stream.handle):
                anchored_seconds = anchored(self._anchor, self._stream)
                ordered: deque[_Run] = deque()
                while self._wanted.is_set():
                    run = self._runs[0] if len(ordered) < 1 else self._other(ordered[0])
                    self._order(run)
                    ordered.append(run)
                    if len(ordered) == len(self._runs):
                        self._note(ordered.popleft(), anchored_seconds)
                for run in ordered:
                    self._note(run, anchored_seconds)
        except (KernelError, RuntimeError) as error:
            self._failure = error

    def _other(self, run: _Run) -> _Run:
        return self._runs[run is self._runs[0]]

    def _order(self, run: _Run) -> None:
        run.marks[0].record(self._stream.handle)
        for mark in run.marks[1:]:
            self._multiply()
            mark.record(self._stream.handle)

    def _note(self, run: _Run, anchored_seconds: float) -> None:
        run.marks[-1].synchronize()
        seen_seconds = time.monotonic()  # the anchor may be late, and with it all that it tells
        times = [
            min(anchored_seconds + mark.seconds_since(self._anchor), seen_seconds)
            for mark in run.marks
        ]
        self._steps.extend(Step(started, ended) for started, ended in pairwise(times))

    def _multiply(self) -> None:
        left, right, product = self._matrices
        self._device.torch.mm(left, right, out=product)


class _Run:
    """Marks around steps that are ordered together."""

    def __init__(self, driver: CudaDriver) -> None:
        self.marks = [CudaEvent(driver) for _ in range(STEPS_PER_RUN + 1)]

    def close(self) -> None:
        for mark in self.marks:
            mark.close()
