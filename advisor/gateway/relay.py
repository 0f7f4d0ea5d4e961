"""One request to the engine and its answer back, part by part as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from starlette.types import Receive, Scope, Send

from kvready.advisor.gateway.connection import Connection
from kvready.advisor.gateway.first_data import FirstData
from kvready.advisor.gateway.headers import Headers, end_to_end
from kvready.advisor.gateway.upstream import Upstream

EVENT_STREAM = b"text/event-stream"
CONTENT_LENGTH, TRANSFER_ENCODING = b"content-length", b"transfer-encoding"


class Outgoing(msgspec.Struct):
    """A request as the engine is to get it. `rest`: what of its body has not been read yet."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    rest: Receive | None = None


class TooLarge(Exception):
    """A body beyond the bound, noticed while it was passed on."""


class ClientGone(Exception):
    """Whoever asked left before its body was whole."""


def outgoing(scope: Scope, headers: Headers, body: bytes, rest: Receive | None) -> Outgoing:
    """What is to be sent for a call; the body is framed as it came, or by its length."""
    target: bytes = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    names = {name for name, _ in headers}
    if CONTENT_LENGTH not in names:
        if rest is not None:
            headers.append((TRANSFER_ENCODING, b"chunked"))
        elif body:
            headers.append((CONTENT_LENGTH, str(len(body)).encode()))
    return Outgoing(scope["method"].encode(), target, headers, body, rest)


async def relay(
    out: Outgoing,
    upstream: Upstream,
    send: Send,
    limit_bytes: int,
    on_token: Callable[[], None] | None = None,
) -> None:
    """Send, and pass the answer on. Raises `UpstreamError`, `TooLarge` or `ClientGone`.

    `on_token` hears once, when the first token came; never of an answer that is no success.
    """
    async with upstream.exchange() as connection:
        connection.begin(out.method, out.target, out.headers)
        if out.rest is None:
            if out.body:
                connection.body(out.body)  # it lies in memory anyway: nobody waits for room
            connection.end()
            await _answer(connection, send, on_token)
            return
        # An engine may answer before it has the whole body, and then take no more of it.
        answering = asyncio.create_task(_answer(connection, send, on_token))
        pumping = asyncio.create_task(_pump(connection, out, out.rest, limit_bytes))
        await first_of(answering, pumping)


async def first_of(work: asyncio.Task[None], other: asyncio.Task[None]) -> None:
    """Return when the work is done; raise what either raises, the work's error before the other's.

    What is left of both is cancelled, and over, by then.
    """
    try:
        await asyncio.wait((work, other), return_when=asyncio.FIRST_COMPLETED)
        (work if work.done() else other).result()
    finally:
        for task in (work, other):
            task.cancel()
        await asyncio.gather(work, other, return_exceptions=True)


async def until_gone(receive: Receive) -> None:
    """Watch a caller whose body was read. Raises `ClientGone`."""
    while (await receive())["type"] == "http.request":
        pass
    raise ClientGone


async def _pump(connection: Connection, out: Outgoing, rest: Receive, limit_bytes: int) -> None:
    sent_bytes = len(out.body)
    if out.body:
        connection.body(out.body)
    has_more = True
    while has_more:
        await connection.room()
        message = await rest()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        sent_bytes += len(part)
        if sent_bytes > limit_bytes:
            raise TooLarge
        if part:
            connection.body(part)
        has_more = message.get("more_body", False)
    connection.end()
    await until_gone(rest)


async def _answer(connection: Connection, send: Send, on_token: Callable[[], None] | None) -> None:
    status, headers = await connection.head()
    kept = end_to_end(headers)
    watch = None
    if on_token is not None and 200 <= status < 300:
        is_stream = any(
            name.lower() == b"content-type" and value.lower().startswith(EVENT_STREAM)
            for name, value in kept
        )
        watch = FirstData() if is_stream else None
    else:
        on_token = None
    await send({"type": "http.response.start", "status": status, "headers": kept})
    while part := await connection.part():
        if on_token is not None and (watch is None or watch.seen_in(part)):
            on_token()
            on_token = None
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
