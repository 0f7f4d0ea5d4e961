"""An OpenAI-compatible server under a test's control, down to the bytes and when they go."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable

WAIT_SECONDS = 60.0


class Call:
    """One request that reached the engine. Thread-safe where a test uses it."""

    def __init__(self, head: bytes, body: bytes, engine: StubEngine) -> None:
        self.head = head
        self.body = body
        self.is_gone = threading.Event()  # whoever asked left before the answer was whole
        self._engine = engine
        self._go = asyncio.Event()
        self._steps = 0

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {
            name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
        }

    def go(self) -> None:
        """Let the answer go on to its end."""
        self._engine.loop.call_soon_threadsafe(self._go.set)

    async def may_go(self) -> None:
        await self._go.wait()


Behave = Callable[[Call, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nDate: then\r\nServer: stub\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def answer(status: int, body: bytes, *headers: bytes) -> bytes:
    """A whole answer of a known length."""
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def stream_when_told(call: Call, writer: asyncio.StreamWriter) -> None:
    """A head at once; a token, and the end, when the test says so."""
    writer.write(STREAM_HEAD + chunk(b": ping\n\n"))
    await call.may_go()
    writer.write(chunk(b'data: {"choices": [{"text": "a"}]}\n\n'))
    writer.write(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


async def echo(call: Call, writer: asyncio.StreamWriter) -> None:
    """What came, told back."""
    told = {"target": call.target, "headers": call.headers, "body": call.body.decode("latin-1")}
    writer.write(answer(200, json.dumps(told).encode(), b"Content-Type: application/json"))


class StubEngine:
    """`start`s nothing by itself: `run` is a task of the loop that the test's rig runs."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.connections = 0
        self.behave: Behave = echo
        self.loop: asyncio.AbstractEventLoop
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, sock=self.listener)

    def stop(self) -> None:
        self._server.close()

    def call(self, number: int) -> Call:
        """The so-manieth call, once it has come."""
        wait_for(lambda: len(self.calls) > number, f"call {number} of the engine")
        return self.calls[number]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await _body(reader, head)
                call = Call(head, body, self)
                self.calls.append(call)
                behaving = asyncio.ensure_future(self.behave(call, writer))
                leaving = asyncio.ensure_future(_left(reader))
                await asyncio.wait((behaving, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not behaving.done():
                    call.is_gone.set()
                    behaving.cancel()
                    return
                leaving.cancel()
                await asyncio.wait((leaving,))
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return  # cancelled: the loop ends
        finally:
            writer.close()


async def _left(reader: asyncio.StreamReader) -> None:
    """Return when whoever asked has left; nobody sends before their answer came."""
    while not reader.at_eof():
        try:
            await asyncio.sleep(0.01)
            if reader.exception() is not None:
                return
        except ConnectionError:
            return


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        parts = bytearray()
        while size := int((await reader.readline()).strip() or b"0", 16):
            parts += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return bytes(parts)
    if b"content-length: " not in lower:
        return b""
    return await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))


def wait_for(condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Return once the condition holds; fail where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)
