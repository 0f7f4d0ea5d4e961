"""What the sidecar hears of requests before its engine does: records on the observer's socket.

Told are when a request arrived here, whose prefix group it is in, that it was held, and that its
client left while it was: times on the host's monotonic clock, keys of text instead of block hashes,
never a prompt. The sidecar joins them to the scheduler's record by the request's id.
"""

from __future__ import annotations

from pathlib import Path

from kvready.advisor.gateway.prompts import Prompt
from kvready.collectors.engine.publisher import RecordPublisher
from kvready.collectors.records import (
    AnyRecord,
    DeferReason,
    Outcome,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    Surface,
)

ROLE = "gateway"


class Teller:
    """Tells nothing where no folder is named. Never blocks, never raises."""

    def __init__(self, folder: Path | None) -> None:
        self._publisher = RecordPublisher(folder, ROLE) if folder else None

    def open(self) -> None:
        """Open the socket ahead of the first records."""
        if self._publisher is not None:
            self._publisher.open()

    @property
    def dropped(self) -> int:
        """Records that could not be sent."""
        return self._publisher.dropped_records if self._publisher else 0

    def arrived(self, name: str, seconds: float, prompt: Prompt | None) -> None:
        """A request for a completion came; with its prefix group where it has one.

        `name`: what the engine's reports will call it.
        """
        if self._publisher is not None:
            tokens = prompt.tokens if prompt else 0
            group = (prompt.group,) if prompt else ()
            self._tell(RequestArrived(name, Surface.GATEWAY, seconds, tokens, group))

    def held(self, name: str, seconds: float) -> None:
        """It waits for another one's prefix."""
        self._tell(RequestDeferred(name, seconds, DeferReason.HOLD))

    def left(self, name: str, seconds: float) -> None:
        """Its client left before it was passed on."""
        self._tell(RequestFinished(name, seconds, Outcome.ABORTED))

    def close(self) -> None:
        """Say goodbye."""
        if self._publisher is not None:
            self._publisher.close()

    def _tell(self, record: AnyRecord) -> None:
        if self._publisher is not None:
            self._publisher.publish([record])
