"""`kvready gateway`: the proxy, its figures on a port of their own, and what runs beside both."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvicorn
from prometheus_client.core import Metric as Family
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kvready.advisor.gateway.app import Gateway
from kvready.advisor.gateway.counts import Counts
from kvready.advisor.gateway.door import Door, Flags
from kvready.advisor.gateway.told import Teller
from kvready.advisor.gateway.upstream import Upstream
from kvready.advisor.gateway.watch import Watch
from kvready.advisor.hooks.flag_client import FlagClient
from kvready.advisor.policies import Scope
from kvready.advisor.service.access import is_loopback, read_token
from kvready.advisor.service.metrics_page import MetricsPage
from kvready.advisor.service.web_server import WebServer
from kvready.advisor.strata import PAPER
from kvready.collectors.endpoint import bracketed
from kvready.collectors.errors import ServiceError

MAX_CALLS = 2_048  # under way; one more is answered 503
BACKLOG = 1_024
GRACE_SECONDS = 30  # for answers that are under way when we are stopped
KEEP_ALIVE_SECONDS = 75  # longer than most routers keep a connection, so that none is cut in use
SPARE_FILES = 256  # descriptors beside two for each call
NAME = "kvready-gateway"

Say = Callable[[str], None]

logger = logging.getLogger(__name__)


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may set."""

    engine: str
    sidecar: str
    host: str = "127.0.0.1"
    port: int = 8431
    metrics_port: int = 8432
    sidecar_token_file: Path | None = None
    observer_dir: Path | None = None
    scope: Scope = Scope()
    has_tokenizer: bool = True
    hold_seconds: float = PAPER.hold_seconds
    body_bytes: int = 64 << 20


class Parts:
    """The gateway's parts, wired once in the order in which a request meets them."""

    def __init__(self, settings: GatewaySettings, flags: Flags | None = None) -> None:
        """`flags`: other than the sidecar's. Raises `SettingsError` for what cannot be."""
        self.counts = Counts()
        self.engine = Upstream(settings.engine, "the engine")
        self.sidecar = Upstream(settings.sidecar, "the sidecar")
        token = read_token(settings.sidecar_token_file, "--sidecar-token-file")
        self.client = FlagClient(settings.sidecar, NAME, settings.scope, token=token.decode())
        self.teller = Teller(settings.observer_dir)
        self.door = Door(flags or self.client, self.counts, self.teller, settings.hold_seconds)
        self.watch = Watch(
            self.door, self.counts, self.engine, self.sidecar, token, settings.has_tokenizer
        )
        self.app = Gateway(self.engine, self.door, self.counts, self.teller, settings.body_bytes)
        self.page = MetricsPage(self._families)

    def start(self) -> None:
        """Ask for flags, and open the records' socket."""
        self.client.start()
        self.teller.open()

    def stop(self) -> None:
        """Close what `start` opened."""
        self.client.stop()
        self.teller.close()

    def _families(self) -> Iterator[Family]:
        door = self.door
        values = self.counts.values(
            door.holds.held, door.holds.leading, door.is_acting, self.teller.dropped
        )
        return self.counts.families(values)


def run(settings: GatewaySettings, say: Say) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ServiceError` or `SettingsError`."""
    parts = Parts(settings)
    with (
        listening(settings.host, settings.port) as front,
        listening("127.0.0.1", settings.metrics_port) as back,
    ):
        if not is_loopback(settings.host):
            say(f"warning: on {settings.host} whoever reaches this port reaches the engine")
        host, port = front.getsockname()[:2]
        say(f"passing on http://{bracketed(host)}:{port} to {parts.engine.authority.decode()}")
        say(f"figures on http://127.0.0.1:{back.getsockname()[1]}/metrics")
        if not _has_files():
            say(f"warning: too few open files are allowed for {MAX_CALLS:,} calls; raise ulimit -n")
        parts.start()
        try:
            asyncio.run(_until_signalled(parts, front, back))
        finally:
            parts.stop()


async def _until_signalled(parts: Parts, front: socket.socket, back: socket.socket) -> None:
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if stopping.is_set():  # a second one ends it at once
            raise SystemExit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    await serve(parts, front, back, stopping)


async def serve(
    parts: Parts, front: socket.socket, back: socket.socket, stopping: asyncio.Event
) -> None:
    """Pass on what comes on one socket, tell figures on the other, until it is to stop."""
    servers = [
        WebServer(_config(parts.app, limit_concurrency=MAX_CALLS)),
        WebServer(_config(own_app(parts))),
    ]
    watching = asyncio.create_task(parts.watch.run())
    watching.add_done_callback(lambda task: _watch_ended(task, parts))
    serving = [
        asyncio.create_task(server.serve(sockets=[listener]))
        for server, listener in zip(servers, (front, back), strict=True)
    ]
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait((stopped, *serving), return_when=asyncio.FIRST_COMPLETED)
    parts.door.close()
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*serving)
    for task in (stopped, watching):
        task.cancel()
    await asyncio.gather(stopped, watching, return_exceptions=True)
    parts.engine.close()
    parts.sidecar.close()


def _has_files() -> bool:
    """Allow this process the open files that all calls need, as far as it may."""
    wanted = 2 * MAX_CALLS + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed == wanted
    return True


def _watch_ended(watching: asyncio.Task[None], parts: Parts) -> None:
    """A defect there must not stop what passes by: from here on nobody is held."""
    if watching.cancelled():
        return
    parts.door.close()
    logger.error("nobody is held any more, for a defect; restart", exc_info=watching.exception())


def own_app(parts: Parts) -> Starlette:
    """What the gateway answers of itself."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def metrics(request: Request) -> Response:
        body, kind = parts.page.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    return Starlette(routes=[Route("/livez", livez), Route("/metrics", metrics)])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. Raises `ServiceError` that names the fix."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, since asyncio turns Nagle's wait off only for sockets that name it.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise ServiceError(
                f"cannot listen on {bracketed(host)}:{port}: {error.strerror or error}; stop what "
                "uses it, or choose another with --port, --host or --metrics-port"
            ) from None
        yield listener


def _config(app: object, **options: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        # What an engine breaks off is cut towards the client too: counted, not logged.
        log_level=logging.CRITICAL,
        access_log=False,
        # The engine's own pass through.
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        **options,  # type: ignore[arg-type]
    )
