"""A part of a recording: every record of some seconds, and before them what the caches held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kvready.collectors.errors import RecordingError
from kvready.collectors.records import (
    BlocksRemoved,
    BlocksStored,
    EngineDescribed,
    Ingested,
    TapStatus,
    TierCleared,
)

# What still holds later; requests, batches and copies from before a slice are not in it.
LASTING = (EngineDescribed, BlocksStored, BlocksRemoved, TierCleared, TapStatus)


class Slice(msgspec.Struct, frozen=True):
    """Seconds of a recording, counted from its first record."""

    start_seconds: float
    seconds: float

    def of(self, items: Iterable[Ingested]) -> Iterator[Ingested]:
        """Its records, as they were ingested. Raises `RecordingError` where there are none."""
        begin: float | None = None
        inside = 0
        for item in items:
            if begin is None:
                begin = item.received_seconds + self.start_seconds
            if item.received_seconds >= begin + self.seconds:
                break
            within = item.received_seconds >= begin
            inside += within
            if within or isinstance(item.record, LASTING):
                yield item
        if not inside:
            raise RecordingError(
                f"nothing was recorded in the {self.seconds:g} s from {self.start_seconds:g} s on: "
                "start a slice earlier, or make it longer"
            )

    @property
    def described(self) -> str:
        """In words, for the conditions of a figure."""
        return (
            f"{self.seconds:g} s from {self.start_seconds:g} s on; of what came before, only what "
            "the caches held"
        )


def slice_of(text: str) -> Slice | None:
    """From START:SECONDS; None for anything else."""
    start, colon, seconds = text.partition(":")
    try:
        cut = Slice(float(start), float(seconds))
    except ValueError:
        return None
    is_part = 0.0 <= cut.start_seconds < float("inf") and 0.0 < cut.seconds < float("inf")
    return cut if colon and is_part else None
