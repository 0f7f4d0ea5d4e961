"""A batch of prefills as a simulated engine plans it."""

from __future__ import annotations

from typing import NamedTuple

from kvready.advisor.roofline import Chunk
from kvready.advisor.strata import Plan
from kvready.advisor.whatif.live_request import LiveRequest


class Share(NamedTuple):
    """One request's part: new tokens after a context; its last one gives the first token."""

    live: LiveRequest
    chunk: Chunk
    is_last: bool


class Batch:
    """Prefills that run together, with what has to be loaded for them."""

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.loaders: list[LiveRequest] = []
        self.load_blocks: list[int] = []
        self.load_tokens = 0
        self.room_seconds = 0.0  # when what HBM gave up for it has been written back
        self.loaded_seconds: float | None = None  # None: its load is not ordered yet
        self.plan: Plan | None = None  # Strata's, where it planned

    @property
    def chunks(self) -> list[Chunk]:
        """What it computes."""
        return [share.chunk for share in self.shares]

    @property
    def awaits_load(self) -> bool:
        """Whether it has a load that is not ordered yet."""
        return self.load_tokens > 0 and self.loaded_seconds is None
