"""The only way in which an engine is asked over HTTP: one GET, bounded in time and size.

Plain `http.client`, so that it works with the base install and no proxy variable can send a
question about a local engine elsewhere. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from kvready.collectors.endpoint import bracketed
from kvready.collectors.errors import TapError

MAX_BODY_BYTES = 16 * 2**20
GET_SECONDS = 10.0  # an API process under load renders a page of metrics in seconds
PIECE_BYTES = 1 << 16


class Answer(NamedTuple):
    """What came back. `status` 0: nothing did, and `problem` says why."""

    status: int
    body: bytes
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a body to read."""
        return self.status == 200 and not self.problem


def engine_url(text: str) -> str:
    """An engine's address, without path. Raises TapError that names the form."""
    given = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TapError(f"{text!r} is no address of an engine; write it as http://host:port")
    return f"{parts.scheme}://{bracketed(parts.hostname)}" + (f":{port}" if port else "")


def get(url: str, path: str, timeout_seconds: float = GET_SECONDS) -> Answer:
    """GET one path of an engine. Never raises for what the other side does."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    try:
        connection.request("GET", path, headers={"Accept": "text/plain, application/json"})
        response = connection.getresponse()
        body = bytearray()
        while piece := response.read1(PIECE_BYTES):
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return Answer(response.status, b"", f"{path} is larger than {MAX_BODY_BYTES} bytes")
            if time.monotonic() > deadline:
                return Answer(
                    response.status, b"", f"{path} did not end within {timeout_seconds:g} s"
                )
        return Answer(response.status, bytes(body))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, b"", f"{url}{path}: {str(error) or type(error).__name__}")
    finally:
        connection.close()
