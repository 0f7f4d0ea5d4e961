"""One connection to a server: a request out, its answer in, then perhaps another. HTTP/1.1 by h11.

Not httpx: its client costs over half a millisecond a request, which is more than the whole gateway
may add.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h11

from kvready.advisor.gateway.headers import Headers
from kvready.collectors.errors import UpstreamError

MAX_HEAD_BYTES = 65_536
MAX_UNREAD_BYTES = 262_144  # received and not yet passed on: the server has to wait


class Connection(asyncio.Protocol):
    """Made by `loop.create_connection`. One task at a time reads, one writes."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._unread_bytes = 0
        self._is_paused = False
        self._is_lost = False
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None  # whoever waits to read
        self._room: asyncio.Future[None] | None = None  # while no more may be written

    # What the loop calls -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._http.receive_data(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > MAX_UNREAD_BYTES and self._transport and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """It is no more."""
        self._is_lost = True
        self._error = error
        if error is None:
            self._http.receive_data(b"")
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The server does not take any more for now."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """It does again, or never will."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # What we call ------------------------------------------------------------------------------

    @property
    def is_reusable(self) -> bool:
        """Whether another request may go over it: nothing came that nobody asked for."""
        return not self._is_lost and not self._unread_bytes and self._http.our_state is h11.IDLE

    def begin(self, method: bytes, target: bytes, headers: Headers) -> None:
        """A request's head. Raises `UpstreamError` for one that no server takes."""
        try:
            self._write(self._http.send(h11.Request(method=method, target=target, headers=headers)))
        except h11.LocalProtocolError as error:
            raise UpstreamError(400, f"the request cannot be passed on: {error}") from None

    def body(self, part: bytes) -> None:
        """A part of its body, or all of it."""
        self._send(h11.Data(data=part))

    async def room(self) -> None:
        """Return when more may be written."""
        if self._room is not None:
            await self._room

    def end(self) -> None:
        """The whole request is written."""
        self._send(h11.EndOfMessage())

    async def head(self) -> tuple[int, Headers]:
        """The answer's status and headers; what is only provisional is passed over."""
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise UpstreamError(502, "the engine closed the connection without an answer")
        return event.status_code, event.headers.raw_items()

    async def part(self) -> bytes:
        """The next part of the answer's body; empty: it is whole."""
        event = await self._event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise UpstreamError(502, "the engine closed the connection within its answer")

    def renew(self) -> bool:
        """After a whole exchange: make ready for another. False: it is to be closed."""
        try:
            self._http.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        self._drained()
        return self.is_reusable

    def close(self) -> None:
        """Drop it, whatever is under way: the server sees that nobody waits for its answer."""
        if self._transport is not None:
            self._transport.abort()

    # -------------------------------------------------------------------------------------------

    async def _event(self) -> object:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise UpstreamError(502, f"the engine's answer is not HTTP: {error}") from None
            if event is not h11.NEED_DATA:
                return event
            self._drained()
            if self._is_lost:  # with an error: else the end would have been an event
                raise UpstreamError(502, f"the connection to the engine broke: {self._error}")
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None

    def _drained(self) -> None:
        self._unread_bytes = len(self._http.trailing_data[0])
        if self._is_paused and self._transport and not self._is_lost:
            self._is_paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _send(self, event: h11.Data | h11.EndOfMessage) -> None:
        try:
            self._write(self._http.send(event))
        except h11.LocalProtocolError as error:
            raise UpstreamError(400, f"the request cannot be passed on: {error}") from None

    def _write(self, data: bytes | None) -> None:
        if data and self._transport is not None and not self._is_lost:
            self._transport.write(data)
