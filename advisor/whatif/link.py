"""One direction of a link: copies one after another, first come, first served."""

from __future__ import annotations

import math

from kvready.advisor.whatif.outcome import LinkTime
from kvready.advisor.whatif.scenario import LinkSpec
from kvready.kernels.layout import KvLayout


class Link:
    """Moves tokens' KV of one rank; all ranks do the same beside it. Seconds of simulated time."""

    def __init__(self, spec: LinkSpec, layout: KvLayout, start_seconds: float) -> None:
        self.spec = spec
        self.time = LinkTime()
        self.free_seconds = start_seconds  # from when on it moves nothing, as far as is known
        self._layout = layout
        self._token_bytes = layout.rank_bytes_per_token
        self._accounted_seconds = start_seconds

    def copy_seconds(self, tokens: int) -> float:
        """What a copy takes alone: each page falls into a fragment per plane and layer."""
        if tokens <= 0:
            return 0.0
        spec = self.spec
        fragments = self._layout.pages(tokens) * self._layout.planes
        copied = 0.0 if math.isinf(spec.bytes_per_second) else self._token_bytes * tokens
        return (
            spec.start_seconds + fragments * spec.fragment_seconds + copied / spec.bytes_per_second
        )

    def copy(self, now_seconds: float, tokens: int) -> float:
        """Order a copy behind those under way; returns when it is done."""
        self.count(tokens)
        begins = max(now_seconds, self.free_seconds)
        self.free_seconds = begins + self.copy_seconds(tokens)
        return self.free_seconds

    def count(self, tokens: int) -> None:
        """A copy of so many tokens was made."""
        self.time.copies += 1
        self.time.payload_bytes += tokens * self._token_bytes

    def account(self, now_seconds: float, is_ordered: bool, is_wanted: bool) -> None:
        """Where its time went since the last call; the flags held all that while."""
        since = self._accounted_seconds
        if now_seconds <= since:
            return
        self._accounted_seconds = now_seconds
        busy = min(max(self.free_seconds - since, 0.0), now_seconds - since)
        self.time.busy_seconds += busy
        idle = now_seconds - since - busy
        if is_ordered:
            self.time.idle_compute_seconds += idle
        elif is_wanted:
            self.time.idle_scheduler_seconds += idle
        else:
            self.time.idle_no_demand_seconds += idle
