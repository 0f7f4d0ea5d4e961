"""The gateway as an ASGI application: completions go through the door, all else straight on."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
from starlette.types import Message, Receive, Scope, Send

from kvready.advisor.gateway.counts import Counts, Failure, Passed
from kvready.advisor.gateway.door import Door, Guest
from kvready.advisor.gateway.headers import (
    REQUEST_ID,
    Headers,
    passed_on,
    request_id,
    went_through,
)
from kvready.advisor.gateway.prompts import Prompt, Unheld, chat_prompt, completion_prompt
from kvready.advisor.gateway.relay import (
    ClientGone,
    Outgoing,
    TooLarge,
    first_of,
    outgoing,
    relay,
    until_gone,
)
from kvready.advisor.gateway.told import Teller
from kvready.advisor.gateway.upstream import Upstream
from kvready.collectors.errors import UpstreamError
from kvready.collectors.request_ids import completion_id

MAX_LOOKED_BYTES = 4 << 20  # of one body, to find its prompt; a longer one is passed on as it comes
MAX_BUFFERED_BYTES = 256 << 20  # of all bodies that are kept
BODY_SECONDS = 60.0  # for a client to send what we look at
MIB = 1 << 20

Read = Callable[[bytes], Prompt | Unheld]
COMPLETIONS: dict[str, Read] = {
    "/v1/completions": completion_prompt,
    "/v1/chat/completions": chat_prompt,
}


class _Answering:
    """A caller's `send`, and whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self.has_begun = False
        self._send = send

    def __call__(self, message: Message) -> Awaitable[None]:
        self.has_begun = True
        return self._send(message)


class Gateway:
    """Passes on each request as it is; those for completions may wait at the door first."""

    def __init__(
        self, upstream: Upstream, door: Door, counts: Counts, teller: Teller, limit_bytes: int
    ) -> None:
        self._upstream = upstream
        self._door = door
        self._counts = counts
        self._teller = teller
        self._limit_bytes = limit_bytes
        self._token = secrets.token_hex(6)  # sets apart what two gateways call their requests
        self._via = f"kvready-{self._token}".encode()
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        answering = _Answering(send)
        try:
            await self._take(scope, receive, answering)
        except UpstreamError as error:
            self._failed(error)
            await _refuse(answering, error.status, str(error))
        except TooLarge:
            text = f"the body is over {self._limit_bytes // MIB:,} MiB; send less"
            await _refuse(answering, 413, text)
        except ClientGone:
            self._counts.cancelled += 1

    async def _take(self, scope: Scope, receive: Receive, send: _Answering) -> None:
        headers: Headers = scope["headers"]
        if not scope["raw_path"].startswith((b"/", b"*")):
            raise UpstreamError(400, "name what you want by its path")
        if went_through(headers, self._via):
            raise UpstreamError(508, "the gateway is its own upstream; name the engine")
        declared = _declared_bytes(headers)
        if declared > self._limit_bytes:
            raise TooLarge
        read = COMPLETIONS.get(scope["path"]) if scope["method"] == "POST" else None
        if read is not None:
            self._counts.completions += 1
            await self._completion(scope, receive, send, read, declared)
            return
        self._counts.others += 1
        out = outgoing(scope, self._headers(headers), b"", receive)
        if not declared and not _is_chunked(headers):
            out = outgoing(scope, self._headers(headers), b"", None)
            work = asyncio.create_task(relay(out, self._upstream, send, self._limit_bytes))
            await first_of(work, asyncio.create_task(until_gone(receive)))
            return
        await relay(out, self._upstream, send, self._limit_bytes)

    async def _completion(
        self, scope: Scope, receive: Receive, send: _Answering, read: Read, declared: int
    ) -> None:
        arrived_seconds = time.monotonic()
        name = str(next(self._numbers))
        headers = self._headers(scope["headers"])
        told = request_id(scope["headers"])
        if not told:
            told = f"{self._token}-{name}".encode()
            headers = [(key, value) for key, value in headers if key != REQUEST_ID]
            headers.append((REQUEST_ID, told))
        body, passed, is_whole = await self._body(receive, declared)
        try:
            prompt: Prompt | None = None
            if passed is None:
                found = read(body)
                if isinstance(found, Prompt):
                    prompt = found
                else:
                    passed = Passed(found.value)
            if passed is not None:
                self._counts.passed[passed] += 1
            called = completion_id(told.decode("latin-1"), read is chat_prompt)
            self._teller.arrived(called, arrived_seconds, prompt)
            out = outgoing(scope, headers, body, None if is_whole else receive)
            if not is_whole:
                await relay(out, self._upstream, send, self._limit_bytes)
                return
            guest = None
            if prompt is not None:
                guest = Guest(name, called, prompt, body, arrived_seconds)
            working = asyncio.create_task(self._enter(guest, out, send))
            await first_of(working, asyncio.create_task(until_gone(receive)))
        finally:
            self._counts.buffered_bytes -= len(body)

    async def _enter(self, guest: Guest | None, out: Outgoing, send: _Answering) -> None:
        """Through the door, where there is a prompt to be held by, and on."""
        if guest is None:
            await relay(out, self._upstream, send, self._limit_bytes)
            return
        name = guest.name
        try:
            await self._door.enter(guest)
            await relay(
                out, self._upstream, send, self._limit_bytes, lambda: self._door.first_token(name)
            )
        finally:
            self._door.left(name)

    async def _body(self, receive: Receive, declared: int) -> tuple[bytes, Passed | None, bool]:
        """What is looked at of a body, why it is not, and whether it is whole.

        Its length is counted as kept, until whoever asked counts it off.
        """
        if declared > MAX_LOOKED_BYTES:
            return b"", Passed.BODY_TOO_LARGE, False
        parts = bytearray()
        has_more, why = True, None
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while has_more and why is None:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientGone
                    part = message.get("body", b"")
                    parts += part
                    self._counts.buffered_bytes += len(part)
                    has_more = message.get("more_body", False)
                    why = self._why_not_looked_at(len(parts))
        except BaseException as error:
            self._counts.buffered_bytes -= len(parts)
            if isinstance(error, TimeoutError):
                raise UpstreamError(408, f"the body took over {BODY_SECONDS:g} s") from None
            raise
        return bytes(parts), why, not has_more

    def _why_not_looked_at(self, body_bytes: int) -> Passed | None:
        if body_bytes > self._limit_bytes:
            raise TooLarge
        if body_bytes > MAX_LOOKED_BYTES:
            return Passed.BODY_TOO_LARGE
        return Passed.BUFFERS_FULL if self._counts.buffered_bytes > MAX_BUFFERED_BYTES else None

    def _headers(self, headers: Headers) -> Headers:
        return passed_on(headers, self._upstream.authority, self._via)

    def _failed(self, error: UpstreamError) -> None:
        if error.status == 504:
            self._counts.failed[Failure.TIMED_OUT] += 1
        elif error.is_unreachable:
            self._counts.failed[Failure.UNREACHABLE] += 1
            self._door.holds.forget_known()  # an engine that starts anew has an empty cache
        elif error.status == 502:
            self._counts.failed[Failure.BROKEN_OFF] += 1


async def _refuse(send: _Answering, status: int, message: str) -> None:
    """Our own answer; where the engine's has begun, the connection is cut instead, by returning."""
    if send.has_begun:
        return
    error = {"message": message, "type": "kvready_gateway", "code": status}
    body = msgspec.json.encode({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status in (400, 408, 413):
        headers.append((b"connection", b"close"))  # what is left of its body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _declared_bytes(headers: Headers) -> int:
    value = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(value) if value.isdigit() else 0


def _is_chunked(headers: Headers) -> bool:
    return any(name == b"transfer-encoding" for name, _ in headers)
