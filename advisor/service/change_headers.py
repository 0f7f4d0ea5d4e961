"""Headers of a command: which revision its caller saw, and the key under which it is done once."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request

TAG = re.compile(r'"(\d{1,15})"', re.ASCII)
KEY = re.compile(r"[\x21-\x7e]{1,128}")


def revision_of(request: Request, is_wanted: bool) -> int | None:
    """From `If-Match: "7"`; None for `*`: whatever it is by now. Raises 400 or 428."""
    header = request.headers.get("if-match")
    if header is None:
        if not is_wanted:
            return None
        raise HTTPException(
            428,
            'send If-Match with the revision that you saw, as in If-Match: "7", or * for any',
        )
    if header.strip() == "*":
        return None
    found = TAG.fullmatch(header.strip())
    if found is None:
        raise HTTPException(400, 'If-Match is one revision in quotes, as in "7", or *')
    return int(found[1])


def idempotency_key(request: Request, is_wanted: bool) -> str:
    """Empty where there is none. Raises 400 or 428."""
    header = request.headers.get("idempotency-key")
    if header is None:
        if not is_wanted:
            return ""
        raise HTTPException(
            428,
            "send Idempotency-Key with something new, as a UUID: what is sent twice is done once",
        )
    if KEY.fullmatch(header) is None:
        raise HTTPException(400, "Idempotency-Key is 1 to 128 printable characters without spaces")
    return header


def tag_of(revision: int) -> str:
    """The entity tag of a state."""
    return f'"{revision}"'
