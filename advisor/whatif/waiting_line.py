"""Who waits in a simulated engine, and in which order they are looked at."""

from __future__ import annotations

from collections.abc import Iterable

from kvready.advisor.whatif.cache import Cache, Match
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.scenario import Policies, QueueOrder

SORTED_REQUESTS = 128  # a longer queue is not sorted by prefix, as in SGLang


class WaitingLine:
    """Requests that were let under the cap and not yet into the engine, oldest first."""

    def __init__(self, policies: Policies, cache: Cache) -> None:
        self.wanting_loads = 0
        self._policies = policies
        self._cache = cache
        self._lives: dict[int, LiveRequest] = {}  # by their order

    def __len__(self) -> int:
        return len(self._lives)

    def join(self, live: LiveRequest, match: Match) -> None:
        """At the end, with what it matches on arrival."""
        self._lives[live.order] = live
        live.wants_load = self._policies.load_hits and bool(match.load_blocks)
        self.wanting_loads += live.wants_load

    def leave(self, live: LiveRequest) -> None:
        """It is admitted."""
        del self._lives[live.order]
        self.wanting_loads -= live.wants_load

    def match(self, live: LiveRequest) -> Match:
        """What it would find now, as far as hits are taken at all."""
        return self._cache.match(live.findable_blocks, self._policies.load_hits)

    def in_order(self) -> Iterable[LiveRequest]:
        """As they are looked at for the next batch. The line may change once that has ended."""
        lives = self._lives.values()
        longest_first = self._policies.order is QueueOrder.LONGEST_PREFIX
        if longest_first and len(self._lives) <= SORTED_REQUESTS:
            return sorted(lives, key=lambda live: -self.match(live).blocks)
        return lives
