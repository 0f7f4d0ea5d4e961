"""Cuts serving into windows, in pairs of equal length, and sums each up once its requests are told.

Pure, fed in ingest order. Windows start when enough requests have ended to know how long one takes;
each pair is as long as that then asks for, so that nothing in a window decides how long it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kvready.advisor.hits import DELAY_HIT_TOKENS
from kvready.advisor.policies import ORDER, Policy, Scope
from kvready.advisor.requests import RequestState
from kvready.advisor.windows import (
    DROPPED_SHARE,
    MAX_REQUESTS,
    Arm,
    WindowRequest,
    WindowSummary,
    summarized,
)
from kvready.collectors.records import RequestFinished

REQUEST_TIMES = 5.0  # p95 of request times in a window, at least
MIN_WINDOW_SECONDS = 10.0
MAX_WINDOW_SECONDS = 3_600.0
MIN_ENDED = 32  # requests, before the first window
MAX_ENDED = 512  # the latest request times
HIGH_TIME = 0.95
MAX_OPEN_WINDOWS = 4  # the one that runs, and those whose requests are not all told

Key = tuple[Policy, Scope]


class Arms(Protocol):
    """Who is treated. Asked as a window begins, and again as it is summed up."""

    def subjects(self) -> Iterable[Key]:
        """Policies in scopes whose windows are wanted."""
        ...

    def window_arm(self, key: Key, window: int) -> Arm:
        """The arm of a window, by its number."""
        ...

    def taking_part(self, key: Key, requests: Sequence[WindowRequest]) -> list[WindowRequest]:
        """Those that would be treated in a treated window."""
        ...


class Untreated:
    """Nothing acts: every window is a control, of all requests."""

    def subjects(self) -> Iterable[Key]:
        """Each policy, everywhere."""
        return [(policy, Scope()) for policy in ORDER]

    def window_arm(self, key: Key, window: int) -> Arm:
        """Control."""
        return Arm.CONTROL

    def taking_part(self, key: Key, requests: Sequence[WindowRequest]) -> list[WindowRequest]:
        """All."""
        return list(requests)


class _Open:
    """A window whose requests are not all told."""

    def __init__(self, number: int, begin_seconds: float, length: float, arms: dict[Key, Arm]):
        self.number = number
        self.begin_seconds = begin_seconds
        self.end_seconds = begin_seconds + length
        self.length = length
        self.arms = arms
        self.requests: list[WindowRequest] = []
        self.untold: set[tuple[int, str]] = set()
        self.is_clean = length < MAX_WINDOW_SECONDS  # at the bound it may be too short

    def is_due(self, now_seconds: float) -> bool:
        """Whether all is told, or has had as long again to be."""
        if now_seconds < self.end_seconds:
            return False
        return not self.untold or now_seconds >= self.end_seconds + self.length


class WindowTracker:
    """One clock of windows for all policies; each key's arms and requests are its own."""

    def __init__(
        self,
        on_window: Callable[[Key, WindowSummary], None] | None = None,
        arms: Arms | None = None,
    ) -> None:
        self.arms: Arms = arms or Untreated()
        self.beyond = 0  # requests that the bound of a window left out
        self.cut_short: dict[str, int] = {}  # windows that are not clean, by what happened
        self._on_window = on_window or _ignore
        self._times: deque[float] = deque(maxlen=MAX_ENDED)
        self._open: deque[_Open] = deque()  # the last one runs
        self._rows: dict[tuple[int, str], tuple[_Open, WindowRequest]] = {}
        self._next = 0  # number of the next window; even: a pair begins
        self._is_running = False

    @property
    def window(self) -> int | None:
        """The number of the window that runs; None: none does yet."""
        return self._open[-1].number if self._is_running else None

    def arrived(self, rank: int, state: RequestState, now_seconds: float) -> None:
        """A request appeared."""
        self.tick(now_seconds)
        seen = state.arrived
        upstream = state.upstream
        window = self._window_at(state.arrived_seconds)
        if window is None:
            return
        if len(window.requests) >= MAX_REQUESTS:
            self.beyond += 1
            return
        row = WindowRequest(
            arrived_seconds=state.arrived_seconds,
            target_seconds=seen.ttft_target_seconds,
            tenant=seen.tenant,
            request_class=seen.request_class,
            group=_group(state),
            # Who was held before it came has nothing left to wait for by now.
            is_follower=state.promised_tokens >= DELAY_HIT_TOKENS
            or (upstream is not None and upstream.was_held),
        )
        window.requests.append(row)
        window.untold.add((rank, seen.request_id))
        self._rows[rank, seen.request_id] = window, row

    def first_token(
        self, rank: int, request_id: str, ttft_seconds: float, queue_seconds: float
    ) -> None:
        """A request's wait is over."""
        found = self._rows.get((rank, request_id))
        if found is not None:
            found[1].ttft_seconds = max(0.0, ttft_seconds)
            found[1].queue_seconds = queue_seconds

    def finished(self, rank: int, state: RequestState, record: RequestFinished) -> None:
        """A request ended. One without a first token has waited until now, and waits no longer."""
        seconds = record.finished_seconds - state.arrived_seconds
        first = state.first_token_seconds
        if first is not None and seconds >= 0.0:
            self._times.append(seconds)
        found = self._rows.pop((rank, record.request_id), None)
        if found is None:
            return
        window, row = found
        window.untold.discard((rank, record.request_id))
        if row.ttft_seconds is None:
            row.ttft_seconds = max(0.0, seconds)
        elif first is not None and record.output_tokens > 1:
            spent = record.finished_seconds - first
            row.output_token_seconds = max(0.0, spent) / (record.output_tokens - 1)

    def disturbed(self, why: str) -> None:
        """A stall, a gap or a restart: no open window is clean."""
        for window in self._open:
            if window.is_clean:
                window.is_clean = False
                self.cut_short[why] = self.cut_short.get(why, 0) + 1

    def begin_anew(self, now_seconds: float, why: str) -> None:
        """A policy moved, or time is missing: the pair that runs ends here, and another begins."""
        if not self._is_running:
            return
        self.disturbed(why)
        running = self._open[-1]
        running.end_seconds = min(running.end_seconds, now_seconds)
        self._next += self._next % 2
        self._begin(now_seconds, self._length())

    def tick(self, now_seconds: float) -> None:
        """Let time pass."""
        if not self._is_running:
            if len(self._times) >= MIN_ENDED:
                self._is_running = True
                self._begin(now_seconds, self._length())
            return
        running = self._open[-1]
        if now_seconds >= running.end_seconds + running.length:
            self.begin_anew(now_seconds, "time missing")
        elif now_seconds >= running.end_seconds:
            length = self._length() if self._next % 2 == 0 else running.length
            self._begin(running.end_seconds, length)
        while len(self._open) > 1 and self._open[0].is_due(now_seconds):
            self._close(self._open.popleft(), now_seconds)

    def _begin(self, begin_seconds: float, length: float) -> None:
        arms = {key: self.arms.window_arm(key, self._next) for key in self.arms.subjects()}
        self._open.append(_Open(self._next, begin_seconds, length, arms))
        self._next += 1
        while len(self._open) > MAX_OPEN_WINDOWS:
            self._close(self._open.popleft(), begin_seconds)

    def _length(self) -> float:
        ordered = sorted(self._times)
        high = ordered[min(len(ordered) - 1, int(HIGH_TIME * len(ordered)))]
        wanted = math.ceil(REQUEST_TIMES * high)
        return min(max(wanted, MIN_WINDOW_SECONDS), MAX_WINDOW_SECONDS)

    def _window_at(self, arrived_seconds: float) -> _Open | None:
        for window in reversed(self._open):
            if window.begin_seconds <= arrived_seconds < window.end_seconds:
                return window
        return None

    def _close(self, window: _Open, now_seconds: float) -> None:
        for request in window.untold:
            self._rows.pop(request, None)
        begin_seconds = window.begin_seconds + DROPPED_SHARE * window.length
        counted = [one for one in window.requests if one.arrived_seconds >= begin_seconds]
        for key, arm in window.arms.items():
            mine = self.arms.taking_part(key, counted)
            summary = summarized(
                mine,
                window.begin_seconds,
                window.end_seconds,
                now_seconds,
                arm,
                window.number // 2,
                window.is_clean,
            )
            self._on_window(key, summary)


def _ignore(key: Key, window: WindowSummary) -> None:
    """Nobody listens for windows."""


def _group(state: RequestState) -> int | None:
    """By what whoever acts on it draws: the gateway's key where it came through one."""
    if state.upstream is not None:
        return state.upstream.group
    hashes = state.arrived.block_hashes
    return hashes[0] if hashes else None
