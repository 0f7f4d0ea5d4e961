"""Where exports leave: a session of `requests` that no collector can lead astray or fill up.

The exporter itself takes any answer below 400 for a delivery and reads it whole. Here a redirect
is a failure, since whoever is named there was not configured and must not see the headers; the
body is read up to a bound in bytes and time; and what it says was refused is counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import requests
import urllib3
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvready.advisor.service.otel_counts import ExportCounts, Signal

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

MAX_ANSWER_BYTES = 65_536
ANSWER_SECONDS = 10.0
READ_BYTES = 4_096
MAX_SAID_CHARACTERS = 200


class Post(requests.Session):
    """One collector, one signal. `problem`: of the latest answer; empty: none."""

    def __init__(self, signal: Signal, counts: ExportCounts) -> None:
        super().__init__()
        self.problem = ""
        self._signal = signal
        self._counts = counts
        self.auth = _as_it_is  # else credentials from ~/.netrc replace those in our headers
        self.headers["Accept-Encoding"] = "identity"  # a bound on what comes bounds what it says

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """Send one export; what the exporter gets of the answer has no body."""
        try:
            answer = super().send(request, **{**options, "stream": True, "allow_redirects": False})
            with answer:
                body = _bounded_body(answer)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            self.problem = f"not reached: {_kind(error)}"
            raise
        if 300 <= answer.status_code < 400:
            self.problem = f"answers {answer.status_code}: it sends us elsewhere; name that place"
            raise requests.TooManyRedirects(self.problem)
        self.problem = "" if answer.ok else f"answers {answer.status_code} {answer.reason or ''}"
        if answer.ok and len(body) >= MAX_ANSWER_BYTES:
            self.problem = f"takes exports, but says over {MAX_ANSWER_BYTES:,} bytes to one"
        elif answer.ok:
            self._read(body)
        return answer

    def _read(self, body: bytes) -> None:
        """Note what was refused, or that this is no collector's answer."""
        try:
            if self._signal is Signal.METRICS:
                told = ExportMetricsServiceResponse.FromString(body).partial_success
                refused = int(told.rejected_data_points)
            else:
                told = ExportTraceServiceResponse.FromString(body).partial_success
                refused = int(told.rejected_spans)
        except DecodeError:
            self.problem = "takes exports, but does not answer as a collector does"
            return
        if refused > 0:
            self._counts.rejected(self._signal, refused)
        if refused > 0 or told.error_message:
            self.problem = f"refused {refused}: {printable(told.error_message)}"


def _bounded_body(answer: Response) -> bytes:
    """At most so much of it, for at most so long."""
    ends_seconds = time.monotonic() + ANSWER_SECONDS
    body = b""
    while len(body) < MAX_ANSWER_BYTES and time.monotonic() < ends_seconds:
        part: bytes = answer.raw.read1(READ_BYTES, decode_content=False)
        if not part:
            break
        body += part
    return body


def printable(text: str) -> str:
    """What another machine said, short and on one line."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_SAID_CHARACTERS])


def _kind(error: Exception) -> str:
    """Without the address, which stands beside it."""
    cause = error.args[0] if error.args else error
    reason = getattr(cause, "reason", None) or cause
    return f"{type(error).__name__}, {type(reason).__name__}"


def _as_it_is(request: PreparedRequest) -> PreparedRequest:
    return request
