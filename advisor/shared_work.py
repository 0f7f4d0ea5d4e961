"""How much of what others are computing an engine computes again, left to itself. Pure.

Minutes in which dedup acts say nothing of the engine and are left out: a policy that works would
otherwise look as if it had never been needed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from kvready.advisor.totals import Totals

KEPT_MINUTES = 24 * 60  # with delay hits, the latest


class Repeats(NamedTuple):
    """Delay hits, the tokens that others were bringing, and what was computed all the same."""

    delay_hits: int = 0
    promised_tokens: int = 0
    duplicate_tokens: int = 0

    @property
    def duplicate_share(self) -> float:
        """Of what could be computed twice."""
        return self.duplicate_tokens / max(1, self.promised_tokens)


class SharedWork:
    """Of one engine, by minutes."""

    def __init__(self) -> None:
        self._minutes: deque[Repeats] = deque(maxlen=KEPT_MINUTES)
        self._begun = Repeats()  # totals as the minute began
        self._is_helped = False

    def helped(self) -> None:
        """Dedup acts: the minute at hand does not count."""
        self._is_helped = True

    def minute(self, totals: Totals) -> None:
        """A minute is over."""
        found = self._open(totals)
        if found.delay_hits:
            self._minutes.append(found)
        self._begun = _of(totals)
        self._is_helped = False

    def forget(self, totals: Totals) -> None:
        """Another engine runs now."""
        self._minutes.clear()
        self._begun = _of(totals)

    def sums(self, totals: Totals) -> Repeats:
        """The kept minutes, and the one at hand."""
        return Repeats(*map(sum, zip(*self._minutes, self._open(totals), strict=True)))

    def _open(self, totals: Totals) -> Repeats:
        if self._is_helped:
            return Repeats()
        return Repeats(*(now - then for now, then in zip(_of(totals), self._begun, strict=True)))


def _of(totals: Totals) -> Repeats:
    return Repeats(
        sum(totals.delay_hits.values()), totals.delay_hit_tokens, totals.duplicate_prefill_tokens
    )
