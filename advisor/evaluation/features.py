"""What is known at the moment of a forecast, for rivals that are told this and no more."""

from __future__ import annotations

from collections.abc import Iterable

from kvready.advisor.engine_rank import EngineRank
from kvready.advisor.evaluation.samples import Known
from kvready.advisor.inventory import Inventory
from kvready.advisor.readiness import INTO_HBM, direction_of
from kvready.advisor.requests import Copy, RequestState
from kvready.collectors.records import BatchPlanned, LoadDecided, Tier

UNKNOWN_TIER = "unknown"
NO_TIER = "no hit"


def known_of_request(
    rank: EngineRank, free_blocks: int | None, inventory: Inventory, state: RequestState
) -> Known:
    """At a request's arrival, or when it is scheduled."""
    arrived = state.arrived
    known = known_of_engine(rank, free_blocks, state)
    found = state.expected_tokens if state.scheduled is None else state.computed_tokens
    known.input_tokens = arrived.prompt_tokens
    known.prefix_ratio = found / max(arrived.prompt_tokens, 1)
    known.uncached_input_tokens = known.new_tokens = arrived.prompt_tokens - found
    if state.scheduled is None:
        _tell_tiers(known, rank, inventory, state)
    else:
        known.hbm_tokens = state.scheduled.hbm_tokens
        known.host_tokens = state.scheduled.loaded_tokens
    _tell_link(known, INTO_HBM, rank.requests.copies.values())
    return known


def known_of_copy(rank: EngineRank, free_blocks: int | None, copy: Copy) -> Known:
    """When a copy is ordered."""
    decided = copy.decided
    state = rank.requests.live.get(decided.request_id)
    known = known_of_engine(rank, free_blocks, state)
    if state is not None:
        found = state.expected_tokens
        known.input_tokens = state.arrived.prompt_tokens
        known.prefix_ratio = found / max(state.arrived.prompt_tokens, 1)
        known.uncached_input_tokens = known.new_tokens = state.arrived.prompt_tokens - found
    known.load_bytes = decided.payload_bytes
    known.load_fragments = decided.fragments
    direction = direction_of(copy)
    _tell_link(known, direction, (one for one in rank.requests.copies.values() if one is not copy))
    _tell_source(known, decided)
    return known


def known_of_batch(rank: EngineRank, batch: BatchPlanned) -> Known:
    """When a batch is planned."""
    known = known_of_engine(rank, batch.free_blocks)
    known.members = len(batch.members)
    known.new_tokens = sum(member.new_tokens for member in batch.members)
    context = sum(member.context_tokens for member in batch.members)
    known.input_tokens = context + known.new_tokens
    known.uncached_input_tokens = known.new_tokens
    known.prefix_ratio = context / max(known.input_tokens, 1)
    _tell_link(known, INTO_HBM, rank.requests.copies.values())
    return known


def known_of_engine(
    rank: EngineRank, free_blocks: int | None, subject: RequestState | None = None
) -> Known:
    """What holds for all: the cache, as the last batch told, and the queue but for the subject."""
    known = Known()
    engine = rank.engine
    if engine is not None and engine.hbm_blocks and free_blocks is not None:
        known.kv_usage_ratio = 1.0 - free_blocks / engine.hbm_blocks
    for state in rank.requests.live.values():
        if state is subject:
            continue
        known.running_requests += state.is_running
        known.waiting_requests += not state.is_running
        if state.first_token_seconds is None:
            known.input_tokens_in_flight += state.arrived.prompt_tokens
            found = state.expected_tokens if state.scheduled is None else state.computed_tokens
            known.queued_tokens += max(0, state.arrived.prompt_tokens - found)
    return known


def tier_of_request(state: RequestState, known: Known) -> str:
    """The farthest tier that its prefix lies in: what decides how long it takes to be there."""
    if state.nominal_tokens is None:
        return UNKNOWN_TIER
    if known.disk_tokens:
        return Tier.DISK
    if known.host_tokens:
        return Tier.HOST
    return Tier.HBM if state.nominal_tokens else NO_TIER


def _tell_tiers(known: Known, rank: EngineRank, inventory: Inventory, state: RequestState) -> None:
    arrived, engine = state.arrived, rank.engine
    if not arrived.block_tokens or engine is None:
        return
    findable = arrived.block_hashes[: max(0, arrived.prompt_tokens - 1) // arrived.block_tokens]
    blocks = inventory.tier_prefix(findable, rank=rank.rank).blocks_by_tier
    known.hbm_tokens = blocks[Tier.HBM] * arrived.block_tokens
    known.host_tokens = blocks[Tier.HOST] * arrived.block_tokens
    known.disk_tokens = (blocks[Tier.DISK] + blocks[Tier.REMOTE]) * arrived.block_tokens
    to_load = blocks[Tier.HOST] + blocks[Tier.DISK] + blocks[Tier.REMOTE]
    known.load_bytes = to_load * arrived.block_tokens * engine.kv_bytes_per_token
    known.load_fragments = to_load * engine.host_fragments_per_block


def _tell_link(known: Known, direction: tuple[Tier, Tier], copies: Iterable[Copy]) -> None:
    for copy in copies:
        if direction_of(copy) == direction:
            known.load_bytes_ahead += copy.decided.payload_bytes
        else:
            known.load_bytes_other_way += copy.decided.payload_bytes


def _tell_source(known: Known, decided: LoadDecided) -> None:
    if decided.source is Tier.HOST:
        known.host_tokens = decided.tokens
    elif decided.source is Tier.HBM:
        known.hbm_tokens = decided.tokens
    else:
        known.disk_tokens = decided.tokens
