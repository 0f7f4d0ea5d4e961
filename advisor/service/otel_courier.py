"""Hands exports of one signal to its exporter, one at a time, and never waits beyond a bound.

The exporter has a timeout of its own, on each read from the collector. One that answers a byte at
a time outlasts it, so the export runs in a thread that is not waited for any longer; until it ends
no other begins, and those left out are counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from kvready.advisor.service.otel_counts import ExportCounts, Result, Signal

PATIENCE_SECONDS = 30.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Courier(Generic[T]):
    """One exporter's. `send` from one thread."""

    def __init__(
        self,
        signal: Signal,
        export: Callable[[T], bool],
        problem: Callable[[], str],
        counts: ExportCounts,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """`problem`: what the exporter's latest answer was like; empty: as it should be."""
        self._signal = signal
        self._export = export
        self._problem = problem
        self._counts = counts
        self._patience_seconds = patience_seconds
        self._thread: threading.Thread | None = None

    def send(self, data: T) -> bool:
        """Whether it was delivered, within the bound."""
        if self._thread is not None and self._thread.is_alive():
            self._say(Result.BUSY, "the export before it has not ended")
            return False
        box: list[bool] = []
        self._thread = threading.Thread(
            target=self._attempt,
            args=(data, box),
            name=f"otlp-{self._signal}",
            daemon=True,  # nothing that a collector does keeps the process alive
        )
        self._thread.start()
        self._thread.join(self._patience_seconds)
        if self._thread.is_alive():
            self._say(Result.FAILED, f"no end after {self._patience_seconds:g} s")
            return False
        problem = self._problem()
        if box == [True]:
            self._say(Result.DELIVERED, problem)
            return True
        self._say(Result.FAILED, problem or "it could not be sent")
        return False

    def _attempt(self, data: T, box: list[bool]) -> None:
        try:
            box.append(self._export(data))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one export that failed
            # Its text may hold what was sent.
            logger.warning("an export of %s failed: %s", self._signal, type(error).__name__)

    def _say(self, result: Result, problem: str) -> None:
        if self._counts.exported(self._signal, result, problem) and problem:
            logger.warning("exports of %s: %s", self._signal, problem)
