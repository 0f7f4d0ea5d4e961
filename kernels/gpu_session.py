"""One visit to a GPU: its movers checked, timed by a sweep, and told as a table and a profile."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from kvready.kernels.bench import Bench
from kvready.kernels.calibrate import software
from kvready.kernels.competing_gpu import GpuCompute
from kvready.kernels.cuda_driver import CudaDriver
from kvready.kernels.cuda_mover import CudaMover
from kvready.kernels.dma import BatchDma, PerPageDma
from kvready.kernels.errors import KernelError, MoverUnavailable
from kvready.kernels.gather_triton import TritonGatherMover
from kvready.kernels.gpu_correct import CASES, Case, Verdict, verdicts
from kvready.kernels.gpu_table import table
from kvready.kernels.machine import this_machine
from kvready.kernels.measure_gpu import GpuBench
from kvready.kernels.profile import LinkProfile, Provenance, write_profile
from kvready.kernels.summary import repeat_scatter
from kvready.kernels.timed_sweep import TimedSweep
from kvready.kernels.torch_device import TorchDevice
from kvready.kernels.workers import GATHER_SMS

if TYPE_CHECKING:
    import torch

SHAPES = 24  # per mover, direction and SM budget
SEED = 1
PROGRESS_SECONDS = 5.0


class GpuSession:
    """A GPU, torch on it, the movers to check. Raises `MoverUnavailable` for what is missing."""

    def __init__(self, ordinal: int = 0, driver: CudaDriver | None = None) -> None:
        self.driver = driver or CudaDriver()
        self.ordinal = ordinal
        self.device = self._torch_device()
        self.movers: dict[str, CudaMover] = {}
        self.notes: list[str] = []
        try:
            self.movers[PerPageDma.name] = PerPageDma(self.driver, ordinal)
            try:
                self.movers[BatchDma.name] = BatchDma(self.driver, ordinal)
            except MoverUnavailable as error:
                self.notes.append(f"without dma_batch: {error}")
            most = self.driver.multiprocessors(ordinal)
            for sms in sorted({1, min(GATHER_SMS, most), most}):
                self.movers[f"gather, {sms} SM"] = self._gather(sms)
        except BaseException:
            self.close()
            raise

    @property
    def title(self) -> str:
        """The GPU, and what drives it."""
        name = self.driver.device_name(self.ordinal)
        torch = self.device.torch.__version__
        gather = list(self.movers.values())[-1].backend
        return f"{name}, CUDA driver {self.driver.version_text}, torch {torch}, {gather}"

    def verdicts(self) -> Iterator[Verdict]:
        """Every case by every mover."""
        return verdicts(self.cases(), self.movers, self)

    def cases(self) -> Sequence[Case]:
        """What is checked."""
        return CASES

    def host_tensor(self, size: int) -> torch.Tensor:
        """Pinned memory of so many bytes."""
        torch = self.device.torch
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def hbm_tensor(self, size: int) -> torch.Tensor:
        """Memory of the device, of so many bytes."""
        torch = self.device.torch
        return torch.empty(size, dtype=torch.uint8, device=self.device.device)

    def settle(self) -> None:
        """Wait for what torch has ordered."""
        self.device.torch.cuda.synchronize(self.device.device)

    def bench(self) -> Bench:
        """What the sweep times."""
        return GpuBench(self.driver, SHAPES, SEED, ordinal=self.ordinal)

    def compute(self) -> GpuCompute:
        """What competes with it."""
        return GpuCompute(self.driver, self.ordinal)

    def close(self) -> None:
        """Give streams back. Safe twice."""
        for mover in self.movers.values():
            mover.close()

    def _gather(self, sms: int) -> TritonGatherMover:
        return TritonGatherMover(sms, self.driver, self.ordinal)

    def _torch_device(self) -> TorchDevice:
        return TorchDevice(self.ordinal)


def check(session: GpuSession, out: Path, seconds: float) -> int:
    """Correctness, then speed. Wrong bytes end it, since their speed means nothing."""
    print("\n".join([session.title, *session.notes]))
    print("\ncorrectness, bitwise against torch and so against each other:")
    wrong = 0
    for verdict in session.verdicts():
        said = verdict.wrong or "equal"
        wrong += bool(verdict.wrong)
        print(f"  {verdict.case.name:42} {verdict.direction:5} {verdict.mover:14} {said}")
    if wrong:
        print(f"\nFAILED: {wrong} of the moves above; no speed was measured", file=sys.stderr)
        return 1
    try:
        profile = measure(session, seconds)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_profile(profile, out)
    except (KernelError, OSError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(profile.curves)))
    print(f"\nlink profile {profile.calibration_id}: {out}")
    return 0


def measure(session: GpuSession, seconds: float) -> LinkProfile:
    """The sweep, quiet and beside matrix products. Raises a `KernelError` where it fails."""
    with ExitStack() as stack:
        bench = stack.enter_context(closing(session.bench()))
        compute = stack.enter_context(session.compute())
        sweep = TimedSweep([bench], compute, seconds, SEED)
        told = 0.0
        for progress in sweep.run():
            if time.monotonic() - told >= PROGRESS_SECONDS:
                told = time.monotonic()
                print(
                    f"  {progress.done} of {progress.planned} moves, {progress.doing}", flush=True
                )
        curves = sweep.curves()
        conditions = bench.conditions() | sweep.conditions()
    return LinkProfile(
        name=f"{session.title}, {time.strftime('%Y-%m-%d')}",
        provenance=Provenance.MEASURED,
        machine=this_machine(),
        curves=curves,
        made_wall_seconds=time.time(),
        software=software(),
        conditions=conditions | {"made_by": "gpu-check", "seed": str(SEED)},
        repeat_scatter=repeat_scatter(curves),
    )
