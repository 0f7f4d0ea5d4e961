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
from kvready.kernels.errors import DiskError
from kvready.kernels.layout import KvLayout
from kvready.kernels.machine import this_machine
from kvready.kernels.measure_cpu import HostBench
from kvready.kernels.measure_disk import DiskBench
from kvready.kernels.memory import available_bytes, last_cache_bytes, pool_bytes
from kvready.kernels.profile import LinkProfile, Provenance
from kvready.kernels.summary import repeat_scatter
from kvready.kernels.sweep import disk_shape_count, host_shape_count
from kvready.kernels.timed_sweep import Progress, TimedSweep

CPU_SECONDS = 10.0  # of a calibration without a GPU, unless told otherwise
SOFTWARE = ("kvready", "numpy", "torch", "triton")
PRESSURE = Path("/proc/pressure/cpu")

Running = Generator[Progress, None, LinkProfile]


@dataclass(frozen=True)
class Request:
    """What to calibrate. `seconds` bounds the rounds, of which two are always made."""

    seconds: float = CPU_SECONDS
    disk_folder: Path | None = None  # None: no disk
    disk_required: bool = False  # a folder that was named must work, a default one need not
    layout: KvLayout | None = None
    model: str = ""
    seed: int = 1


def calibrate(request: Request) -> Running:
    """Yields how far it is, returns the profile. Raises a `KernelError` where it cannot be made.

    Closing it early ends every process and thread and leaves no file.
    """
    began = time.monotonic()
    conditions = {"pressure_before": cpu_pressure(), "load_before": _load_average()}
    machine = this_machine(request.disk_folder)
    with ExitStack() as stack:
        yield Progress(0, 1, "making pools")
        benches: list[Bench] = [stack.enter_context(closing(_host(request, machine.cpus)))]
        yield Progress(0, 1, "writing a file")
        disk, conditions["disk"] = _disk(request)
        if disk is not None:
            benches.append(stack.enter_context(closing(disk)))
        compute = stack.enter_context(CpuCompute(machine.cpus))
        left = request.seconds - (time.monotonic() - began)
        sweep = TimedSweep(benches, compute, left, request.seed)
        yield from sweep.run()
        for bench in benches:
            conditions |= bench.conditions()
        conditions |= sweep.conditions()
    conditions |= _afterwards(request, time.monotonic() - began)
    curves = sweep.curves()
    return LinkProfile(
        name=f"{machine.gpu or machine.cpu}, {time.strftime('%Y-%m-%d')}",
        provenance=Provenance.MEASURED,
        machine=machine,
        curves=curves,
        made_wall_seconds=time.time(),
        software=software(),
        conditions=conditions,
        repeat_scatter=repeat_scatter(curves),
    )


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


def _host(request: Request, cpus: int) -> HostBench:
    size = pool_bytes(available_bytes(), last_cache_bytes())
    shapes = host_shape_count(request.seconds)
    return HostBench(size, cpus, shapes, request.seed, request.layout)


def _disk(request: Request) -> tuple[DiskBench | None, str]:
    """The disk, or why there is none."""
    if request.disk_folder is None:
        return None, "skipped, as asked"
    shapes = disk_shape_count(request.seconds)
    try:
        return DiskBench(request.disk_folder, shapes, request.seed, request.layout), "measured"
    except DiskError as error:
        if request.disk_required:
            raise
        return None, f"skipped: {error}"


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
