"""How many workers each mover has where nobody says otherwise."""

from __future__ import annotations

GATHER_THREADS = 1  # one core saturates most memory; a second is taken from the compute
GATHER_SMS = 4  # x 32 KiB in flight: 48 GB/s over a link whose round trip is 2.7 us
DISK_DEPTH = 16  # transfers at once; from there disks rarely gain


def usual_workers(mover: str, backend: str) -> int:
    """Threads, SMs or reads in flight of a mover as engines run it."""
    if mover == "read":
        return DISK_DEPTH
    if mover == "gather" and backend.startswith("triton"):
        return GATHER_SMS
    return GATHER_THREADS
