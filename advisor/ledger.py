"""Forecasts kept with what really happened: written before the outcome, paired once.

The ledger never computes a forecast and never looks at records; it only holds the pairing rules
(design law 3): a forecast whose outcome was already known is `late` and not scored; one whose age
passes its upper bound is a miss from that moment on, whatever comes later, so that stragglers do
not flatter the figures; one whose subject was aborted is censored.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

import msgspec

MAX_OPEN_FORECASTS = 65_536
MAX_KEPT_PAIRS = 65_536
MAX_DEADLINES_PER_OPEN = 2
MIN_DEADLINES = 1_024
OVERDUE_AGAIN = 2.0  # an overdue forecast is told of again at so many times its age

BAD_OFFSET_SECONDS = 0.025
BAD_LOG_RATIO = math.log(2.0)
NOMINAL_COVERAGE = 0.90


class Target(StrEnum):
    """What is predicted; each target is scored apart."""

    LOAD = "load"  # a copy into HBM
    FETCH = "fetch"  # a copy into host memory, from a slower tier
    BATCH_COMPUTE = "batch_compute"
    QUEUE = "queue"  # from arrival to first scheduled, with the loads that stand before it
    INFLIGHT_READY = "inflight_ready"  # until what another request brings of a prefix is usable
    PREFILL = "prefill"
    TTFT = "ttft"


class PairState(StrEnum):
    """What became of a forecast."""

    OPEN = "open"
    PAIRED = "paired"
    LATE = "late"  # the outcome was known when the forecast was written: never scored
    CENSORED = "censored"  # the subject was aborted: there is no outcome to score
    EVICTED = "evicted"  # pushed out by the bound on open forecasts


class Forecast(msgspec.Struct, frozen=True, gc=False):
    """A prediction as it was written. Seconds; the interval covers `nominal_coverage`."""

    forecast_id: int
    target: Target
    subject: str  # request id, load id or batch step
    made_ingest: int
    made_seconds: float
    starts_seconds: float  # the event-time origin of the predicted duration
    p50_seconds: float
    low_seconds: float
    high_seconds: float
    shape_cell: str
    model_version: str
    leans_on_degraded: bool = False  # a tap it used was not whole at the time
    nominal_coverage: float = NOMINAL_COVERAGE


class Follower(Protocol):
    """Learns what became of one forecast: told while it is overdue, and of a scored outcome."""

    def overdue(self, at_least_seconds: float) -> None:
        """The upper bound has passed; the outcome will be at least this."""

    def settle(self, actual_seconds: float) -> None:
        """The outcome."""


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A forecast and its outcome."""

    forecast: Forecast
    state: PairState
    actual_seconds: float | None
    paired_ingest: int
    missed: bool = False  # its age passed the upper bound: uncovered and bad, whatever came later

    @property
    def signed_error_seconds(self) -> float | None:
        """Actual less predicted; positive when reality took longer."""
        if self.actual_seconds is None:
            return None
        return self.actual_seconds - self.forecast.p50_seconds

    @property
    def covered(self) -> bool | None:
        """Whether the interval held the outcome."""
        if self.actual_seconds is None:
            return None
        return self.forecast.low_seconds <= self.actual_seconds <= self.forecast.high_seconds

    @property
    def bad(self) -> bool | None:
        """Off by more than a factor of two, after 25 ms of grace on both sides."""
        if self.actual_seconds is None:
            return None
        return is_bad(self.forecast.p50_seconds, self.actual_seconds)


def is_bad(predicted_seconds: float, actual_seconds: float) -> bool:
    """Whether a prediction was off by more than a factor of two, after grace on both sides."""
    predicted = predicted_seconds + BAD_OFFSET_SECONDS
    actual = actual_seconds + BAD_OFFSET_SECONDS
    return abs(math.log(predicted / actual)) > BAD_LOG_RATIO


class Ledger:
    """Holds open forecasts, pairs each once, and counts what became of all."""

    def __init__(self) -> None:
        self.pairs: deque[Pair] = deque(maxlen=MAX_KEPT_PAIRS)
        self.counts: dict[tuple[Target, PairState], int] = {
            (target, state): 0 for target in Target for state in PairState
        }
        self.missed: dict[Target, int] = dict.fromkeys(Target, 0)
        self._open: OrderedDict[tuple[Target, str], _OpenForecast] = OrderedDict()
        self._deadlines: list[tuple[float, int, tuple[Target, str]]] = []
        self._next_id = 0

    @property
    def open_count(self) -> int:
        """Forecasts that still wait for their outcome."""
        return len(self._open)

    def next_id(self) -> int:
        """A number for the next forecast, in the order of writing."""
        self._next_id += 1
        return self._next_id

    def write(self, forecast: Forecast, follower: Follower | None = None) -> Pair | None:
        """Store a forecast before its outcome; returns the pair that the bound pushed out, if any.

        One subject has at most one open forecast per target: the first stands. A follower hears
        of nothing that is not scored: not of late outcomes, nor of aborts before the bound.
        """
        key = (forecast.target, forecast.subject)
        if key in self._open:
            return None
        evicted = None
        if len(self._open) >= MAX_OPEN_FORECASTS:
            _, oldest = self._open.popitem(last=False)
            evicted = self._close(oldest, PairState.EVICTED, None, forecast.made_ingest)
        self._open[key] = _OpenForecast(forecast, follower)
        self.counts[forecast.target, PairState.OPEN] += 1
        self._set_deadline(forecast, forecast.high_seconds)
        if len(self._deadlines) > MAX_DEADLINES_PER_OPEN * len(self._open) + MIN_DEADLINES:
            self._drop_closed_deadlines()
        return evicted

    def pair(self, target: Target, subject: str, actual_seconds: float, ingest: int) -> Pair | None:
        """Close a forecast with its outcome, once. None when there is no open forecast.

        A negative outcome is a fault of clocks, not a wait: the forecast is censored.
        """
        entry = self._open.pop((target, subject), None)
        if entry is None:
            return None
        if not actual_seconds >= 0.0:
            return self._close(entry, PairState.CENSORED, None, ingest)
        outcome_seconds = entry.forecast.starts_seconds + actual_seconds
        late = outcome_seconds <= entry.forecast.made_seconds
        return self._close(
            entry, PairState.LATE if late else PairState.PAIRED, actual_seconds, ingest
        )

    def censor(self, target: Target, subject: str, ingest: int) -> Pair | None:
        """Close a forecast whose subject was aborted."""
        entry = self._open.pop((target, subject), None)
        if entry is None:
            return None
        return self._close(entry, PairState.CENSORED, None, ingest)

    def expire(self, now_seconds: float) -> None:
        """Turn every open forecast whose age passed its upper bound into a miss."""
        while self._deadlines and self._deadlines[0][0] < now_seconds:
            _, forecast_id, key = heapq.heappop(self._deadlines)
            entry = self._open.get(key)
            if entry is None or entry.forecast.forecast_id != forecast_id:
                continue
            if not entry.missed:
                entry.missed = True
                self.missed[entry.forecast.target] += 1
            if entry.follower is not None:
                age_seconds = now_seconds - entry.forecast.starts_seconds
                entry.follower.overdue(age_seconds)
                self._set_deadline(entry.forecast, OVERDUE_AGAIN * age_seconds)

    def missed_and_open(self) -> Iterator[Forecast]:
        """Forecasts whose upper bound has passed without an outcome: misses already."""
        return (entry.forecast for entry in self._open.values() if entry.missed)

    def recent(self, target: Target | None, limit: int) -> Iterator[Pair]:
        """The newest pairs first, of one target or of all."""
        found = 0
        for pair in reversed(self.pairs):
            if target is None or pair.forecast.target is target:
                yield pair
                found += 1
                if found >= limit:
                    return

    def _set_deadline(self, forecast: Forecast, age_seconds: float) -> None:
        deadline = forecast.starts_seconds + age_seconds
        key = (forecast.target, forecast.subject)
        heapq.heappush(self._deadlines, (deadline, forecast.forecast_id, key))

    def _drop_closed_deadlines(self) -> None:
        """Deadlines of closed forecasts would otherwise stay until they pass."""
        open_ids = {entry.forecast.forecast_id for entry in self._open.values()}
        self._deadlines = [entry for entry in self._deadlines if entry[1] in open_ids]
        heapq.heapify(self._deadlines)

    def _close(
        self, entry: _OpenForecast, state: PairState, actual_seconds: float | None, ingest: int
    ) -> Pair:
        forecast = entry.forecast
        missed = entry.missed
        if actual_seconds is not None:
            # News of an outcome may be late; the outcome itself decides.
            missed = actual_seconds > forecast.high_seconds
            self.missed[forecast.target] += missed - entry.missed
            if state is PairState.PAIRED and entry.follower is not None:
                entry.follower.settle(actual_seconds)
        pair = Pair(forecast, state, actual_seconds, ingest, missed)
        self.counts[forecast.target, PairState.OPEN] -= 1
        self.counts[forecast.target, state] += 1
        self.pairs.append(pair)
        return pair


class _OpenForecast:
    __slots__ = ("follower", "forecast", "missed")

    def __init__(self, forecast: Forecast, follower: Follower | None) -> None:
        self.forecast = forecast
        self.follower = follower
        self.missed = False
