"""A collector on a port of its own: keeps what it is sent, and answers as it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kvready.collectors.otlp_http import gunzip

Labels = tuple[tuple[str, str], ...]


class Sent(NamedTuple):
    """One export as it came, decompressed."""

    path: str
    headers: dict[str, str]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    """Answers with what the collector's `answer` does; by default like one that took all."""

    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gunzip(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.sent.append(Sent(self.path, headers, body))
        self.server.answer(self)

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Collector(ThreadingHTTPServer):
    """Use it as a context."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Handler], None] = lambda handler: handler.say(200)):
        super().__init__(("127.0.0.1", 0), Handler)
        self.sent: list[Sent] = []
        self.answer = answer
        self.over = threading.Event()  # for answers that wait
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """An exporter that gave up is no error of ours."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def exports(self) -> list[ExportMetricsServiceRequest]:
        """Of metrics, oldest first."""
        sent = [one.body for one in list(self.sent) if one.path == "/v1/metrics"]
        return [ExportMetricsServiceRequest.FromString(body) for body in sent]

    def spans(self) -> list[Span]:
        """All, oldest first."""
        sent = [one.body for one in list(self.sent) if one.path == "/v1/traces"]
        return [
            span
            for body in sent
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return once the condition holds; fail where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def metrics_of(export: ExportMetricsServiceRequest) -> list[Metric]:
    """Those of all scopes."""
    return [
        metric
        for resource in export.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def read(value: AnyValue) -> object:
    """What an attribute says."""
    return getattr(value, str(value.WhichOneof("value")))


def attributes(pairs: list[KeyValue]) -> dict[str, object]:
    """Attributes by name."""
    return {pair.key: read(pair.value) for pair in pairs}
