"""Where the parts of a candidate are: in which tier, on their way, or nowhere."""

from __future__ import annotations

from collections import OrderedDict

from kvready.advisor.content_index import ContentIndex
from kvready.advisor.decision import Reason
from kvready.advisor.engine_estimates import EngineEstimates
from kvready.advisor.engine_rank import EngineRank
from kvready.advisor.holding import Holding, Portion
from kvready.advisor.inventory import Inventory, Knowledge, TierPrefix
from kvready.advisor.ranges import Range, later
from kvready.advisor.requests import RequestState
from kvready.collectors.asked import AskedCandidate, AskedResource
from kvready.collectors.records import Tier

MAX_REMEMBERED_HASHES = 1 << 18
LOWER_TIERS = (Tier.HOST, Tier.DISK, Tier.REMOTE)


class PrefixMemory:
    """Matches of the latest prefixes, good for as long as no block came or went."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._version = -1
        self._hashes = 0
        self._knowledge: dict[int, Knowledge] = {}
        self._kept: OrderedDict[tuple[int, int, int], tuple[tuple[int, ...], TierPrefix]]
        self._kept = OrderedDict()

    def knowledge(self, rank: int) -> Knowledge:
        """How far what is known of a rank's blocks can be trusted."""
        self._forget_what_changed()
        known = self._knowledge.get(rank)
        if known is None:
            known = self._knowledge[rank] = self._inventory.state(rank=rank)
        return known

    def match(self, block_hashes: tuple[int, ...], rank: int) -> TierPrefix:
        """The longest resident prefix."""
        self._forget_what_changed()
        if not block_hashes:
            return self._inventory.tier_prefix(block_hashes, rank=rank)
        # Hashes chain, so that the last one tells prefixes apart; whoever makes up others gets
        # another's match no more than its own: the whole prefix is compared.
        key = (rank, len(block_hashes), block_hashes[-1])
        kept = self._kept.get(key)
        if kept is not None and kept[0] == block_hashes:
            return kept[1]
        found = self._inventory.tier_prefix(block_hashes, rank=rank)
        if kept is None:
            self._hashes += len(block_hashes)
        self._kept[key] = (block_hashes, found)
        while self._hashes > MAX_REMEMBERED_HASHES:
            self._hashes -= len(self._kept.popitem(last=False)[1][0])
        return found

    def _forget_what_changed(self) -> None:
        if self._version != self._inventory.version:
            self._kept.clear()
            self._knowledge.clear()
            self._hashes = 0
            self._version = self._inventory.version


class Matcher:
    """Turns what was asked into a holding, or a reason why there is none."""

    def __init__(self, inventory: Inventory, content: ContentIndex) -> None:
        self._inventory = inventory
        self._content = content
        self._memory = PrefixMemory(inventory)

    def holding(
        self, asked: AskedCandidate, rank: EngineRank | None, estimates: EngineEstimates
    ) -> Holding | Reason:
        """Where its parts are now."""
        if asked.resource is not None:
            return resource_holding(asked.resource)
        if asked.request_id:
            state = rank.requests.live.get(asked.request_id) if rank is not None else None
            if state is None:
                return Reason.UNKNOWN_REQUEST
            return self._of_request(state, estimates)
        hashes = asked.block_hashes
        if asked.content_keys:
            hashes = self._content.block_hashes(asked.content_keys, asked.rank)
        block = self._inventory.block_tokens(asked.rank) or estimates.block_tokens
        if not block and not asked.prompt_tokens:
            return Reason.UNKNOWN_RESIDENCY
        whole = max(len(hashes), len(asked.content_keys)) * block
        return self._of_prefix(hashes, asked.prompt_tokens or whole, block, "", estimates)

    def _of_request(self, state: RequestState, estimates: EngineEstimates) -> Holding:
        arrived = state.arrived
        prompt = arrived.prompt_tokens
        if state.first_token_seconds is not None:
            return Holding(hbm_tokens=prompt)
        if state.is_running or state.scheduled is not None:
            computed = min(state.computed_tokens, prompt)
            return Holding(hbm_tokens=computed, missing_tokens=prompt - computed)
        block = arrived.block_tokens
        if not block:
            return Holding(unknown_tokens=prompt)
        # One token is always computed, so that a prompt is never found whole.
        hashes = arrived.block_hashes[: max(0, prompt - 1) // block]
        found = self._of_prefix(hashes, prompt, block, arrived.request_id, estimates)
        return _with_own_copies(found, state, estimates)

    def _of_prefix(
        self,
        hashes: tuple[int, ...],
        prompt: int,
        block: int,
        request_id: str,
        estimates: EngineEstimates,
    ) -> Holding:
        knowledge = self._memory.knowledge(estimates.rank)
        if knowledge is Knowledge.UNKNOWN:
            return Holding(unknown_tokens=prompt, supported=estimates.supported)
        hashes = hashes[: prompt // block if block else 0]
        prefix = self._memory.match(hashes, estimates.rank)
        blocks = prefix.blocks_by_tier
        portions = tuple(
            [estimates.portion(tier, blocks[tier]) for tier in LOWER_TIERS if blocks[tier]]
        )
        in_flight, ready = estimates.in_flight(hashes, prefix.blocks, request_id)
        degraded = knowledge is Knowledge.DEGRADED
        left = prompt - (prefix.blocks + in_flight) * block
        return Holding(
            hbm_tokens=blocks[Tier.HBM] * block,
            portions=portions,
            in_flight_tokens=in_flight * block,
            in_flight_ready=ready,
            missing_tokens=0 if degraded else left,
            unknown_tokens=left if degraded else 0,
            degraded=degraded,
            supported=estimates.supported,
        )


def _with_own_copies(found: Holding, state: RequestState, estimates: EngineEstimates) -> Holding:
    """What is being loaded for the request itself is on its way, not in its old tier."""
    copies = state.unfinished_copies
    if not copies or not found.portions:
        return found
    ready: Range | None = estimates.copies_ready(copies)
    if found.in_flight_tokens:
        ready = later(ready, found.in_flight_ready) if ready and found.in_flight_ready else None
    return Holding(
        hbm_tokens=found.hbm_tokens,
        in_flight_tokens=found.in_flight_tokens + found.lower_tokens,
        in_flight_ready=ready,
        missing_tokens=found.missing_tokens,
        unknown_tokens=found.unknown_tokens,
        degraded=found.degraded,
        supported=found.supported,
    )


def resource_holding(resource: AskedResource) -> Holding:
    """A resource takes the path that KV takes, but nobody can compute it."""
    sizes = resource.payload_bytes
    lower = sum(size for tier, size in sizes.items() if tier is not Tier.HBM)
    portions = tuple(
        Portion(tier, sizes[tier], max(1, round(resource.fragments * sizes[tier] / lower)))
        for tier in LOWER_TIERS
        if sizes.get(tier)
    )
    missing = max(0, resource.total_bytes - sum(sizes.values()))
    return Holding(portions=portions, missing_bytes=missing, recomputable=False)
