"""The collector contract: one tap, read-only, that turns what an engine says into records."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from kvready.collectors.records import AnyRecord, TapState


class Level(StrEnum):
    """How deep a tap sees; each level adds to the one below it."""

    METRICS = "0"
    KV_EVENTS = "1"
    REQUESTS = "2"
    OBSERVER = "3"


class Stability(StrEnum):
    """What a tap's users may count on."""

    STABLE = "stable"
    BETA = "beta"
    UNTESTED = "untested on hardware"


class Coverage(msgspec.Struct, frozen=True):
    """What a tap can and cannot see, now. Unknown is not zero."""

    tap: str
    level: Level
    state: TapState
    stability: Stability
    records: int  # delivered since start
    messages: int  # received since start, whatever became of them
    gaps: int
    decode_errors: int
    dropped: int
    last_received_seconds: float | None  # None: nothing yet, which is not a failure
    blind_to: tuple[str, ...] = ()
    refused: dict[str, int] = {}  # what could not be read, by reason; bounded by the decoder
    unknown: dict[str, int] = {}  # what a later version added and was skipped, by name
    quarantine: tuple[str, ...] = ()  # outlines of the latest that could not be read
    keyless_blocks: int = 0  # content keys were wanted, the chain's start is not known


class Sink(Protocol):
    """Where a collector puts records. Never blocks and never raises: a full sink counts drops."""

    def __call__(self, record: AnyRecord, received_seconds: float, tap: str) -> None: ...


class Collector(Protocol):
    """One tap. `poll` stays within its budget and never raises for bad input."""

    name: str

    def start(self, sink: Sink) -> None:
        """Open the tap. Raises `TapError` for an endpoint that can never work."""
        ...

    def poll(self, budget_seconds: float) -> int:
        """Deliver what is there; return how many messages were taken (0: no data, not failure)."""
        ...

    def stop(self) -> None:
        """Close the tap. Safe twice, and before `start`."""
        ...

    def coverage(self) -> Coverage:
        """What this tap can and cannot see, now."""
        ...


@runtime_checkable
class Recovers(Protocol):
    """A collector that can make good, or at least say, that what it delivered did not arrive."""

    def lost(self, count: int) -> None:
        """So many of its records were lost behind it. Any thread may call."""
        ...
