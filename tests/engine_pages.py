"""An engine's HTTP side under a test's control: a real server, and pages that grow."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
PLAIN = (FIXTURES / "vllm_metrics.prom").read_text(encoding="utf-8")
OFFLOAD = (FIXTURES / "vllm_metrics_offload.prom").read_text(encoding="utf-8")
LINE = re.compile(r"^(vllm:[a-z0-9_]+)(\{.*\})? (\S+)$", re.MULTILINE)


def grown(page: str, amounts: dict[str, float]) -> str:
    """The page with these added, by `name` or `name{label="value"}`; each must be there."""
    missed = set(amounts)

    def add(match: re.Match[str]) -> str:
        name, labels, value = match.groups()
        total = float(value)
        for wanted, amount in amounts.items():
            wanted_name, _, label = wanted.rstrip("}").partition("{")
            if wanted_name == name and label in (labels or ""):
                total += amount
                missed.discard(wanted)
        return f"{name}{labels or ''} {total}"

    page = LINE.sub(add, page)
    assert not missed, missed
    return page


def set_to(page: str, values: dict[str, float]) -> str:
    """The page with these values instead."""

    def put(match: re.Match[str]) -> str:
        name, labels, value = match.groups()
        for wanted, chosen in values.items():
            wanted_name, _, label = wanted.rstrip("}").partition("{")
            if wanted_name == name and label in (labels or ""):
                value = str(chosen)
        return f"{name}{labels or ''} {value}"

    return LINE.sub(put, page)


def without(page: str, *parts: str) -> str:
    """The page without lines that contain any of these."""
    return "\n".join(line for line in page.split("\n") if not any(part in line for part in parts))


def with_ranks(page: str, ranks: int) -> str:
    """The page of an engine with so many data-parallel ranks, all alike."""
    copies = [page.replace('engine="0"', f'engine="{rank}"') for rank in range(1, ranks)]
    return "\n".join([page, *(without(copy, "process_start_time") for copy in copies)])


TRAFFIC = {
    'vllm:prompt_tokens_by_source_total{source="local_compute"': 1_000.0,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"': 2_000.0,
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"': 1_000.0,
    'vllm:prompt_tokens_cached_by_source_total{source="device"': 2_000.0,
    'vllm:prompt_tokens_cached_by_source_total{source="host"': 1_000.0,
    "vllm:prompt_tokens_total": 4_000.0,
    'vllm:time_to_first_token_seconds_bucket{le="0.1"': 8.0,
    'vllm:time_to_first_token_seconds_bucket{le="0.25"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="0.5"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="0.75"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="1.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="2.5"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="5.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="7.5"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="10.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="20.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="40.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="80.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="160.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="640.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="2560.0"': 10.0,
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"': 10.0,
    "vllm:time_to_first_token_seconds_count": 10.0,
    "vllm:time_to_first_token_seconds_sum": 1.0,
}
COPIES = {
    "vllm:kv_offload_load_bytes_total": 3e9,
    "vllm:kv_offload_load_time_total": 1.5,
    "vllm:kv_offload_store_bytes_total": 1e9,
    "vllm:kv_offload_store_time_total": 0.5,
}


class EngineHttp:
    """Serves pages on loopback; `asked` lists what was asked for. Use as a context manager.

    `pages` are given out one per scrape; the last one again and again.
    """

    def __init__(
        self,
        *pages: str,
        version: str | None = "0.32.0",
        sources: dict[str, Any] | None = None,
        model: str = "tiny",
    ) -> None:
        self.asked: list[tuple[str, str]] = []
        self.pages = list(pages)
        self.answers: dict[str, tuple[int, bytes]] = {
            "/health": (200, b""),
            "/v1/models": (200, json.dumps({"data": [{"id": model}]}).encode()),
        }
        if version is not None:
            self.answers["/version"] = (200, json.dumps({"version": version}).encode())
        if sources is not None:
            self.answers["/kv_event_sources"] = (200, json.dumps(sources).encode())
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> EngineHttp:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, bytes]:
        """What that path answers now."""
        if path == "/metrics" and self.pages:
            page = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
            return 200, page.encode()
        return self.answers.get(path, (404, b"{}"))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the server's own naming
                engine.asked.append(("GET", self.path))
                status, body = engine.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    engine.asked.append((name[3:], self.path))
                raise AttributeError(name)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


def kv_source(endpoint: str, replay: str | None = None, **more: Any) -> dict[str, Any]:
    """One rank's answer of /kv_event_sources."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "topic": "",
        **more,
    }
