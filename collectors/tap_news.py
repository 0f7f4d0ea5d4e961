"""News of a stream, told alike whether its messages can be asked for again or not."""

from __future__ import annotations

from typing import Protocol

from kvready.collectors.records import TapEvent, TapState, TapStatus


class Stream(Protocol):
    """Whatever keeps one publisher's messages in order."""

    tap: str
    rank: int
    epoch: int

    @property
    def state(self) -> TapState:
        """How far what was delivered can be trusted now."""
        ...


def news_of(
    stream: Stream,
    event: TapEvent,
    first_missing: int | None = None,
    last_missing: int | None = None,
    detail: str = "",
    count: int | None = None,
) -> TapStatus:
    """What happened to a stream, as it stands now. Without `count`, all between is missing."""
    if count is None:
        count = 0
        if first_missing is not None and last_missing is not None:
            count = last_missing - first_missing + 1
    return TapStatus(
        stream.tap,
        stream.rank,
        event,
        stream.state,
        stream.epoch,
        first_missing,
        last_missing,
        count,
        detail,
    )
