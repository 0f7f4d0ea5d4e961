"""By what a request's service is told apart: where its prefix was, how far back, how long."""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum

import msgspec

from kvready.advisor.bounded_names import UNNAMED
from kvready.advisor.requests import RequestState

# Prompt tokens that arrived from the prefix's last use on: steps of 4, up to what a host tier of
# some hundred GB holds of a usual model.
REUSE_BOUNDS = (16_384, 65_536, 262_144, 1_048_576)
PREFIX_BOUNDS = (1, 2_048, 16_384)  # tokens


class InitialState(StrEnum):
    """Where the prefix of a request was when it arrived: the farthest tier that it needed."""

    COLD = "cold"  # nowhere
    HBM = "hbm"
    HOST = "host"
    DISK = "disk"
    IN_FLIGHT = "in_flight"  # most of it was on its way by an earlier request
    UNKNOWN = "unknown"  # no tap told


class ReuseDistance(StrEnum):
    """Prompt tokens that arrived from the last use of this prompt's first block on."""

    FIRST_USE = "first_use"
    BELOW_16K = "below_16k"
    BELOW_64K = "below_64k"
    BELOW_256K = "below_256k"
    BELOW_1M = "below_1m"
    FROM_1M = "from_1m"
    UNKNOWN = "unknown"  # no block hash was told


class PrefixLength(StrEnum):
    """Tokens of the prompt that were held, or on their way, when the request arrived."""

    NONE = "none"
    BELOW_2K = "below_2k"
    BELOW_16K = "below_16k"
    FROM_16K = "from_16k"
    UNKNOWN = "unknown"


class ServiceGroup(msgspec.Struct, frozen=True, gc=False):
    """A request's place in each of these, as it arrived, and its class."""

    initial_state: InitialState
    reuse_distance: ReuseDistance
    prefix_length: PrefixLength
    request_class: str = UNNAMED


def initial_state(state: RequestState) -> InitialState:
    """By what was known of its blocks at its arrival."""
    held = state.nominal_tokens
    if held is None:
        return InitialState.UNKNOWN
    if state.promised_tokens > held:
        return InitialState.IN_FLIGHT
    if state.disk_tokens:
        return InitialState.DISK
    if state.host_tokens:
        return InitialState.HOST
    return InitialState.HBM if held else InitialState.COLD


def reuse_distance(state: RequestState, reuse_tokens: int | None) -> ReuseDistance:
    """`reuse_tokens`: None for a prefix that was never asked for."""
    if not state.arrived.block_hashes:
        return ReuseDistance.UNKNOWN
    if reuse_tokens is None:
        return ReuseDistance.FIRST_USE
    return _DISTANCES[bisect_right(REUSE_BOUNDS, reuse_tokens)]


def prefix_length(state: RequestState) -> PrefixLength:
    """Of what it expected to find."""
    if state.nominal_tokens is None:
        return PrefixLength.UNKNOWN
    return _LENGTHS[bisect_right(PREFIX_BOUNDS, state.expected_tokens)]


_DISTANCES = (
    ReuseDistance.BELOW_16K,
    ReuseDistance.BELOW_64K,
    ReuseDistance.BELOW_256K,
    ReuseDistance.BELOW_1M,
    ReuseDistance.FROM_1M,
)
_LENGTHS = (
    PrefixLength.NONE,
    PrefixLength.BELOW_2K,
    PrefixLength.BELOW_16K,
    PrefixLength.FROM_16K,
)
