"""Calls that are being answered, and the threads that step aside for them meanwhile.

All threads of the sidecar share one interpreter. Whoever wants it waits until its holder lets it
go; and a holder in the middle of a backlog takes it back sooner than anybody wakes up. A call
changes threads several times. So a thread that takes in records looks, between two handfuls of
them, whether a call is being answered, and if so waits for its end: a bounded time, and never more
than half of the time, so that no number of calls starves a tap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from kvready.advisor.service.api_answers import ApiAnswers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# To the newest call. One that takes longer waits for its caller, or builds a report.
GIVEN_SECONDS = 0.01
DEFECT = 500  # what is answered, further out, for one who raised instead


class Work(StrEnum):
    """What a thread that steps aside does."""

    TAP = "tap"
    INGEST = "ingest"


class Until(StrEnum):
    """What ended a time that a thread stepped aside."""

    ANSWERED = "answered"
    BOUND = "bound"  # a call was still open


class Calls:
    """How many calls are open. Any thread may open one."""

    def __init__(self) -> None:
        self.open = 0
        self.answers = ApiAnswers()
        self.newest_seconds = 0.0
        self._lock = threading.Lock()
        self._givers: list[GivesWay] = []

    def giver(self, work: Work = Work.TAP) -> GivesWay:
        """For one thread that takes in records."""
        giver = GivesWay(self, work)
        with self._lock:
            self._givers.append(giver)
        return giver

    def given(self) -> dict[tuple[str, ...], int]:
        """How often threads stepped aside, by their work and by what ended it."""
        counts: dict[tuple[str, ...], int] = {(work, end): 0 for work in Work for end in Until}
        with self._lock:
            givers = list(self._givers)
        for giver in givers:
            cut_short = giver.cut_short  # read first: it is counted after `times`
            counts[giver.work, Until.BOUND] += cut_short
            counts[giver.work, Until.ANSWERED] += giver.times - cut_short
        return counts

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A call is open while the block runs."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """A call came."""
        with self._lock:
            self.newest_seconds = time.monotonic()
            if not self.open:
                for giver in self._givers:
                    giver.again.clear()
            self.open += 1

    def end(self) -> None:
        """It was answered."""
        with self._lock:
            self.open -= 1
            if not self.open:
                for giver in self._givers:
                    giver.again.set()


class GivesWay:
    """One thread's courtesy. `again` ends a wait: the thread is needed, or no call is left."""

    def __init__(self, calls: Calls, work: Work) -> None:
        self.work = work
        self.again = threading.Event()
        self.times = 0
        self.cut_short = 0  # times that the call was still open at the bound
        self._calls = calls
        self._own_until_seconds = 0.0

    def __call__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait while calls are open, and do `meanwhile` each time that the thread is needed.

        What it took is owed to records: for as long, no way is given again.
        """
        calls = self._calls
        if not calls.open or (began := time.monotonic()) < self._own_until_seconds:
            return
        ends = calls.newest_seconds + GIVEN_SECONDS
        while calls.open and (left := ends - time.monotonic()) > 0.0:
            if self.again.wait(left):
                self.again.clear()
                meanwhile()
        ended = time.monotonic()
        self.times += 1
        self.cut_short += calls.open > 0
        self._own_until_seconds = ended + (ended - began)


class Announced:
    """Opens a call for each request until the first part of its answer is out: what streams on
    after that takes its turn like all else. Counts each answer."""

    def __init__(self, app: ASGIApp, calls: Calls) -> None:
        self._app = app
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_open, is_begun = True, False

        async def passed(message: Message) -> None:
            nonlocal is_open, is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                self._calls.answers.count(scope["path"], message["status"])
            await send(message)
            if is_open and message["type"] == "http.response.body":
                is_open = False
                self._calls.end()

        self._calls.begin()
        try:
            await self._app(scope, receive, passed)
        finally:
            if is_open:
                self._calls.end()
            if not is_begun:
                self._calls.answers.count(scope["path"], DEFECT)
