"""A small TCP server with a thread per connection, and a bound on connections."""

from __future__ import annotations

import threading
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any


class BoundedServer(ThreadingTCPServer):
    """Serves until closed. Connections beyond the bound are closed at once.

    Not `http.server`'s own server, which asks the network for this host's name when it binds.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseRequestHandler], connections: int
    ) -> None:
        self._places = threading.BoundedSemaphore(connections)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread of its own, or close it where too many are open."""
        if not self._places.acquire(blocking=False):
            self.turned_away()
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def turned_away(self) -> None:
        """A connection was one too many."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is not printed."""
