"""The service under test: as an app in this process, or as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from fastapi import FastAPI

START_SECONDS = 90.0
KVREADY = (sys.executable, "-m", "kvready.advisor.cli")


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class AppClient:
    """Asks an app in this process."""

    def __init__(self, app: FastAPI) -> None:
        # Errors of the app are answers, not exceptions in the test.
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def get(self, path: str, **options: object) -> httpx.Response:
        """One answer."""

        return self.request("GET", path, **options)

    def post(self, path: str, **options: object) -> httpx.Response:
        """One answer."""
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: object) -> httpx.Response:
        """One answer."""

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://app"
            ) as client:
                return await client.request(method, path, **options)  # type: ignore[arg-type]

        return asyncio.run(ask())


class Served:
    """A `kvready serve` or `demo --serve` that runs."""

    def __init__(
        self, process: subprocess.Popen[str], port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.process = process
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=10.0, verify=tls or True)
        self.output = ""

    def get(self, path: str, **options: object) -> httpx.Response:
        """One answer."""
        return self.client.get(path, **options)  # type: ignore[arg-type]

    def wait_for(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Return once the condition holds; fail where it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended early: {self.end()[1]}"
            assert time.monotonic() < deadline, "the condition never held"
            time.sleep(0.02)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it; its exit code and what it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=60)
        self.client.close()
        self.output += out or ""
        return self.process.returncode, errors or ""


@contextmanager
def serving(
    *command: object,
    port: int,
    before: tuple[str, ...] = (),
    tls: ssl.SSLContext | None = None,
) -> Iterator[Served]:
    """Start a command that serves, wait until it answers, stop it at the end."""
    process = subprocess.Popen(
        [*before, *KVREADY, *map(str, command), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    served = Served(process, port, tls)

    def alive() -> bool:
        try:
            return served.get("/livez").status_code == 200
        except httpx.TransportError:
            return False

    try:
        served.wait_for(alive)
        yield served
    finally:
        if process.returncode is None:
            served.end()
