"""Whether what a host tier holds of a prompt is loaded or computed again: what is sooner. Pure.

Both speeds are as they were seen here: tokens a second of the link while anything was being loaded,
and of prefills while any of them advanced. An engine that loads before admission gains nothing by
half a load, since a request's load and its compute never overlap: it is all or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

ADVANTAGE = 2.0  # computing again takes the engine from others, loading does not
KEPT = 0.98  # of what was seen before, at each pass that saw anything
LEAST_PASSES = 20  # with work, before a speed is believed


class Speed:
    """Tokens a second, over the passes in which there was work; later ones weigh more."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._passes = 0

    def saw(self, tokens: int, seconds: float) -> None:
        """So many tokens came in so many seconds in which there was work."""
        self._tokens = KEPT * self._tokens + tokens
        self._seconds = KEPT * self._seconds + seconds
        self._passes += 1

    @property
    def tokens_per_second(self) -> float | None:
        """None: too little was seen."""
        if self._passes < LEAST_PASSES or not self._tokens:
            return None
        return self._tokens / self._seconds


class LoadLimit:
    """Follows loads and prefills from pass to pass."""

    def __init__(self) -> None:
        self.loads = Speed()
        self.prefills = Speed()
        self.computed_again = 0  # requests that were kept from loading
        self._loading: Mapping[str, int] = {}

    def saw(self, seconds: float, loading: Mapping[str, int], prefilled_tokens: int) -> None:
        """Since the pass before: who loads now, how many tokens each, and what was prefilled."""
        if self._loading and seconds > 0.0:
            arrived = sum(n for name, n in self._loading.items() if name not in loading)
            self.loads.saw(arrived, seconds)
        if prefilled_tokens > 0 and seconds > 0.0:
            self.prefills.saw(prefilled_tokens, seconds)
        self._loading = loading

    @property
    def loading_tokens(self) -> int:
        """What is under way: a load that is ordered now comes after it."""
        return sum(self._loading.values())

    def limit(self, load_tokens: int) -> int | None:
        """Of one request that could load so many tokens; None: it loads all that it finds."""
        by_link, by_compute = self.loads.tokens_per_second, self.prefills.tokens_per_second
        if not load_tokens or by_link is None or by_compute is None:
            return None
        load_seconds = (self.loading_tokens + load_tokens) / by_link
        if ADVANTAGE * load_tokens / by_compute >= load_seconds:
            return None
        self.computed_again += 1
        return 0
