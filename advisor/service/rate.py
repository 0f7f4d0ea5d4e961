"""How often one peer may call: a token bucket for each, in a bounded map."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_PEERS = 1_024  # the one not heard of for longest is forgotten


class RateLimit:
    """`burst` calls at once, then `per_second`. The event loop's thread only."""

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.refused = 0
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, peer: str) -> float:
        """Take a place, or say how long until there is one. 0: taken."""
        now = self._clock()
        left, seen_seconds = self._buckets.pop(peer, (self._burst, now))
        left = min(left + max(now - seen_seconds, 0.0) * self._per_second, self._burst)
        wait_seconds = 0.0
        if left >= 1.0:
            left -= 1.0
        else:
            wait_seconds = (1.0 - left) / self._per_second
            self.refused += 1
        self._buckets[peer] = (left, now)
        while len(self._buckets) > MAX_PEERS:
            self._buckets.popitem(last=False)
        return wait_seconds

    def check(self, request: Request) -> None:
        """Raises 429 that says when to come again."""
        wait_seconds = self.wait_seconds(request.client.host if request.client else "")
        if wait_seconds:
            raise HTTPException(
                429,
                "too many calls from one address; wait as long as Retry-After says",
                {"Retry-After": str(math.ceil(wait_seconds))},
            )
