"""What will happen when, in simulated seconds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

Handler = Callable[[float, Any], None]


class Timeline:
    """Events in order of time, and of being announced where times are equal."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Handler, Any]] = []
        self._announced = 0

    @property
    def next_seconds(self) -> float:
        """When something happens next; infinity: never."""
        return self._events[0][0] if self._events else math.inf

    def at(self, seconds: float, handler: Handler, argument: Any) -> None:
        """Announce: the handler is called with that time and the argument."""
        heapq.heappush(self._events, (seconds, self._announced, handler, argument))
        self._announced += 1

    def run_next(self) -> float:
        """Let the next thing happen; returns when it did."""
        seconds, _, handler, argument = heapq.heappop(self._events)
        handler(seconds, argument)
        return seconds

    def run_until(self, seconds: float) -> None:
        """Let everything happen up to a time, itself included."""
        while self.next_seconds <= seconds:
            self.run_next()
