"""A gateway before a stub engine, in a thread of its own, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from stub_engine import StubEngine, wait_for

from kvready.advisor.gateway.costs import Costs
from kvready.advisor.gateway.server import GatewaySettings, Parts, listening, serve
from kvready.advisor.policies import Policy

LONG = "x" * 4_000  # a prompt's beginning that is worth waiting for
NO_SIDECAR = "http://127.0.0.1:9"
LONGEST_SECONDS = 600.0  # no hold ends by itself unless a test wants it to


class StubCosts(Costs):
    """What computing takes, whatever it is and whenever it is asked; None: not known."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed: float | None = LONGEST_SECONDS

    def seconds(self, tokens: int, now: float) -> float | None:
        return self.fixed


class StubFlags:
    """Flags under a test's control."""

    def __init__(self) -> None:
        self.on = False
        self.split = False
        self.untreated: set[int] = set()
        self.excluded: set[str] = set()

    def is_on(self, policy: Policy) -> bool:
        return self.on and not self.split

    def is_split(self, policy: Policy) -> bool:
        return self.on and self.split

    def treats(self, policy: Policy, prefix_group: int | None, cell: str = "") -> bool:
        return self.on and prefix_group not in self.untreated and cell not in self.excluded


class Rig:
    """The parts under test, and a client of them."""

    def __init__(
        self,
        parts: Parts,
        engine: StubEngine,
        flags: StubFlags,
        costs: StubCosts,
        ports: list[int],
        stop: Callable[[], None],
    ) -> None:
        self.parts = parts
        self.engine = engine
        self.flags = flags
        self.costs = costs
        self.stop = stop
        self.port = ports[0]
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.own_url = f"http://127.0.0.1:{ports[1]}"

    def post(
        self, body: object, path: str = "/v1/completions", **options: object
    ) -> httpx.Response:
        with httpx.Client(timeout=60.0) as client:
            return client.post(self.url + path, json=body, **options)  # type: ignore[arg-type]

    def metric(self, name: str, label: str = "") -> float:
        text = httpx.get(f"{self.own_url}/metrics", timeout=60.0).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                named = sample.name == f"kvready_gateway_{name}"
                if named and (not label or label in sample.labels.values()):
                    return sample.value
        raise KeyError(name)

    def wait_for_metric(self, name: str, label: str, value: float) -> None:
        wait_for(lambda: self.metric(name, label) == value, f"{name}{{{label}}} of {value}")

    @contextmanager
    def asking(self, tail: str = "", **more: object) -> Iterator[Asking]:
        """A request under way, which is abandoned at the end if it has no answer by then."""
        asking = Asking(self, {"model": "m", "prompt": LONG + tail, "stream": True, **more})
        try:
            yield asking
        finally:
            asking.leave()


class Asking:
    """One streamed request whose answer is read byte by byte."""

    def __init__(self, rig: Rig, body: dict[str, object]) -> None:
        raw = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", rig.port), 60.0)
        self.got = b""
        self.socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(raw), raw)
        )

    def until(self, end: bytes) -> bytes:
        """All that came up to the first of these bytes."""
        self.socket.settimeout(60.0)
        while end not in self.got:
            part = self.socket.recv(65_536)
            assert part, f"cut off after {self.got!r}"
            self.got += part
        return self.got

    def whole(self) -> bytes:
        return self.until(b"0\r\n\r\n")

    def leave(self) -> None:
        self.socket.close()


@contextmanager
def gateway(
    engine_url: str | None = None,
    tokenizer: bool = False,
    observer_dir: Path | None = None,
    sidecar_url: str = NO_SIDECAR,
    asks_flags: bool = False,
    **settings: object,
) -> Iterator[Rig]:
    """Start it, stop it at the end.

    `sidecar_url`: empty for the stub engine's; `asks_flags`: of it, instead of obeying ours.
    """
    engine, flags = StubEngine(), StubFlags()
    given = GatewaySettings(
        engine=engine_url or engine.url,
        sidecar=sidecar_url or engine.url,
        has_tokenizer=tokenizer,
        hold_seconds=LONGEST_SECONDS,
        observer_dir=observer_dir,
        **settings,  # type: ignore[arg-type]
    )
    parts = Parts(given, None if asks_flags else flags)
    parts.door.costs = costs = StubCosts()
    with listening("127.0.0.1", 0) as front, listening("127.0.0.1", 0) as back:
        ready, ended = threading.Event(), threading.Event()
        loop: list[asyncio.AbstractEventLoop] = []
        stopping: list[asyncio.Event] = []

        def stop() -> None:
            if not ended.is_set():
                loop[0].call_soon_threadsafe(stopping[0].set)

        async def run() -> None:
            await engine.start()
            loop.append(asyncio.get_running_loop())
            stopping.append(asyncio.Event())
            ready.set()
            try:
                await serve(parts, front, back, stopping[0])
            finally:
                engine.stop()
                ended.set()

        if asks_flags:
            parts.client.start()
        parts.teller.open()
        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        try:
            assert ready.wait(60.0)
            ports = [one.getsockname()[1] for one in (front, back)]
            yield Rig(parts, engine, flags, costs, ports, stop)
        finally:
            stop()
            thread.join(60.0)
            parts.stop()
            assert ended.is_set(), "the gateway does not stop"
