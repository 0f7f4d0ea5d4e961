"""A real Prometheus and a real Alertmanager on free ports, and a pager that keeps what it gets."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml
from served import free_port

from dashboards import rule_file

START_SECONDS = 60.0
PAGER, TICKETS = "pager", "tickets"


class Told(NamedTuple):
    """One alert as a receiver got it."""

    receiver: str
    name: str
    instance: str
    tap: str
    firing: bool
    annotations: Mapping[str, str]
    at_seconds: float  # of this process' monotonic clock


class Receiver:
    """Webhooks of Alertmanager. What came is kept in order."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.told += [
                    Told(
                        self.path.strip("/"),
                        one["labels"]["alertname"],
                        one["labels"].get("instance", ""),
                        one["labels"].get("tap", ""),
                        one["status"] == "firing",
                        one["annotations"],
                        time.monotonic(),
                    )
                    for one in told["alerts"]
                ]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def of(self, receiver: str) -> list[Told]:
        """What one of them got."""
        return [one for one in self.told if one.receiver == receiver]

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Watch:
    """Prometheus with our rules, asked over its API."""

    def __init__(self, url: str, receiver: Receiver, hastened_by: float) -> None:
        self.url = url
        self.receiver = receiver
        self.hastened_by = hastened_by
        self.client = httpx.Client(base_url=url, timeout=30.0)
        self.began = time.time()

    def now(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The latest value of each series."""
        answer = self.client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", answer
        return {
            tuple(sorted(one["metric"].items())): float(one["value"][1])
            for one in answer["data"]["result"]
        }

    def since(self, expression: str) -> list[list[float]]:
        """The values of each series from the beginning on, a second apart."""
        asked = {"query": expression, "start": self.began, "end": time.time(), "step": 1.0}
        answer = self.client.get("/api/v1/query_range", params=asked).json()
        assert answer["status"] == "success", answer
        return [[float(value) for _, value in one["values"]] for one in answer["data"]["result"]]

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Return once it holds; fail where it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}; told: {self.receiver.told}"
            time.sleep(0.1)


@contextmanager
def watching(folder: Path, targets: list[str], hastened_by: float) -> Iterator[Watch]:
    """Both servers over these targets. All durations of the rules are divided by one factor."""
    receiver = Receiver()
    manager_port, port = free_port(), free_port()
    (folder / "rules.yaml").write_text(rule_file.hastened(rule_file.text(), hastened_by))
    minute = f"{round(60_000 / hastened_by)}ms"
    _write(folder / "manager.yaml", _routes(receiver.url))
    _write(folder / "prometheus.yaml", {
        "global": {"scrape_interval": minute, "scrape_timeout": minute,
                   "evaluation_interval": minute},
        "rule_files": [str(folder / "rules.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [
            {"targets": [f"127.0.0.1:{manager_port}"]}]}]},
        "scrape_configs": [{"job_name": "sidecars", "static_configs": [{"targets": targets}]}],
    })  # fmt: skip
    commands = (
        ["prometheus-alertmanager", f"--config.file={folder}/manager.yaml",
         f"--storage.path={folder}/manager", "--cluster.listen-address=",
         f"--web.listen-address=127.0.0.1:{manager_port}"],
        ["prometheus", f"--config.file={folder}/prometheus.yaml",
         f"--storage.tsdb.path={folder}/samples", f"--web.listen-address=127.0.0.1:{port}",
         "--storage.tsdb.retention.time=1h", "--log.level=warn"],
    )  # fmt: skip
    running = []
    watch = Watch(f"http://127.0.0.1:{port}", receiver, hastened_by)
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("w") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
        watch.wait(lambda: _is_ready(watch), START_SECONDS, "Prometheus is ready")
        yield watch
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)
        watch.client.close()
        receiver.close()


def _routes(url: str) -> dict[str, Any]:
    quick = {"group_wait": "100ms", "group_interval": "500ms", "repeat_interval": "1h"}
    return {
        "route": {
            "receiver": TICKETS,
            "group_by": ["alertname", "instance"],
            "routes": [{"receiver": PAGER, "matchers": ['severity="critical"']}],
        }
        | quick,
        "receivers": [
            {"name": name, "webhook_configs": [{"url": f"{url}/{name}", "send_resolved": True}]}
            for name in (PAGER, TICKETS)
        ],
    }


def _is_ready(watch: Watch) -> bool:
    try:
        return watch.client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def _write(path: Path, told: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(told), encoding="utf-8")
