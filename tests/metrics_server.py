"""An engine's HTTP server as far as a scraper sees it, under a test's control."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvready.collectors.collector import Collector
from kvready.collectors.metrics_tap import MetricsTap

TAP = "metrics"
EVERY_SECONDS = 0.02
HOLD_SECONDS = 5.0  # an answer waits so long for a page to be published


def page(prompt_tokens: float, started: float = 1.0e9) -> bytes:
    """A page of one engine that counted so many prompt tokens, half of them computed."""
    labels = 'engine="0",model_name="m"'
    half = prompt_tokens / 2
    lines = (
        f"process_start_time_seconds {started}",
        f"vllm:num_requests_running{{{labels}}} 1.0",
        f"vllm:prompt_tokens_total{{{labels}}} {prompt_tokens}",
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} {half}',
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_cache_hit"}} {half}',
    )
    return ("\n".join(lines) + "\n").encode()


class MetricsServer(ThreadingHTTPServer):
    """Answers each GET of /metrics with the next page published. Also the contract kit's rig."""

    daemon_threads = True

    def __init__(self) -> None:
        self.pages: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self.always: bytes | None = None  # answered where nothing is queued
        self.asked: list[tuple[str, str]] = []
        self.version = b'{"version": "0.32.0"}'
        self._started = 1.0e9
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.command, self.path))
                status, body = outer._next() if self.path == "/metrics" else (200, outer.version)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A tap that was stopped does not wait for its answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def make(self) -> Collector:
        return MetricsTap(TAP, self.url, EVERY_SECONDS)

    def publish(self, sequence: int) -> None:
        self.pages.put((200, page(float(sequence), self._started)))

    def publish_frames(self, frames: Sequence[bytes]) -> None:
        self.pages.put((200, b"".join(frames)))

    def restart(self) -> None:
        self._started += 100.0

    def _next(self) -> tuple[int, bytes]:
        deadline = time.monotonic() + HOLD_SECONDS
        while time.monotonic() < deadline:
            try:
                return self.pages.get(timeout=0.05)
            except queue.Empty:
                if self.always is not None:
                    return 200, self.always
        return 503, b"nothing published"
