"""What became of exports over OTLP, counted for the metrics and for `/v1/status`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from enum import StrEnum


class Signal(StrEnum):
    """What is exported."""

    METRICS = "metrics"
    TRACES = "traces"


class Result(StrEnum):
    """What became of one export."""

    DELIVERED = "delivered"
    FAILED = "failed"  # refused, not reached, or not answered in time
    BUSY = "busy"  # left out: the one before it had not ended
    UNREAD = "unread"  # left out: there was no snapshot in time


class Fate(StrEnum):
    """What became of one sampled decision."""

    DELIVERED = "delivered"
    FAILED = "failed"  # with its export
    DROPPED = "dropped"  # the queue was full


class ExportCounts:
    """Any thread may count, and read."""

    def __init__(self) -> None:
        self._exports: Counter[tuple[Signal, Result]] = Counter()
        self._spans: Counter[Fate] = Counter()
        self._rejected: Counter[Signal] = Counter()
        self._problems: dict[Signal, str] = {}
        self._delivered_seconds: dict[Signal, float] = {}
        self._lock = threading.Lock()

    def exported(self, signal: Signal, result: Result, problem: str = "") -> bool:
        """Count one export; whether its `problem` is another one than before."""
        with self._lock:
            self._exports[signal, result] += 1
            if result is Result.DELIVERED:
                self._delivered_seconds[signal] = time.monotonic()
            before = self._problems.get(signal, "")
            self._problems[signal] = problem
            return before != problem

    def rejected(self, signal: Signal, count: int) -> None:
        """Count points or spans that a collector took delivery of and refused."""
        with self._lock:
            self._rejected[signal] += count

    def spans(self, fate: Fate, count: int = 1) -> None:
        """Count decisions."""
        with self._lock:
            self._spans[fate] += count

    def exports(self) -> dict[tuple[Signal, Result], int]:
        """Exports by what became of them."""
        with self._lock:
            return {(one, end): self._exports[one, end] for one in Signal for end in Result}

    def fates(self) -> dict[Fate, int]:
        """Sampled decisions by what became of them."""
        with self._lock:
            return {fate: self._spans[fate] for fate in Fate}

    def rejections(self) -> dict[Signal, int]:
        """Points and spans that collectors refused."""
        with self._lock:
            return {signal: self._rejected[signal] for signal in Signal}

    def problem(self, signal: Signal) -> str:
        """What was wrong with the latest export; empty: nothing."""
        return self._problems.get(signal, "")

    def quiet_seconds(self) -> dict[Signal, float]:
        """Time since each signal was last delivered; without those that never were."""
        now = time.monotonic()
        with self._lock:
            return {one: max(now - last, 0.0) for one, last in self._delivered_seconds.items()}
