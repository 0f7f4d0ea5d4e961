"""What an OTLP export is worth, the same over HTTP and gRPC: decoded, counted, passed on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kvready.collectors.records import RequestReported
from kvready.collectors.spans import MalformedExport, decode_export

MAX_EXPORT_BYTES = 8 * 2**20  # decompressed; exporters send some 512 spans, of 1 KiB each
MAX_WAITING_REPORTS = 65_536  # decoded, not yet polled


class Export(NamedTuple):
    """One export as it came. `encoding` is how `body` is compressed, empty if it is not."""

    body: bytes
    encoding: str
    payload: bytes  # decompressed


class Arrival(NamedTuple):
    """The requests that one export told of, and when it came."""

    reports: list[RequestReported]
    malformed: int
    received_seconds: float


class Refusal(Exception):
    """An export cannot be taken; `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Exchange:
    """Where the receivers' threads leave what they took, and the tap's thread finds it."""

    def __init__(self, forward: Callable[[Export], None] | None = None) -> None:
        self.exports = 0
        self.spans = 0
        self.refused = 0
        self.dropped = 0  # reports
        self.last_refusal = ""
        self.refused_seconds = 0.0
        self._forward = forward
        self._arrivals: deque[Arrival] = deque()
        self._waiting = 0
        self._refusals_to_tell = 0
        self._lock = threading.Lock()
        self._something = threading.Event()

    def take(self, export: Export, same_host: bool) -> None:
        """Decode one export and leave it for the tap. Raises Refusal for what cannot be read."""
        try:
            decoded = decode_export(export.payload, same_host)
        except MalformedExport as error:
            raise Refusal(400, str(error)) from None
        now = time.monotonic()
        with self._lock:
            self.exports += 1
            self.spans += decoded.spans
            room = max(MAX_WAITING_REPORTS - self._waiting, 0)
            reports = decoded.reports[:room]
            self.dropped += len(decoded.reports) - len(reports)
            self._waiting += len(reports)
            self._arrivals.append(Arrival(reports, decoded.malformed, now))
            if len(self._arrivals) > MAX_WAITING_REPORTS:
                self._waiting -= len(self._arrivals.popleft().reports)
        self._something.set()
        if self._forward is not None:
            self._forward(export)

    def refuse(self, refusal: Refusal) -> None:
        """Count what could not be taken."""
        with self._lock:
            self.refused += 1
            self.last_refusal = refusal.reason
            self.refused_seconds = time.monotonic()
            self._refusals_to_tell += 1
        self._something.set()

    def collect(self, budget_seconds: float) -> tuple[list[Arrival], int]:
        """What came since the last call, and how many were refused; waits at most the budget."""
        if budget_seconds > 0:
            self._something.wait(budget_seconds)
        self._something.clear()
        with self._lock:
            arrivals, self._arrivals = list(self._arrivals), deque()
            refusals, self._refusals_to_tell = self._refusals_to_tell, 0
            self._waiting = 0
        return arrivals, refusals
