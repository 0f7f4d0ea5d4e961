"""One question over HTTP/1.1 that ends in time, whatever the other side does.

A socket's own timeout starts anew with each byte, so that a peer that sends one now and then holds
its caller for hours; here each wait is what is left until a moment.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

MAX_BODY_BYTES = 65_536
LEAST_SECONDS = 0.001


class Reply(NamedTuple):
    """What came back, whole."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class TooLate(OSError):
    """The answer was not there in time."""


class _Bounded:
    """Mixed into a socket: no read goes on beyond `ends_seconds` (monotonic)."""

    ends_seconds = float("inf")

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        left_seconds = self.ends_seconds - time.monotonic()
        if left_seconds <= 0.0:
            raise TooLate("the answer was not there in time")
        self.settimeout(max(left_seconds, LEAST_SECONDS))  # type: ignore[attr-defined]
        return super().recv_into(*arguments, **options)  # type: ignore[misc, no-any-return]


class _PlainSocket(_Bounded, socket.socket):
    pass


class _TlsSocket(_Bounded, ssl.SSLSocket):
    pass


class _Connection(http.client.HTTPConnection):
    """Connects to a socket with an end; through TLS where there is a context for it."""

    def __init__(self, place: SplitResult, seconds: float, tls: ssl.SSLContext | None) -> None:
        port = place.port or (443 if tls else 80)
        super().__init__(place.hostname or "", port, timeout=seconds)
        self._seconds = seconds
        self._tls = tls
        self._bounded: _PlainSocket | _TlsSocket | None = None

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self._seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bounded: _PlainSocket | _TlsSocket = _PlainSocket(fileno=plain.detach())
        bounded.settimeout(self._seconds)
        try:
            if self._tls is not None:
                wrapped = self._tls.wrap_socket(bounded, server_hostname=self.host)
                assert isinstance(wrapped, _TlsSocket)
                bounded = wrapped
        except OSError:
            bounded.close()
            raise
        self.sock = self._bounded = bounded

    def end_by(self, ends_seconds: float) -> None:
        """Nothing is read after this moment."""
        if self._bounded is not None:
            self._bounded.ends_seconds = ends_seconds


class Asker:
    """Asks one server, over one connection for as long as that lasts. One thread."""

    def __init__(self, url: str, seconds: float, tls: ssl.SSLContext | None = None) -> None:
        """`seconds`: from the question to the end of the answer. Raises ValueError for the URL."""
        self._place = urlsplit(url)
        # Reading the port raises where it is none.
        is_whole = bool(self._place.hostname) and self._place.port != 0
        if self._place.scheme not in ("http", "https") or not is_whole:
            raise ValueError(f"{url!r} is no URL; write http://HOST:PORT")
        self._tls = None
        if self._place.scheme == "https":
            self._tls = tls or ssl.create_default_context()
            self._tls.sslsocket_class = _TlsSocket
        self._seconds = seconds
        self._connection: _Connection | None = None

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Reply:
        """One answer. Raises OSError, HTTPException or ValueError where there is none."""
        ends_seconds = time.monotonic() + self._seconds
        connection = self._connection
        try:
            if connection is None:
                connection = _Connection(self._place, self._seconds, self._tls)
                self._connection = connection
                connection.connect()
            connection.end_by(ends_seconds)
            target = self._place.path.rstrip("/") + path
            connection.request("POST", target, body, headers)
            with connection.getresponse() as response:
                content = response.read(MAX_BODY_BYTES + 1)
            if len(content) > MAX_BODY_BYTES:
                raise http.client.HTTPException("the answer is too long")
            if response.will_close:
                self.close()
            return Reply(response.status, response.headers, content)
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection; the next question makes another. Safe twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
