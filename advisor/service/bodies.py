"""What a caller sends, read within bounds of size and time."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

JSON = "application/json"
KIB = 1 << 10


async def read_json(request: Request, limit_bytes: int, limit_seconds: float) -> bytes:
    """The body of a call that must be JSON. Raises 400, 408, 413 or 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HTTPException(415, f"send the body as {JSON}")
    try:
        return await asyncio.wait_for(_read(request, limit_bytes), limit_seconds)
    except TimeoutError:
        raise HTTPException(408, f"the body took over {limit_seconds:g} s") from None


async def _read(request: Request, limit_bytes: int) -> bytes:
    parts = bytearray()
    try:
        async for part in request.stream():
            parts += part
            if len(parts) > limit_bytes:
                raise HTTPException(
                    413, f"the body is over {limit_bytes // KIB:,} KiB; send less, or in parts"
                )
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early; send it whole") from None
    return bytes(parts)
