"""The shapes within which forecasts of one target are alike: power-of-two bins of size."""

from __future__ import annotations

from kvready.advisor.ledger import Target
from kvready.advisor.requests import RequestState
from kvready.collectors.records import Tier

SMALLEST_OCTAVE, LARGEST_OCTAVE = 9, 50  # of bytes; all below a KiB are one


def told_cell(target: Target, shape_cell: str) -> str:
    """A cell of a target, as reports and flags name it."""
    return f"{target}: {shape_cell}"


def load_cell(source: Tier, payload_bytes: int) -> str:
    """Copies from one tier and of one size."""
    return f"{source} {byte_bin(payload_bytes)}"


def compute_cell(prefill_tokens: int) -> str:
    """Batches that prefill so many tokens, or none."""
    return f"prefill {token_bin(prefill_tokens)}" if prefill_tokens else "decode"


def request_cell(state: RequestState) -> str:
    """Requests with and without a hit, by the length of their prompts."""
    hit = "hit" if state.nominal_tokens else "miss"
    return f"{hit} {token_bin(state.arrived.prompt_tokens)}"


def queue_cell(state: RequestState, ahead: int) -> str:
    """Requests with and without a load before them, by how many wait ahead."""
    load = "host hit" if state.host_tokens else "no load"
    return f"{load}, ≥{_floor_power(ahead):,} ahead"


def inflight_cell(brought: str, tokens: int) -> str:
    """Prefixes that others bring, by how and by their tokens."""
    return f"{brought} {token_bin(tokens)}"


def token_bin(tokens: int) -> str:
    """The power-of-two bin of a number of tokens, by its lower end."""
    return f"≥{_floor_power(tokens):,} tokens"


def byte_bin(size: int) -> str:
    """The power-of-two bin of a size, by its lower end."""
    floor = _floor_power(size)
    return f"≥{floor >> 20} MiB" if floor >> 20 else f"≥{floor >> 10} KiB"


def _floor_power(quantity: int) -> int:
    return 1 << (quantity.bit_length() - 1) if quantity > 0 else 0
