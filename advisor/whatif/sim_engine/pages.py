"""The HTTP side of the simulated engine: what vLLM's server answers to a GET, nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from kvready.collectors.bounded_server import BoundedServer
from kvready.collectors.errors import ServiceError

REQUEST_SECONDS = 10.0
MAX_CONNECTIONS = 32
STOP_SECONDS = 5.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"

Page = Callable[[], bytes]


class PageServer:
    """Serves pages made anew for each request, from a thread of its own."""

    def __init__(self, host: str, port: int, pages: Mapping[str, tuple[str, Page]]) -> None:
        try:
            self._server = _Server((host, port), pages)
        except OSError as error:
            raise ServiceError(
                f"cannot listen on {host}:{port}: {error.strerror}; name another --port"
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="pages", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Safe twice."""
        self._server.shutdown()
        self._thread.join(STOP_SECONDS)
        self._server.server_close()


def json_page(value: Callable[[], object]) -> tuple[str, Page]:
    """A page of JSON."""
    return JSON, lambda: json.dumps(value()).encode()


class _Server(BoundedServer):
    block_on_close = False

    def __init__(self, address: tuple[str, int], pages: Mapping[str, tuple[str, Page]]) -> None:
        self.pages = pages
        super().__init__(address, _Handler, MAX_CONNECTIONS)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        """One page."""
        found = self.server.pages.get(self.path.partition("?")[0])
        kind, body = (found[0], found[1]()) if found else (JSON, b'{"detail":"Not Found"}')
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
