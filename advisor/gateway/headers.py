"""What of a message's head goes past a proxy, and what ends at it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

# Of one connection, not of the message; `Connection` may name more.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# We answer `Expect: 100-continue` ourselves, since we read the body first; and the engine's host is
# not ours.
OURS = frozenset({b"expect", b"host"})
REQUEST_ID = b"x-request-id"
VIA = b"via"
MAX_REQUEST_ID_BYTES = 200


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Without what belongs to the connection that they came over."""
    kept = [(name, value, name.lower()) for name, value in headers]
    dropped = HOP_BY_HOP.union(
        token.strip().lower()
        for _, value, lower in kept
        if lower == b"connection"
        for token in value.split(b",")
    )
    return [(name, value) for name, value, lower in kept if lower not in dropped]


def passed_on(headers: Iterable[tuple[bytes, bytes]], host: bytes, via: bytes) -> Headers:
    """A request's headers as the engine gets them, but for what frames its body."""
    kept = end_to_end(headers)
    told = [value for name, value in kept if name == VIA]
    return [
        (b"host", host),
        *((name, value) for name, value in kept if name not in OURS and name != VIA),
        (VIA, b", ".join([*told, b"1.1 " + via])),
    ]


def went_through(headers: Iterable[tuple[bytes, bytes]], via: bytes) -> bool:
    """Whether a request was passed on by the proxy of that name before."""
    return any(name == VIA and via in value for name, value in headers)


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What the client calls its request; empty where it does not, or by too long a name."""
    for name, value in headers:
        if name == REQUEST_ID and 0 < len(value) <= MAX_REQUEST_ID_BYTES:
            return value
    return b""
