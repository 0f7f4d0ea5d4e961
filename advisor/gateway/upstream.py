"""A server by its URL: connections to it, kept for as long as it surely keeps them too."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from kvready.advisor.gateway.connection import Connection
from kvready.advisor.gateway.headers import Headers
from kvready.collectors.endpoint import bracketed
from kvready.collectors.errors import SettingsError, UpstreamError

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 3.0  # vLLM and SGLang close what was idle for 5 s; nothing may be sent again blindly
MAX_IDLE = 256
MAX_ANSWER_BYTES = 8 << 20  # of a question of our own


class Upstream:
    """One server. The event loop's thread only."""

    def __init__(self, url: str, what: str, tls: ssl.SSLContext | None = None) -> None:
        """`what`: for messages. Raises `SettingsError` for what is no URL of a server."""
        place = urlsplit(url)
        try:
            port = place.port
        except ValueError:
            port = 0
        if place.scheme not in ("http", "https") or not place.hostname or port == 0:
            raise SettingsError(f"{url!r} is no URL of {what}; write http://HOST:PORT")
        if place.path not in ("", "/") or place.query or place.username:
            raise SettingsError(f"{url!r}: name {what} by http://HOST:PORT alone")
        self.what = what
        self._host = place.hostname
        self._port = port or (443 if place.scheme == "https" else 80)
        self._tls = None
        if place.scheme == "https":
            self._tls = tls or ssl.create_default_context()
        self.authority = f"{bracketed(self._host)}:{self._port}".encode()
        self._idle: deque[tuple[float, Connection]] = deque()  # the latest last

    async def open(self) -> Connection:
        """A connection that stands. Raises `UpstreamError`."""
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._idle:
            since, connection = self._idle.pop()
            if since >= oldest and connection.is_reusable:
                return connection
            connection.close()
        return await self._connect()

    def keep(self, connection: Connection) -> None:
        """After a whole exchange: for another one."""
        if not connection.renew():
            connection.close()
            return
        now = asyncio.get_running_loop().time()
        self._idle.append((now, connection))
        while len(self._idle) > MAX_IDLE or self._idle[0][0] < now - IDLE_SECONDS:
            self._idle.popleft()[1].close()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop()[1].close()

    async def ask(self, path: str, body: bytes, headers: Headers, seconds: float) -> bytes:
        """A question of our own: the answer's body. Raises `UpstreamError`, also for a status."""
        try:
            async with asyncio.timeout(seconds), self.exchange() as connection:
                connection.begin(
                    b"POST",
                    path.encode(),
                    [
                        (b"host", self.authority),
                        (b"content-type", b"application/json"),
                        (b"content-length", str(len(body)).encode()),
                        *headers,
                    ],
                )
                connection.body(body)
                connection.end()
                status, _ = await connection.head()
                answer = bytearray()
                while part := await connection.part():
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise UpstreamError(502, f"{self.what} answers too much")
        except TimeoutError:
            raise UpstreamError(504, f"{self.what} did not answer in {seconds:g} s") from None
        if status != 200:
            raise UpstreamError(status, f"{self.what} answered with status {status}")
        return bytes(answer)

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[Connection]:
        """A connection for one exchange: kept if that was whole, else closed."""
        connection = await self.open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.keep(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamError(
                504, f"{self.what} at {self.authority.decode()} did not take a connection in "
                f"{CONNECT_SECONDS:g} s"
            ) from None  # fmt: skip
        except OSError as error:
            raise UpstreamError(
                502,
                f"cannot reach {self.what} at {self.authority.decode()}: {error}",
                is_unreachable=True,
            ) from None
        return connection
