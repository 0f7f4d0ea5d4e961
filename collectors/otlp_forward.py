"""Passes exports on, bytes untouched, to the one collector that the engine would have used.

An engine exports to one endpoint only, so that whoever listens in its place must pass on. A thread
of its own does it behind a bounded queue: a downstream that is slow or away costs its own spans,
which are counted, and never holds up the engine's exporter.
"""

from __future__ import annotations

import http.client
import queue
import threading
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from kvready.collectors.errors import TapError
from kvready.collectors.otlp_exchange import Export
from kvready.collectors.otlp_grpc import METHOD, SERVICE, load_grpc
from kvready.collectors.otlp_http import PROTOBUF, TRACES_PATH

MAX_QUEUED_EXPORTS = 256
MAX_QUEUED_BYTES = 64 * 2**20
SEND_SECONDS = 10.0
WAIT_SECONDS = 0.2


class Downstream(Protocol):
    """Where exports go."""

    def send(self, export: Export) -> None:
        """Send one; raises OSError or HTTPException where that fails."""
        ...

    def close(self) -> None: ...


class Forwarder:
    """A bounded queue and the thread that empties it. `close` is safe twice."""

    def __init__(self, endpoint: str) -> None:
        self.sent = 0
        self.dropped = 0  # exports
        self.last_problem = ""
        self._downstream = downstream_of(endpoint)
        self._queue: queue.Queue[Export] = queue.Queue(MAX_QUEUED_EXPORTS)
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-forward", daemon=True)
        self._thread.start()

    def put(self, export: Export) -> None:
        """Queue one export, or count it as dropped. Never blocks."""
        size = len(export.payload) + len(export.body)
        with self._lock:
            fits = self._queued_bytes + size <= MAX_QUEUED_BYTES
            if fits:
                self._queued_bytes += size
        if fits:
            try:
                self._queue.put_nowait(export)
                return
            except queue.Full:
                self._release(size)
        self._drop("the queue to the downstream collector is full")

    def close(self) -> None:
        """Send what is queued for a moment longer, then stop."""
        self._stopping.set()
        self._thread.join(SEND_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                export = self._queue.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                if self._stopping.is_set():
                    break
                continue
            try:
                self._downstream.send(export)
                self.sent += 1
            except (OSError, http.client.HTTPException) as error:
                self._drop(str(error) or type(error).__name__)
            finally:
                self._release(len(export.payload) + len(export.body))
        self._downstream.close()

    def _release(self, size: int) -> None:
        with self._lock:
            self._queued_bytes -= size

    def _drop(self, problem: str) -> None:
        with self._lock:
            self.dropped += 1
            self.last_problem = problem


class _HttpDownstream:
    """A collector that takes OTLP over HTTP, over a connection made anew for each export."""

    def __init__(self, scheme: str, host: str, port: int | None, path: str) -> None:
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=SEND_SECONDS)
        self._path = path

    def send(self, export: Export) -> None:
        """Send the body as it came."""
        headers = {"Content-Type": PROTOBUF}
        if export.encoding:
            headers["Content-Encoding"] = export.encoding
        try:
            self._connection.request("POST", self._path, export.body, headers)
            response = self._connection.getresponse()
            response.read(4_096)
        finally:
            self._connection.close()
        if response.status // 100 != 2:
            raise OSError(f"the downstream collector answered {response.status}")

    def close(self) -> None:
        """Nothing stays open between exports."""


class _GrpcDownstream:
    """A collector that takes OTLP over gRPC, without TLS."""

    def __init__(self, where: str) -> None:
        grpc = load_grpc()
        self._failure: type[Exception] = grpc.RpcError
        self._channel: Any = grpc.insecure_channel(where)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}")

    def send(self, export: Export) -> None:
        """Send the message as it came, decompressed."""
        try:
            self._call(export.payload, timeout=SEND_SECONDS)
        except self._failure as error:
            raise OSError(f"the downstream collector refused: {error}") from None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class Address(NamedTuple):
    """A downstream's address, taken apart."""

    scheme: str
    host: str
    port: int | None
    path: str


def parse_downstream(endpoint: str) -> Address:
    """The address that an endpoint names. Raises TapError that names the forms."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if not host or parts.scheme not in ("http", "https", "grpc"):
        raise TapError(
            f"{endpoint!r} is no place to forward spans to; write grpc://host:4317 or "
            f"http://host:4318{TRACES_PATH}"
        )
    path = parts.path if parts.path not in ("", "/") else TRACES_PATH
    return Address(parts.scheme, host, port, path)


def downstream_of(endpoint: str) -> Downstream:
    """The downstream that an endpoint names. Raises TapError that names the forms."""
    scheme, host, port, path = parse_downstream(endpoint)
    if scheme == "grpc":
        return _GrpcDownstream(f"{f'[{host}]' if ':' in host else host}:{port or 4317}")
    return _HttpDownstream(scheme, host, port, path)
