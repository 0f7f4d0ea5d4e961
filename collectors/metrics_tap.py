"""The level-0 tap: an engine's /metrics, asked for by GET now and then.

A helper thread does the asking, so that a poll never waits longer than its budget. Rendering costs
the engine's API process, therefore never more often than every MIN_EVERY_SECONDS by the settings.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress

import msgspec

from kvready.collectors.collector import Coverage, Level, Sink, Stability
from kvready.collectors.counters import counters_of
from kvready.collectors.http_get import Answer, engine_url, get
from kvready.collectors.metrics_page import MetricsPage, read_page
from kvready.collectors.records import (
    CounterName,
    CountersScraped,
    TapEvent,
    TapState,
    TapStatus,
)

MIN_EVERY_SECONDS = 10.0
FAILURES_TO_DEGRADE = 3  # in a row: one page may be late under load
MAX_VERSION_CHARACTERS = 64
BLIND_TO = ("any single request", "what happened between two scrapes")
METRICS, VERSION = "/metrics", "/version"


class _Page(msgspec.Struct, frozen=True):
    """One answer with the moment that it came and the engine's version, if known."""

    answer: Answer
    received_seconds: float
    version: str | None


class MetricsTap:
    """Scrapes one engine. A restart shows as another start time, or as counters that went back."""

    def __init__(self, name: str, url: str, every_seconds: float = MIN_EVERY_SECONDS) -> None:
        self.name = name
        self.last: MetricsPage | None = None
        self._given_url = url
        self._url = ""
        self._every_seconds = every_seconds
        self._pages: queue.Queue[_Page] = queue.Queue(maxsize=1)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._sink: Sink | None = None
        self._state = TapState.CLOSED
        self._epoch = 0
        self._last_record: CountersScraped | None = None
        self._failures_in_a_row = 0
        self._records = self._messages = self._gaps = self._errors = 0
        self._last_received: float | None = None

    def start(self, sink: Sink) -> None:
        """Begin to scrape. Raises TapError for what is no address of an engine."""
        if self._thread is not None:
            return
        self._url = engine_url(self._given_url)
        self._sink = sink
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._scrape, args=(self._stopping,), name=f"scrape-{self.name}", daemon=True
        )
        self._thread.start()

    def poll(self, budget_seconds: float) -> int:
        """Take the page that came, waiting at most the budget for one."""
        if self._thread is None:
            return 0
        try:
            page = self._pages.get(budget_seconds > 0, budget_seconds)
        except queue.Empty:
            return 0
        return self._take(page)

    def stop(self) -> None:
        """Stop scraping; an answer under way is left to its thread, which then ends."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread = None
        self._pages = queue.Queue(maxsize=1)
        if self._state is not TapState.CLOSED:
            self._tell(TapEvent.CLOSED, TapState.CLOSED, time.monotonic())
        self._sink = None

    def coverage(self) -> Coverage:
        """What this tap can and cannot see, now."""
        refused = self._last_record.refused if self._last_record else ()
        return Coverage(
            tap=self.name,
            level=Level.METRICS,
            state=self._state,
            stability=Stability.BETA,
            records=self._records,
            messages=self._messages,
            gaps=self._gaps,
            decode_errors=self._errors,
            dropped=0,
            last_received_seconds=self._last_received,
            blind_to=(*BLIND_TO, *(f"{name}: counted wrongly by this version" for name in refused)),
        )

    def _scrape(self, stopping: threading.Event) -> None:
        pages, version = self._pages, None
        while not stopping.is_set():
            if version is None:
                version = _version(get(self._url, VERSION))
            answer = get(self._url, METRICS)
            if not answer.ok:
                version = None  # what answers next may be another one
            page = _Page(answer, time.monotonic(), version)
            # Where whoever polls is behind, the next page says all that this one does.
            with suppress(queue.Full):
                pages.put_nowait(page)
            stopping.wait(self._every_seconds)

    def _take(self, page: _Page) -> int:
        now = page.received_seconds
        if page.answer.status == 0 or page.answer.status >= 500:
            self._fail(page.answer, now)
            return 0
        self._messages += 1
        self._last_received = now
        text = page.answer.body.decode("utf-8", "replace") if page.answer.ok else ""
        read = read_page(text, page.version)
        if not read.engines:
            self._errors += 1
            self._tell(TapEvent.DECODE_ERROR, TapState.DEGRADED, now, _why(self._url, page.answer))
            return 1
        self._failures_in_a_row = 0
        record = counters_of(read, now)
        if self._last_record is not None and restarted(self._last_record, record):
            self._epoch += 1
            self._tell(TapEvent.EPOCH, TapState.LIVE, now)
        elif self._state is not TapState.LIVE:
            event = TapEvent.CONNECTED if self._last_record is None else TapEvent.HEALED
            self._tell(event, TapState.LIVE, now)
        if read.malformed or read.truncated:
            self._errors += 1
            detail = f"{read.malformed} lines could not be read"
            self._tell(TapEvent.DECODE_ERROR, TapState.LIVE, now, detail)
        self.last, self._last_record = read, record
        self._deliver(record, now)
        return 1

    def _fail(self, answer: Answer, now: float) -> None:
        self._failures_in_a_row += 1
        if self._failures_in_a_row == FAILURES_TO_DEGRADE and self._state is TapState.LIVE:
            self._gaps += 1
            self._tell(TapEvent.GAP, TapState.DEGRADED, now, _why(self._url, answer))

    def _tell(self, event: TapEvent, state: TapState, now: float, detail: str = "") -> None:
        self._state = state
        self._deliver(TapStatus(self.name, 0, event, state, self._epoch, detail=detail), now)

    def _deliver(self, record: CountersScraped | TapStatus, now: float) -> None:
        if self._sink is not None:
            self._sink(record, now, self.name)
            self._records += 1


def restarted(before: CountersScraped, after: CountersScraped) -> bool:
    """Whether another incarnation answered: started at another time, or counting anew."""
    started = CounterName.STARTED_WALL_SECONDS
    if started in before.values and started in after.values:
        return before.values[started] != after.values[started]
    tokens = CounterName.PROMPT_TOKENS
    return after.values.get(tokens, 0.0) < before.values.get(tokens, 0.0)


def _version(answer: Answer) -> str | None:
    if not answer.ok:
        return None
    try:
        told = msgspec.json.decode(answer.body, type=dict[str, object]).get("version")
    except msgspec.MsgspecError:
        return None
    return told[:MAX_VERSION_CHARACTERS] if isinstance(told, str) else None


def _why(url: str, answer: Answer) -> str:
    if answer.problem:
        return answer.problem
    if answer.status != 200:
        return f"{url}{METRICS} answered {answer.status}; check the address"
    return f"{url}{METRICS} holds no metric of vLLM; is this the engine's own address?"
