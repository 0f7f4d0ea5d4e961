"""What was asked about, as a recording keeps it: hashes and sizes, never tokens."""

from __future__ import annotations

import msgspec

from kvready.collectors.names import Tier


class AskedResource(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Something other than a prefix that is wanted in HBM: an adapter, a checkpoint, weights."""

    payload_bytes: dict[Tier, int]  # by the nearest tier that each part is in
    fragments: int = 1
    total_bytes: int = 0  # 0: all of it is in some tier


class AskedCandidate(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing of which somebody asked when it will be ready. One of the first four names it."""

    request_id: str = ""
    block_hashes: tuple[int, ...] = ()
    content_keys: tuple[int, ...] = ()
    resource: AskedResource | None = None
    prompt_tokens: int = 0
    rank: int = 0
    deadline_seconds: float | None = None
    # The most that the caller accepts for a load; None: anything.
    sm_share: float | None = None
    prefill_slowdown: float | None = None
    decode_slowdown: float | None = None
