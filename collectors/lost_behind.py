"""What a collector delivered and nobody got, told from one thread to another."""

from __future__ import annotations

import threading


class LostBehind:
    """Losses told from another thread, for the collector's next poll."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Tell of records that were lost."""
        with self._lock:
            self._count += count

    def take(self) -> int:
        """All told since the last time."""
        if not self._count:  # the usual poll takes no lock
            return 0
        with self._lock:
            count, self._count = self._count, 0
        return count
