"""What the sidecar itself costs."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

STARTED_WALL_SECONDS = time.time()  # when this was first imported
_STATM = Path("/proc/self/statm")


def cpu_seconds() -> float:
    """CPU time of this process, user and system, in seconds."""
    return time.process_time()


def resident_bytes() -> int:
    """Memory that this process holds now; where the kernel does not say, the most it ever held."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
