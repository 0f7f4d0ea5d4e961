"""Simulated seconds on this host's clocks: mapped by speed, waited for where time is real."""

from __future__ import annotations

import threading
import time
from typing import TypeVar

import msgspec

from kvready.collectors.records import AnyRecord

MAX_WAIT_SECONDS = 0.5  # at a stretch: a stop is noticed within it

# Fields that name a moment, on the monotonic or the wall clock, and those that name a duration.
MOMENTS = frozenset(
    {
        "arrived_seconds",
        "decided_seconds",
        "deferred_seconds",
        "finished_seconds",
        "first_token_seconds",
        "planned_seconds",
        "preempted_seconds",
        "ready_seconds",
        "scheduled_seconds",
        "started_seconds",
    }
)
WALL_MOMENTS = frozenset({"planned_wall_seconds", "published_wall_seconds"})
DURATIONS = frozenset({"duration_seconds", "ttft_target_seconds"})

R = TypeVar("R", bound=AnyRecord)


class Clock:
    """Simulated second 0 is the origin; `speed` simulated seconds pass in a real one."""

    def __init__(self, origin_seconds: float, origin_wall_seconds: float, speed: float) -> None:
        self.origin_seconds = origin_seconds
        self.origin_wall_seconds = origin_wall_seconds
        self.speed = speed

    def monotonic(self, simulated_seconds: float) -> float:
        """That moment on the monotonic clock."""
        return self.origin_seconds + simulated_seconds / self.speed

    def wall(self, simulated_seconds: float) -> float:
        """That moment on the wall clock."""
        return self.origin_wall_seconds + simulated_seconds / self.speed

    def wait_until(self, simulated_seconds: float) -> bool:
        """Let time pass up to a moment; False where the engine is to stop instead."""
        return True

    def told(self, record: R) -> R:
        """A record with simulated seconds, in this host's."""
        changed: dict[str, float] = {}
        for name in record.__struct_fields__:
            if not name.endswith("_seconds"):
                continue
            value = getattr(record, name)
            if value is None:
                continue
            if name in MOMENTS:
                changed[name] = self.monotonic(value)
            elif name in WALL_MOMENTS:
                changed[name] = self.wall(value)
            elif name in DURATIONS:
                changed[name] = value / self.speed
        return msgspec.structs.replace(record, **changed) if changed else record


class RealClock(Clock):
    """Time that passes. `behind_seconds`: how late the engine was at worst, in real seconds."""

    def __init__(self, speed: float, stopping: threading.Event) -> None:
        super().__init__(time.monotonic(), time.time(), speed)
        self.behind_seconds = 0.0
        self._stopping = stopping

    def wait_until(self, simulated_seconds: float) -> bool:
        """Sleep up to a moment; False where the engine is to stop instead."""
        due = self.monotonic(simulated_seconds)
        while not self._stopping.is_set():
            left = due - time.monotonic()
            if left <= 0.0:
                self.behind_seconds = max(self.behind_seconds, -left)
                return True
            self._stopping.wait(min(left, MAX_WAIT_SECONDS))
        return False
