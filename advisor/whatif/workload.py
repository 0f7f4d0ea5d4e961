"""What is asked of an engine: requests with their prompts as chains of blocks, and when."""

from __future__ import annotations

import msgspec


class SimRequest(msgspec.Struct, frozen=True, gc=False):
    """One request. Blocks are ids of whole prefixes: equal ids mean equal tokens up to there.

    A round of a conversation names the request `after` which it comes and how long its user thinks;
    `arrived_seconds` then does not bind.
    """

    request_id: str
    arrived_seconds: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]  # of Workload.block_tokens each; a last partial block is left out
    output_blocks: tuple[int, ...] = ()  # after `blocks`: what its end and output leave to find
    after: str = ""
    think_seconds: float = 0.0
    request_class: str = ""
    tenant: str = ""


class Workload(msgspec.Struct, frozen=True):
    """Requests in order of arrival, with what a reader must know of them."""

    name: str
    source: str  # where it comes from: a trace with its licence, a recording, or a generator
    block_tokens: int
    requests: tuple[SimRequest, ...]
    warm_blocks: tuple[int, ...] = ()  # in host memory before the first arrival, oldest first
    notes: tuple[str, ...] = ()  # e.g. quantised clocks, lengths that are assumed
