"""What computing a prefix takes, as the sidecar said it last: a line through points. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

TOLD_SECONDS = 30.0  # what was said longer ago is not known any more
ASKED_TOKENS = (128, 512, 2_048, 8_192, 32_768)


class Costs:
    """`told`, then `seconds`. Times are one monotonic clock's."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._told_seconds = -math.inf

    def told(self, points: Iterable[tuple[int, float]], now: float) -> None:
        """Tokens, and the seconds that computing them takes."""
        usable = {tokens: cost for tokens, cost in points if cost >= 0.0 and math.isfinite(cost)}
        if usable:
            self._points = sorted(usable.items())
            self._told_seconds = now

    def seconds(self, tokens: int, now: float) -> float | None:
        """For so many tokens; None where nothing was said of late."""
        points = self._points
        if not points or not 0.0 <= now - self._told_seconds < TOLD_SECONDS:
            return None
        above = min(bisect_left(points, (tokens, 0.0)), len(points) - 1)
        if above == 0:
            return points[0][1]  # a batch costs something whatever is in it
        (low, low_cost), (high, high_cost) = points[above - 1], points[above]
        slope = max(high_cost - low_cost, 0.0) / (high - low)
        return max(low_cost + slope * (tokens - low), 0.0)
