"""Predictions for requests that are known only once they have ended (level 2): backcasts.

Each is computed as if at the request's arrival: from reports of requests that had ended by then,
with the model as it stood then. Reports come late and out of order, so they wait until what ended
before them has come too, and are taken in order of their ends. Forecasts and backcasts are kept,
counted and shown apart, and nothing is ever decided on a backcast (design law 3).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from kvready.advisor.intervals import Interval
from kvready.advisor.ledger import is_bad
from kvready.advisor.outside_model import BackcastTarget, Depth, Frozen, OutsideModel
from kvready.collectors.clock import ClockMap, Mapped
from kvready.collectors.records import CounterName, CountersScraped, RequestReported
from kvready.collectors.request_ids import reported_id

SETTLE_SECONDS = 3.0  # until then a step of the wall clock would have been noticed
HOLD_SECONDS = 15.0  # exporters send every 5 s, and may have to try again
MAX_HELD_REPORTS = 32_768
MAX_MODELS = 8_192  # frozen ones: how far back a long request may have arrived
MAX_REMEMBERED_IDS = 65_536
MAX_KEPT_BACKCASTS = 16_384
MAX_DEPTHS = 8_192  # scrapes: how far back a long request may have found how many before it
DEPTH_AGE_SECONDS = 60.0  # an older scrape says nothing of a queue
AHEAD_SECONDS = 1.0  # an end so far after its report came: not this host's clock after all

EventTime = tuple[int, float]  # map number and wall seconds: ordered, whatever the clock did


class BackcastState(StrEnum):
    """What became of a report."""

    SCORED = "scored"
    OBSERVED = "observed"  # the observer saw the request: it has a forecast instead
    COLD = "cold"  # too little had ended when it arrived
    TOO_OLD = "too_old"  # it arrived before the oldest model that is kept
    UNTOLD = "untold"  # the report lacks the wait or the prompt's length
    UNPLACED = "unplaced"  # its times cannot be placed on one clock
    SHED = "shed"  # pushed out by the bound on held reports


class Backcast(msgspec.Struct, frozen=True, gc=False):
    """What would have been predicted at a request's arrival, and what happened. Seconds."""

    target: BackcastTarget
    request_id: str
    arrived_seconds: float
    p50_seconds: float
    low_seconds: float
    high_seconds: float
    actual_seconds: float
    model_version: str
    prompt_tokens: int

    @property
    def covered(self) -> bool:
        """Whether the interval held the outcome."""
        return self.low_seconds <= self.actual_seconds <= self.high_seconds

    @property
    def bad(self) -> bool:
        """Off by more than a factor of two, as a forecast would be."""
        return is_bad(self.p50_seconds, self.actual_seconds)


class _Placed(msgspec.Struct, frozen=True, order=True):
    """A report with its times on one clock."""

    ended: EventTime
    request_id: str
    ended_seconds: float
    arrived: EventTime
    arrived_seconds: float


class Backcaster:
    """Give it reports as they come and a tick each second; it never looks ahead."""

    def __init__(self, on_report: Callable[[RequestReported], None] | None = None) -> None:
        """`on_report` hears of each report once, when all that two taps tell of it is there."""
        self.backcasts: deque[Backcast] = deque(maxlen=MAX_KEPT_BACKCASTS)
        self.counts: dict[tuple[BackcastTarget, BackcastState], int] = {
            (target, state): 0 for target in BackcastTarget for state in BackcastState
        }
        self.bad: dict[BackcastTarget, int] = dict.fromkeys(BackcastTarget, 0)
        self.covered: dict[BackcastTarget, int] = dict.fromkeys(BackcastTarget, 0)
        self.late = 0  # reports that came after what ended later was taken in: never learned from
        self.duplicates = 0
        self._fresh: deque[tuple[float, str]] = deque()  # received, request
        self._reports: OrderedDict[str, RequestReported] = OrderedDict()  # held
        self._placed: list[_Placed] = []
        self._observed: OrderedDict[str, None] = OrderedDict()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._on_report = on_report or _ignore
        self._model = OutsideModel()
        self._ends: list[EventTime] = []
        self._models: list[Frozen] = []
        self._forgotten_models = False
        self._scraped: deque[float] = deque(maxlen=MAX_DEPTHS)  # when, and what it said
        self._depths: deque[Depth] = deque(maxlen=MAX_DEPTHS)

    @property
    def held(self) -> int:
        """Reports that wait for what ended before them."""
        return len(self._reports)

    def observe(self, scheduler_id: str) -> None:
        """The observer saw this request arrive: it is forecast, not backcast."""
        _remember(self._observed, reported_id(scheduler_id))

    def scrape(self, scrape: CountersScraped) -> None:
        """The engine's gauges: how many wait and run."""
        waiting = scrape.values.get(CounterName.WAITING)
        running = scrape.values.get(CounterName.RUNNING)
        last = self._scraped[-1] if self._scraped else -math.inf
        if waiting is not None and running is not None and scrape.scraped_seconds > last:
            self._scraped.append(scrape.scraped_seconds)
            self._depths.append(Depth(max(0.0, waiting), max(0.0, running)))

    def report(self, report: RequestReported, received_seconds: float) -> None:
        """Take in a report. Two taps may tell of one request: each adds what the other lacks."""
        request_id = report.request_id
        if request_id in self._done:
            self.duplicates += 1
            return
        held = self._reports.get(request_id)
        if held is not None:
            self.duplicates += 1
            self._reports[request_id] = merged(held, report)
            return
        if len(self._reports) >= MAX_HELD_REPORTS:
            self._count(BackcastState.SHED)
            return
        self._reports[request_id] = report
        self._fresh.append((received_seconds, request_id))

    def tick(self, now_seconds: float, clock: ClockMap) -> None:
        """Let time pass: place what has settled, take in what nothing earlier can precede."""
        while self._fresh and self._fresh[0][0] <= now_seconds - SETTLE_SECONDS:
            received_seconds, request_id = self._fresh.popleft()
            placed = _place(self._reports[request_id], received_seconds, clock)
            if placed is None:
                self._finish(request_id)
                self._count(BackcastState.UNPLACED)
            else:
                heapq.heappush(self._placed, placed)
        while self._placed and self._placed[0].ended_seconds <= now_seconds - HOLD_SECONDS:
            placed = heapq.heappop(self._placed)
            self._take(placed, self._finish(placed.request_id))

    def _take(self, placed: _Placed, report: RequestReported) -> None:
        frozen = self._model_at(placed.arrived)
        depth = self._depth_at(placed.arrived_seconds)
        waits = waits_of(report)
        made: list[tuple[Backcast, Interval]] = []
        for target in BackcastTarget:
            outcome = self._backcast(target, placed, report, frozen, waits[target], depth)
            if isinstance(outcome, BackcastState):
                self.counts[target, outcome] += 1
            else:
                made.append(outcome)
                self._keep(outcome[0])
        ttft_seconds, prompt_tokens = waits[BackcastTarget.TTFT], report.prompt_tokens
        if ttft_seconds is None or prompt_tokens is None:
            return
        if self._ends and placed.ended < self._ends[-1]:
            self.late += 1
            return
        for backcast, interval in made:
            interval.settle(backcast.actual_seconds)
        self._model.learn(prompt_tokens, ttft_seconds, waits[BackcastTarget.QUEUE], depth)
        self._freeze(placed.ended)

    def _backcast(
        self,
        target: BackcastTarget,
        placed: _Placed,
        report: RequestReported,
        frozen: Frozen | None,
        actual_seconds: float | None,
        depth: Depth | None,
    ) -> tuple[Backcast, Interval] | BackcastState:
        if report.request_id in self._observed:
            return BackcastState.OBSERVED
        if actual_seconds is None or report.prompt_tokens is None:
            return BackcastState.UNTOLD
        if frozen is None and self._forgotten_models:
            return BackcastState.TOO_OLD
        if frozen is None or not frozen.is_usable:
            return BackcastState.COLD
        interval = frozen.outlook(target, report.prompt_tokens, depth)
        backcast = Backcast(
            target=target,
            request_id=report.request_id,
            arrived_seconds=placed.arrived_seconds,
            p50_seconds=interval.p50_seconds,
            low_seconds=interval.low_seconds,
            high_seconds=interval.high_seconds,
            actual_seconds=actual_seconds,
            model_version=frozen.version,
            prompt_tokens=report.prompt_tokens,
        )
        return backcast, interval

    def _keep(self, backcast: Backcast) -> None:
        self.backcasts.append(backcast)
        self.counts[backcast.target, BackcastState.SCORED] += 1
        self.bad[backcast.target] += backcast.bad
        self.covered[backcast.target] += backcast.covered

    def _model_at(self, arrived: EventTime) -> Frozen | None:
        """The last model made of nothing that ended after this moment."""
        place = bisect_right(self._ends, arrived)
        return self._models[place - 1] if place else None

    def _depth_at(self, arrived_seconds: float) -> Depth | None:
        """How many waited and ran at the last scrape before this moment."""
        place = bisect_right(self._scraped, arrived_seconds) - 1
        if place < 0 or arrived_seconds - self._scraped[place] > DEPTH_AGE_SECONDS:
            return None
        return self._depths[place]

    def _freeze(self, ended: EventTime) -> None:
        if len(self._ends) >= MAX_MODELS:
            half = MAX_MODELS // 2
            del self._ends[:half]
            del self._models[:half]
            self._forgotten_models = True
        self._ends.append(ended)
        self._models.append(self._model.frozen())

    def _finish(self, request_id: str) -> RequestReported:
        _remember(self._done, request_id)
        report = self._reports.pop(request_id)
        self._on_report(report)
        return report

    def _count(self, state: BackcastState) -> None:
        for target in BackcastTarget:
            self.counts[target, state] += 1


def waits_of(report: RequestReported) -> dict[BackcastTarget, float | None]:
    """What really happened. Statistics do not tell a request's TTFT, but what followed it."""
    ttft_seconds = report.ttft_seconds
    if ttft_seconds is None and report.whole_seconds is not None:
        decode_seconds = report.decode_seconds
        if decode_seconds is not None and decode_seconds <= report.whole_seconds:
            ttft_seconds = report.whole_seconds - decode_seconds
    return {BackcastTarget.TTFT: ttft_seconds, BackcastTarget.QUEUE: report.queue_seconds}


def merged(one: RequestReported, other: RequestReported) -> RequestReported:
    """All that two reports of a request tell; the same whichever came first."""
    first, second = sorted((one, other), key=_told_first)
    missing = {
        name: getattr(second, name)
        for name in RequestReported.__struct_fields__
        if getattr(first, name) is None
    }
    return msgspec.structs.replace(first, **missing)


def _told_first(report: RequestReported) -> tuple[bool, bool, bytes]:
    """Times on our own clock first, then the first token; the bytes settle the rest."""
    return (not report.same_host, report.ttft_seconds is None, msgspec.msgpack.encode(report))


def _place(report: RequestReported, received_seconds: float, clock: ClockMap) -> _Placed | None:
    arrived_wall, ended_wall = report.arrived_wall_seconds, report.ended_wall_seconds
    if not report.same_host or arrived_wall is None or ended_wall is None:
        return None
    arrived, ended = clock.to_monotonic(arrived_wall), clock.to_monotonic(ended_wall)
    if arrived is None or ended is None:
        return None
    if ended.seconds > received_seconds + ended.error_seconds + AHEAD_SECONDS:
        return None
    return _Placed(
        ended=_event_time(ended, ended_wall),
        request_id=report.request_id,
        ended_seconds=ended.seconds,
        arrived=_event_time(arrived, arrived_wall),
        arrived_seconds=arrived.seconds,
    )


def _event_time(mapped: Mapped, wall_seconds: float) -> EventTime:
    return mapped.map_number, wall_seconds


def _ignore(report: RequestReported) -> None:
    """Nobody listens for reports."""


def _remember(names: OrderedDict[str, None], name: str) -> None:
    names[name] = None
    if len(names) > MAX_REMEMBERED_IDS:
        names.popitem(last=False)
