"""One forecast that came true or did not: what was said, what was known then, what happened."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvready.advisor.ledger import Target

# What the llm-d latency predictor is told of a request and its engine, by our names.
ROUTER_FEATURES = (
    "kv_usage_ratio",
    "input_tokens",
    "waiting_requests",
    "running_requests",
    "prefix_ratio",
    "uncached_input_tokens",
    "input_tokens_in_flight",
)
# What it is not told: where the tokens lie, and what the link has to do.
TIER_FEATURES = (
    "hbm_tokens",
    "host_tokens",
    "disk_tokens",
    "load_bytes",
    "load_fragments",
    "load_bytes_ahead",
    "load_bytes_other_way",
)
WORK_FEATURES = ("new_tokens", "queued_tokens", "members")
FEATURES = ROUTER_FEATURES + TIER_FEATURES + WORK_FEATURES


class Known(msgspec.Struct, kw_only=True, gc=False):
    """What was known when a forecast was made; NaN: unknown then. Tokens, bytes, requests."""

    kv_usage_ratio: float = math.nan
    input_tokens: float = math.nan
    waiting_requests: float = 0.0
    running_requests: float = 0.0
    prefix_ratio: float = math.nan
    uncached_input_tokens: float = math.nan
    input_tokens_in_flight: float = 0.0
    hbm_tokens: float = 0.0
    host_tokens: float = 0.0
    disk_tokens: float = 0.0
    load_bytes: float = 0.0
    load_fragments: float = 0.0
    load_bytes_ahead: float = 0.0  # of copies in the same direction
    load_bytes_other_way: float = 0.0
    new_tokens: float = 0.0  # to be computed for it
    queued_tokens: float = 0.0  # to be computed for others before their first token
    members: float = 0.0  # requests of the batch

    def row(self, names: Sequence[str]) -> list[float]:
        """These quantities, in this order."""
        return [getattr(self, name) for name in names]


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """What was predicted, in seconds: quantiles, low and high holding 90 %."""

    p50_seconds: float
    p90_seconds: float
    low_seconds: float
    high_seconds: float


class Sample(msgspec.Struct, gc=False):
    """A forecast with its outcome. Event times in seconds on the recording's clock."""

    target: Target
    shape_cell: str
    tier: str  # where what it needs lies
    mover: str  # that made the copy; empty: no copy, or untold
    starts_seconds: float
    made_seconds: float
    actual_seconds: float
    bounds: Bounds
    known: Known
    request: str
    part: int  # which of the request's copies; 0 for the request itself
    size: int  # prompt tokens of a request, bytes of a copy: what a repeat must share

    @property
    def ended_seconds(self) -> float:
        """When its outcome was there to be learned from."""
        return self.starts_seconds + self.actual_seconds
