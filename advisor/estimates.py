"""What a decision needs to know of an engine, and nothing about how it is known."""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from kvready.advisor.ranges import Range
from kvready.collectors.records import OverlapMode, Tier

Times = Annotated[float, Meta(ge=0)]


class Between(msgspec.Struct, frozen=True, gc=False):
    """Bounds of a factor."""

    low: Times
    high: Times


class Interference(msgspec.Struct, frozen=True, gc=False):
    """What a load costs those that compute beside it; None: not measured, which is not zero."""

    sm_share: float | None = None
    prefill_slowdown: float | None = None  # step beside a load over a quiet step; 1 is none
    decode_slowdown: float | None = None
    prefill_slowdown_interval: Between | None = None  # holds it as often as ranges of seconds do
    decode_slowdown_interval: Between | None = None

    def interval(self, name: str) -> Between | None:
        """The bounds of one of the first three members; one without any is exact."""
        figure: float | None = getattr(self, name)
        bounds: Between | None = getattr(self, f"{name}_interval", None)
        return bounds or (None if figure is None else Between(figure, figure))


class Estimates(Protocol):
    """One engine rank at one moment. Ranges are in seconds; None stands for unknown."""

    overlap: OverlapMode
    layers: int
    block_tokens: int
    interference: Interference

    def load_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        """A copy into HBM from its nearest lower tier, without the wait for the mover."""

    def fetch_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        """The hops before that: from disk or remote into host memory. Nothing for the host tier."""

    def link_wait_seconds(self) -> Range:
        """Until the mover takes up a copy that is ordered now."""

    def prefill_seconds(self, new_tokens: int, context_tokens: int) -> Range:
        """Computing so many tokens after a context, alone."""

    def queue_seconds(self) -> Range | None:
        """Until the scheduler takes up a request that comes now."""

    def has_other_work(self, request_id: str) -> bool | None:
        """Whether requests other than this one could run meanwhile."""
