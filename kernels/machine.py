"""This machine, as far as a link profile depends on it, and the refusal of another's profile.

Read from files of the kernel alone: importing torch to learn a GPU's name would take seconds. The
names of host, user and network shares stay out, since profiles are handed around.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

from kvready.kernels.errors import ProfileError
from kvready.kernels.profile import LinkProfile, Machine, Provenance

PROC = Path("/proc")
SYS = Path("/sys")
DEV = Path("/dev")
MAX_GPUS = 64  # asked for their name
GPU_NAME_BYTES = 256


def this_machine(
    disk_folder: Path | None = None, *, proc: Path = PROC, sys: Path = SYS, dev: Path = DEV
) -> Machine:
    """Describe it; with a folder, also the disk on which that folder lies."""
    gpu, gpu_driver = _gpu(proc, dev)
    return Machine(
        cpu=_cpu(proc),
        cpus=usable_cpus(sys),
        operating_system=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpu=gpu,
        gpu_driver=gpu_driver,
        disk="" if disk_folder is None else disk_of(disk_folder, proc=proc, sys=sys),
    )


def refuse_foreign(profile: LinkProfile, here: Machine, name: str) -> None:
    """Raise `ProfileError` for a profile that was measured on another CPU or GPU."""
    if profile.provenance is not Provenance.MEASURED:
        return
    there = profile.machine
    for kind, measured, present in (("CPU", there.cpu, here.cpu), ("GPU", there.gpu, here.gpu)):
        if measured != present:
            raise ProfileError(
                f"{name} was measured on {_named(kind, measured)} and this machine has "
                f"{_named(kind, present)}; run `kvready calibrate` here and use its profile"
            )


def usable_cpus(sys: Path = SYS) -> int:
    """CPUs that this process may run on, no more than its control group is given."""
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = _text(sys / "fs/cgroup/cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return max(1, min(allowed, -(-int(quota) // int(period))))
    return allowed


def disk_of(folder: Path, *, proc: Path = PROC, sys: Path = SYS) -> str:
    """File system and block device under a folder, which need not exist yet."""
    place = folder.resolve()
    best = (-1, "", "")
    for line in _text(proc / "self/mountinfo").splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        mount_point = Path(_unescaped(fields[4]))
        # Of mounts on one point the last one is in force.
        if place.is_relative_to(mount_point) and len(mount_point.parts) >= best[0]:
            kind = fields[fields.index("-", 6) + 1]
            best = (len(mount_point.parts), kind, fields[2])
    _, kind, number = best
    device = _block_device(sys, number)
    return f"{kind} on {device}" if kind and device else kind or "unknown"


def _cpu(proc: Path) -> str:
    fields = _fields(_text(proc / "cpuinfo"))
    if "model name" in fields:
        return fields["model name"]
    known = [
        f"{key.removeprefix('CPU ')} {fields[key]}"
        for key in ("CPU implementer", "CPU part")
        if key in fields
    ]
    return " ".join([platform.machine(), *known])


def _gpu(proc: Path, dev: Path) -> tuple[str, str]:
    """Names and driver version of NVIDIA GPUs; both empty where there are none."""
    nvidia = proc / "driver/nvidia"
    version = re.search(r"Module\b.*?\s(\d+\.[\d.]+)\s", _text(nvidia / "version"))
    try:
        files = sorted(nvidia.glob("gpus/*/information"))
    except OSError:
        files = []
    names = {_fields(_text(file)).get("Model", "") for file in files[:MAX_GPUS]} - {""}
    if names:
        return ", ".join(sorted(names)), version[1] if version else ""
    if (dev / "nvidiactl").exists():  # some sandboxes hide the driver's files, not the driver
        return _gpu_of_driver()
    return "", ""


def _gpu_of_driver() -> tuple[str, str]:
    """The same, asked of the driver's own library. Makes no context."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "", ""
    count, version = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return "", ""
    names = set()
    for ordinal in range(min(count.value, MAX_GPUS)):
        name = ctypes.create_string_buffer(GPU_NAME_BYTES)
        device = ctypes.c_int()
        if not cuda.cuDeviceGet(ctypes.byref(device), ordinal) and not cuda.cuDeviceGetName(
            name, GPU_NAME_BYTES, device
        ):
            names.add(name.value.decode(errors="replace"))
    driver = ""
    if not cuda.cuDriverGetVersion(ctypes.byref(version)):
        driver = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return ", ".join(sorted(names)), driver


def _block_device(sys: Path, number: str) -> str:
    """Name and model of a block device by its number; empty where there is none."""
    link = sys / "dev/block" / number
    if not number or not link.exists():
        return ""
    device = link.resolve()
    whole = device.parent if (device / "partition").exists() else device
    model = _text(whole / "device/model").strip()
    return f"{device.name} ({model})" if model else device.name


def _named(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else f"no {kind}"


def _fields(text: str) -> dict[str, str]:
    """`key : value` lines; the first of a key counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _unescaped(text: str) -> str:
    """The kernel writes blanks in a mount point as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _text(file: Path) -> str:
    """A small file of the kernel; empty where it is not there to be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
