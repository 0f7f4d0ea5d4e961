"""Predictions and how many of them were bad, minute by minute of event time. Bounded, pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MINUTE_SECONDS = 60.0
KEPT_MINUTES = 3 * 24 * 60  # the longest window: three days
HOUR_SECONDS = 3_600.0
KEPT_HOURS = 7 * 24


class WindowSum(NamedTuple):
    """Of one window."""

    pairs: int
    bad: int
    minutes: int  # in which there were pairs

    @property
    def share(self) -> float:
        """Of bad predictions."""
        return self.bad / self.pairs if self.pairs else 0.0


class MinuteSums:
    """A ring. Stalled minutes are not counted: they are alarmed of on their own."""

    def __init__(self, kept_minutes: int = KEPT_MINUTES) -> None:
        self._kept = kept_minutes
        self._pairs = [0] * kept_minutes
        self._bad = [0] * kept_minutes
        self._is_stalled = [False] * kept_minutes
        self._latest: int | None = None

    def add(self, now_seconds: float, is_bad: bool) -> None:
        """One more prediction whose outcome is known."""
        place = self._place(now_seconds)
        if not self._is_stalled[place]:
            self._pairs[place] += 1
            self._bad[place] += is_bad

    def stalled(self, now_seconds: float) -> None:
        """The minute at hand tells nothing of predictions."""
        place = self._place(now_seconds)
        self._is_stalled[place] = True
        self._pairs[place] = self._bad[place] = 0

    def window(self, minutes: int, now_seconds: float) -> WindowSum:
        """The last so many minutes, the one at hand included."""
        end = self._place(now_seconds) + 1
        begin = end - min(minutes, self._kept)
        pairs, bad = _ring(self._pairs, begin, end), _ring(self._bad, begin, end)
        return WindowSum(sum(pairs), sum(bad), len(pairs) - pairs.count(0))

    def _place(self, now_seconds: float) -> int:
        """Of the minute at hand; time that went back counts as the latest minute."""
        minute = int(now_seconds // MINUTE_SECONDS)
        if self._latest is None:
            self._latest = minute
        if minute > self._latest:
            for passed in range(max(self._latest + 1, minute - self._kept + 1), minute + 1):
                place = passed % self._kept
                self._pairs[place] = self._bad[place] = 0
                self._is_stalled[place] = False
            self._latest = minute
        return self._latest % self._kept


def _ring(values: list[int], begin: int, end: int) -> list[int]:
    """From `begin`, which is below 0 where the span wraps. Slices: windows are long, and many."""
    return values[begin:end] if begin >= 0 else values[begin:] + values[:end]


class ShadowDays:
    """How good predictions were in the last seven days in which nothing acted, by hours."""

    def __init__(self) -> None:
        self._hours: deque[tuple[int, int, int]] = deque(maxlen=KEPT_HOURS)

    def add(self, now_seconds: float, is_bad: bool) -> None:
        """One more prediction, made while nothing acted."""
        hour = int(now_seconds // HOUR_SECONDS)
        if self._hours and self._hours[-1][0] >= hour:
            last, pairs, bad = self._hours[-1]
            self._hours[-1] = last, pairs + 1, bad + is_bad
        else:
            self._hours.append((hour, 1, int(is_bad)))

    @property
    def sums(self) -> WindowSum:
        """Of all of them; `minutes` are those of whole hours."""
        return WindowSum(
            sum(pairs for _, pairs, _ in self._hours),
            sum(bad for _, _, bad in self._hours),
            60 * len(self._hours),
        )
