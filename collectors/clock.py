"""Places wall-clock readings on the host's monotonic clock.

Readings come in pairs taken together. A reader may be held up between its two readings, which makes
the wall look late by that long, never early: the least offset of recent pairs is the truest, and
the scatter above it is the error. A step of the wall clock starts a new map; a moment that two maps
both claim, or none, is unknown.
"""

from __future__ import annotations

from collections import deque

import msgspec

STEP_SECONDS = 0.05  # between two pairs: more than a clock is slewed by in many seconds
WINDOW_PAIRS = 64  # of these the map is made: recent, so that it follows slewing
MAX_MAPS = 8  # older ones are forgotten; what they covered is unknown
UNSEEN_SECONDS = 60.0  # for so long before the first and after the last pair no step is assumed


class Mapped(msgspec.Struct, frozen=True):
    """A moment on the monotonic clock, by how much it may be off, and the map that placed it.

    Readings of one map are in the order in which they were taken; so are maps by their number.
    """

    seconds: float
    error_seconds: float
    map_number: int = 0


class _Map:
    """One stretch of time without a step. Offsets are wall less monotonic."""

    def __init__(self, number: int, monotonic_seconds: float, wall_seconds: float) -> None:
        self.number = number
        self.first_wall_seconds = wall_seconds
        self.last_wall_seconds = wall_seconds
        self.last_monotonic_seconds = monotonic_seconds
        self._offsets: deque[float] = deque([wall_seconds - monotonic_seconds], WINDOW_PAIRS)

    @property
    def offset_seconds(self) -> float:
        return min(self._offsets)

    @property
    def error_seconds(self) -> float:
        return max(self._offsets) - min(self._offsets)

    def add(self, monotonic_seconds: float, wall_seconds: float) -> None:
        self._offsets.append(wall_seconds - monotonic_seconds)
        self.last_wall_seconds = max(self.last_wall_seconds, wall_seconds)
        self.last_monotonic_seconds = monotonic_seconds


class ClockMap:
    """All maps since the start. Feed `observe` in the order in which pairs were read."""

    def __init__(self) -> None:
        self.steps = 0
        self._maps: deque[_Map] = deque(maxlen=MAX_MAPS)
        self._suspect: tuple[float, float] | None = None  # a pair that is late, or past a step

    @property
    def error_seconds(self) -> float | None:
        """The scatter of recent pairs; None before the first."""
        return self._maps[-1].error_seconds if self._maps else None

    def observe(self, monotonic_seconds: float, wall_seconds: float) -> None:
        """Take in one pair of readings."""
        if not self._maps:
            self._maps.append(_Map(0, monotonic_seconds, wall_seconds))
            return
        current = self._maps[-1]
        jump_seconds = wall_seconds - monotonic_seconds - current.offset_seconds
        if abs(jump_seconds) <= STEP_SECONDS:
            current.add(monotonic_seconds, wall_seconds)
            self._suspect = None
        elif self._suspect and _agree(self._suspect, (monotonic_seconds, wall_seconds)):
            self._begin(*self._suspect)
            self._maps[-1].add(monotonic_seconds, wall_seconds)
        elif jump_seconds < 0:
            self._begin(monotonic_seconds, wall_seconds)
        else:
            self._suspect = (monotonic_seconds, wall_seconds)

    def to_monotonic(self, wall_seconds: float) -> Mapped | None:
        """The moment that this wall reading was taken at; None where that cannot be known."""
        claims = [one for place, one in enumerate(self._maps) if self._covers(place, wall_seconds)]
        if len(claims) != 1:
            return None
        [one] = claims
        return Mapped(wall_seconds - one.offset_seconds, one.error_seconds, one.number)

    @property
    def offset_seconds(self) -> float | None:
        """Wall less monotonic, by the newest map; None before there is one."""
        return self._maps[-1].offset_seconds if self._maps else None

    def _begin(self, monotonic_seconds: float, wall_seconds: float) -> None:
        self.steps += 1
        self._maps.append(_Map(self.steps, monotonic_seconds, wall_seconds))
        self._suspect = None

    def _covers(self, place: int, wall_seconds: float) -> bool:
        """Whether a map may have held when this was read.

        Between a map's last pair and the next one's first the step happened, nobody knows when:
        both ends are stretched over that gap, so that a reading from it finds two claims or none.
        """
        one = self._maps[place]
        gap_seconds = UNSEEN_SECONDS
        if place:
            before = self._maps[place - 1]
            at = one.first_wall_seconds - one.offset_seconds
            gap_seconds = max(at - before.last_monotonic_seconds, 0.0)
        if wall_seconds < one.first_wall_seconds - gap_seconds:
            return False
        if place == len(self._maps) - 1:
            ahead_seconds = 0.0 if self._suspect else UNSEEN_SECONDS
            return wall_seconds <= one.last_wall_seconds + ahead_seconds
        after = self._maps[place + 1]
        until = after.first_wall_seconds - after.offset_seconds - one.last_monotonic_seconds
        return wall_seconds <= one.last_wall_seconds + max(until, 0.0)


def _agree(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """A pair that was read late stands alone; after a step, all that follow agree."""
    offsets = [wall_seconds - monotonic_seconds for monotonic_seconds, wall_seconds in (one, other)]
    return abs(offsets[0] - offsets[1]) <= STEP_SECONDS
