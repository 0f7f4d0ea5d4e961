"""A calibration: opens this machine's links, times a sweep over them, makes a link profile."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvready.kernels.bench import Bench
from kvready.kernels.competing import CpuCompute
from kvready.kernels.competing_gpu import GpuCompute
from kvready.kernels.cuda_driver import CudaDriver
from kvready.kernels.errors import DiskError, MoverUnavailable
from kvready.kernels.layout import KvLayout
from kvready.kernels.machine import this_machine
from kvready.kernels.measure_cpu import HostBench
from kvready.kernels.measure_disk import DiskBench
from kvready.kernels.measure_gpu import GpuBench
from kvready.kernels.memory import available_bytes, last_cache_bytes, pool_bytes
from kvready.kernels.profile import Curve, LinkProfile, Provenance
from kvready.kernels.summary import repeat_scatter
from kvready.kernels.sweep import disk_shape_count, host_shape_count
from kvready.kernels.timed_sweep import Progress, TimedSweep

CPU_SECONDS = 10.0  # of a calibration, unless told otherwise
GPU_SECONDS = 150.0  # of one with a GPU, the disk included
DISK_SECONDS = 5.0  # of these, where the host tier is a GPU's
DISK_SHAPES = disk_shape_count(CPU_SECONDS)
SOFTWARE = ("kvready", "numpy", "torch", "triton")
PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True)
class Request:
    """What to calibrate. `seconds` bounds the rounds, of which two are always made."""

    seconds: float | None = None  # None: CPU_SECONDS or GPU_SECONDS
    disk_folder: Path | None = None  # None: no disk
    disk_required: bool = False  # a folder that was named must work, a default one need not
    layout: KvLayout | None = None
    model: str = ""
    seed: int = 1


@dataclass
class _Timed:
    """What became of the sweeps so far."""

    curves: tuple[Curve, ...]
    conditions: dict[str, str]

    def take(self, sweep: TimedSweep, benches: list[Bench], prefix: str) -> None:
        """Keep a sweep's curves and conditions."""
        self.curves += sweep.curves()
        for bench in benches:
            self.conditions |= bench.conditions()
        self.conditions |= {prefix + name: told for name, told in sweep.conditions().items()}


def calibrate(request: Request) -> Generator[Progress, None, LinkProfile]:
    """Yields how far it is, returns the profile. Raises a `KernelError` where it cannot be made.

    Closing it early ends every process and thread and leaves no file.
    """
    began = time.monotonic()
    timed = _Timed((), {"pressure_before": cpu_pressure(), "load_before": _load_average()})
    machine = this_machine(request.disk_folder)
    driver = _cuda()
    if driver is None:
        yield from _on_cpus(request, machine.cpus, timed)
    else:
        yield from _on_gpu(request, driver, machine.cpus, timed)
    timed.conditions |= _afterwards(request, time.monotonic() - began)
    return LinkProfile(
        name=f"{machine.gpu or machine.cpu}, {time.strftime('%Y-%m-%d')}",
        provenance=Provenance.MEASURED,
        machine=machine,
        curves=timed.curves,
        made_wall_seconds=time.time(),
        software=software(),
        conditions=timed.conditions,
        repeat_scatter=repeat_scatter(timed.curves),
    )


def _on_cpus(request: Request, cpus: int, timed: _Timed) -> Generator[Progress, None, None]:
    """Host tier and disk in one sweep, beside compute on every CPU."""
    began = time.monotonic()
    seconds = request.seconds or CPU_SECONDS
    with ExitStack() as stack:
        yield Progress(0, 1, "making pools")
        host = HostBench(
            pool_bytes(available_bytes(), last_cache_bytes()),
            cpus,
            host_shape_count(seconds),
            request.seed,
            request.layout,
        )
        benches: list[Bench] = [stack.enter_context(closing(host))]
        yield Progress(0, 1, "writing a file")
        benches += _disk(request, disk_shape_count(seconds), stack, timed)
        compute = stack.enter_context(CpuCompute(cpus))
        left = seconds - (time.monotonic() - began)
        sweep = TimedSweep(benches, compute, left, request.seed)
        yield from sweep.run()
        timed.take(sweep, benches, "")


def _on_gpu(
    request: Request, driver: CudaDriver, cpus: int, timed: _Timed
) -> Generator[Progress, None, None]:
    """The GPU's host tier beside compute on the GPU, then the disk beside compute on CPUs.

    Copies between two pools in host memory are no link of such a machine's tiers.
    """
    began = time.monotonic()
    seconds = request.seconds or GPU_SECONDS
    with ExitStack() as stack:
        yield Progress(0, 1, "making pools on the GPU")
        bench = GpuBench(driver, host_shape_count(seconds), request.seed, request.layout)
        benches: list[Bench] = [stack.enter_context(closing(bench))]
        compute = stack.enter_context(GpuCompute(driver))
        left = max(seconds - DISK_SECONDS, seconds / 2) - (time.monotonic() - began)
        sweep = TimedSweep(benches, compute, left, request.seed)
        yield from sweep.run()
        timed.take(sweep, benches, "")
    with ExitStack() as stack:
        yield Progress(0, 1, "writing a file")
        benches = _disk(request, DISK_SHAPES, stack, timed)
        if benches:
            cpu_compute = stack.enter_context(CpuCompute(cpus))
            left = seconds - (time.monotonic() - began)
            sweep = TimedSweep(benches, cpu_compute, left, request.seed)
            yield from sweep.run()
            timed.take(sweep, benches, "disk_")


def software() -> dict[str, str]:
    """Versions that figures depend on, of what is installed."""
    found = {"python": platform.python_version()}
    for name in SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_pressure() -> str:
    """Share of time in which something waited for a CPU, as the kernel tells it."""
    try:
        return PRESSURE.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return "not told by this system"


def _cuda() -> CudaDriver | None:
    try:
        return CudaDriver()
    except MoverUnavailable:
        return None  # a machine without a GPU: its host tier is in memory


def _disk(request: Request, shapes: int, stack: ExitStack, timed: _Timed) -> list[Bench]:
    """The disk, or none and the reason."""
    if request.disk_folder is None:
        timed.conditions["disk"] = "skipped, as asked"
        return []
    try:
        bench = DiskBench(request.disk_folder, shapes, request.seed, request.layout)
    except DiskError as error:
        if request.disk_required:
            raise
        timed.conditions["disk"] = f"skipped: {error}"
        return []
    return [stack.enter_context(closing(bench))]


def _load_average() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _afterwards(request: Request, seconds: float) -> dict[str, str]:
    told = {
        "pressure_after": cpu_pressure(),
        "load_after": _load_average(),
        "affinity_cpus": str(len(os.sched_getaffinity(0))),
        "seed": str(request.seed),
        "seconds": f"{seconds:.1f}",
    }
    return told | ({"model": request.model} if request.model else {})
