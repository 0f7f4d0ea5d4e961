"""Processes that a process under test made, and whether they ended with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

ENDS_SECONDS = 20.0


def children_of(parent: int) -> set[int]:
    """Processes whose parent this is, whichever of its threads made them."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(file.parent.name))
    return found


def alive(processes: set[int]) -> set[int]:
    """Of these, what still runs; a zombie that nobody collects does not."""
    found = set()
    for process in processes:
        try:
            text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        except OSError:
            continue
        if text.rpartition(")")[2].split()[0] not in "ZX":
            found.add(process)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds; what ends may take a moment, never forever."""
    deadline = time.monotonic() + ENDS_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
