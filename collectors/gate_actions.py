"""What the order of a stream asks of whoever holds its sockets."""

from __future__ import annotations

from typing import NamedTuple

from kvready.collectors.records import TapStatus


class Deliver(NamedTuple):
    """Pass this message on."""

    sequence: int
    payload: bytes
    received_seconds: float


class Ask(NamedTuple):
    """Request a replay from `start`, on a fresh connection: older replies must not mix in."""

    start: int


Action = Deliver | Ask | TapStatus


class ReplayRound:
    """One replay request under way."""

    def __init__(self, start: int, now: float) -> None:
        self.start = start
        self.first: int | None = None
        self.messages = 0
        self.heard_seconds = now
