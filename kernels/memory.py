"""How much memory a calibration may take, and how much it must for caches not to help."""

from __future__ import annotations

import resource
from pathlib import Path

from kvready.kernels.errors import MoverUnavailable

PROC = Path("/proc")
SYS = Path("/sys")
MIB = 1 << 20
CACHES = 8  # a pool is so many times the last cache
SMALLEST_POOL_BYTES = 64 * MIB
LARGEST_POOL_BYTES = 2048 * MIB
SHARE = 4  # each of two pools takes at most this part of what is available
RESERVE_BYTES = 256 * MIB  # for the interpreter, threads, and the competing processes' weights
UNLIMITED = 1 << 60  # a control group's "no limit" is a number about as large


def pool_bytes(available_bytes: int, cache_bytes: int) -> int:
    """Size of each of two pools. Raises `MoverUnavailable` where memory is too little."""
    wanted = min(LARGEST_POOL_BYTES, max(SMALLEST_POOL_BYTES, CACHES * cache_bytes))
    least = max(SMALLEST_POOL_BYTES, 2 * cache_bytes)
    size = min(wanted, max(0, available_bytes - RESERVE_BYTES) // SHARE) // MIB * MIB
    if size < least:
        raise MoverUnavailable(
            f"{available_bytes // MIB} MiB of memory are available and a calibration needs "
            f"{(least * SHARE + RESERVE_BYTES) // MIB}, else it would time caches; free some, or "
            "raise the limit of this container or shell"
        )
    return size


def available_bytes(proc: Path = PROC, sys: Path = SYS) -> int:
    """What the system, the control groups above us and the shell's limit all allow."""
    found = [UNLIMITED]
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    found += _left_in_groups(proc, sys)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        pages = _text(proc / "self/statm").split()
        taken = int(pages[0]) * resource.getpagesize() if pages else 0
        found.append(max(0, soft - taken))
    return min(found)


def last_cache_bytes(sys: Path = SYS) -> int:
    """Of the largest cache that one CPU sees; 0 where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [0]
    for file in (sys / "devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = _text(file).strip()
        if text[:-1].isdigit() and text[-1] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes)


def _left_in_groups(proc: Path, sys: Path) -> list[int]:
    """Bytes left in this process's control group and each above it, of either version."""
    found = []
    for line in _text(proc / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if number == "0" and not controllers:
            root, limit, used = sys / "fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = sys / "fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / place.lstrip("/")
        for folder in (group, *group.parents):
            most, taken = _text(folder / limit).strip(), _text(folder / used).strip()
            if most.isdigit() and taken.isdigit() and int(most) < UNLIMITED:
                found.append(max(0, int(most) - int(taken)))
            if folder == root:
                break
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
