"""Hits that count: nominal, in time, worthwhile, lost; and prefixes asked for before they exist."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kvready.advisor.inventory import Inventory, Knowledge
from kvready.advisor.requests import RequestState, RequestTracker
from kvready.advisor.steps import StepTimeline
from kvready.advisor.totals import Totals
from kvready.advisor.transient import TransientBlocks
from kvready.advisor.waits import Interval, WaitState
from kvready.collectors.records import BatchPlanned, BlocksStored, FirstToken, Tier

DELAY_HIT_TOKENS = 100  # Strata's threshold for deferring a duplicate
IN_TIME_GRACE_SECONDS = 0.002
MAX_RECENT_STORES = 16_384


class HitAccount:
    """Judges each request's hits by the definitions of design section 8."""

    def __init__(
        self,
        inventory: Inventory,
        requests: RequestTracker,
        steps: StepTimeline,
        totals: Totals,
        recompute_seconds: Callable[[int, int], float],
        rank: int = 0,
    ) -> None:
        self._inventory = inventory
        self._requests = requests
        self._steps = steps
        self._totals = totals
        self._recompute_seconds = recompute_seconds
        self._rank = rank
        self.pending = TransientBlocks()  # promised at arrival: what a follower could wait for
        self.computing = TransientBlocks()  # in a batch already: what a second computation repeats
        # When each block was last announced, so that a batch is not judged by its own stores.
        self._stored_wall: OrderedDict[int, float] = OrderedDict()

    def arrive(self, state: RequestState) -> None:
        """Take down what was resident, and what was on its way, when the request arrived."""
        arrived = state.arrived
        if not arrived.block_tokens:
            self._totals.unknown_residency += 1
            return
        # One token is always computed, so a prompt can never be found whole.
        findable = arrived.block_hashes[: max(0, arrived.prompt_tokens - 1) // arrived.block_tokens]
        prefix = self._inventory.tier_prefix(findable, rank=self._rank)
        state.resident_blocks = prefix.blocks
        if self._inventory.state(rank=self._rank) is Knowledge.LIVE:
            state.nominal_tokens = prefix.blocks * arrived.block_tokens
            hbm_tokens = prefix.blocks_by_tier[Tier.HBM] * arrived.block_tokens
            state.host_tokens = max(0, state.nominal_tokens - hbm_tokens)
            state.disk_tokens = prefix.blocks_by_tier[Tier.DISK] * arrived.block_tokens
            state.remote_tokens = prefix.blocks_by_tier[Tier.REMOTE] * arrived.block_tokens
        else:
            self._totals.unknown_residency += 1
        self._note_delay_hit(state)
        self._promise(state)

    def store(self, record: BlocksStored) -> None:
        """Blocks were announced."""
        if record.tier is not Tier.HBM:
            return
        for block_hash in record.block_hashes:
            self._stored_wall[block_hash] = record.published_wall_seconds
            self._stored_wall.move_to_end(block_hash)
        while len(self._stored_wall) > MAX_RECENT_STORES:
            self._stored_wall.popitem(last=False)

    def batch(self, batch: BatchPlanned) -> None:
        """Count the tokens of whole blocks that this batch computes although they exist."""
        for member in batch.members:
            state = self._requests.live.get(member.request_id)
            if state is None or not member.is_prefill or not state.arrived.block_tokens:
                continue
            self.pending.dispatch(member.request_id)
            size = state.arrived.block_tokens
            first = member.context_tokens // size
            last = (member.context_tokens + member.new_tokens) // size
            # The block that holds the prompt's last token is computed even when it is found.
            last = min(last, (state.arrived.prompt_tokens - 1) // size)
            hashes = state.arrived.block_hashes
            duplicates = sum(self._exists(h, member.request_id, batch) for h in hashes[first:last])
            self._totals.duplicate_prefill_tokens += duplicates * size
            self.computing.promise(hashes, first, member.request_id, min(last, len(hashes)))

    def admit(self, state: RequestState) -> None:
        """First admission: what was found, what was brought, what was lost."""
        assert state.scheduled is not None
        scheduled = state.scheduled
        self.pending.dispatch(state.arrived.request_id)
        found = scheduled.hbm_tokens + scheduled.loaded_tokens
        self._totals.prompt_tokens += state.arrived.prompt_tokens
        self._totals.hbm_hit_tokens += scheduled.hbm_tokens
        self._totals.loaded_tokens += scheduled.loaded_tokens
        self._totals.computed_tokens += max(0, state.arrived.prompt_tokens - found)
        if state.nominal_tokens is not None:
            self._totals.judged_prompt_tokens += state.arrived.prompt_tokens
            self._totals.add_nominal(state.nominal_tokens_by_tier)
            self._totals.lost_hit_tokens += max(0, state.nominal_tokens - found)

    def first_token(
        self, state: RequestState, record: FirstToken, wait: dict[WaitState, float]
    ) -> None:
        """Judge whether the hit came in time."""
        self._settle(state)
        exposed, hidden = self._exposed_and_hidden(state, record.first_token_seconds)
        self._totals.exposed_load_seconds += exposed
        self._totals.hidden_load_seconds += hidden
        if not state.nominal_tokens or state.scheduled is None:
            return
        found = state.scheduled.hbm_tokens + state.scheduled.loaded_tokens
        served = min(state.nominal_tokens, found)
        if not served:
            return
        late_by = exposed + wait.get(WaitState.READY, 0.0)
        grace = max(IN_TIME_GRACE_SECONDS, self._steps.median_step_seconds)
        if late_by <= grace:
            self._totals.in_time_hits += 1
            self._totals.in_time_hit_tokens += served
            return
        self._totals.late_hits += 1
        self._totals.late_hit_tokens += served
        # Whoever ordered the copy: what was not in HBM at its arrival would have been computed.
        copied = min(state.host_tokens, served)
        if late_by < self._recompute_seconds(copied, served - copied):
            self._totals.worthwhile_hits += 1
            self._totals.worthwhile_hit_tokens += served

    def finish(self, state: RequestState) -> list[RequestState]:
        """A request ended. What an aborted one had promised falls to the next who needs it.

        Returns those that have another leader now.
        """
        if state.first_token_seconds is not None:
            self._settle(state)
            return []
        request_id = state.arrived.request_id
        self.computing.complete(request_id)
        self.pending.abort(request_id)
        led = []
        for heir in self._requests.live.values():
            if heir.leader == request_id and heir.first_token_seconds is None:
                self._find_leader(heir)
                if heir.leader:
                    led.append(heir)
        return led

    def preempt(self, request_id: str) -> None:
        """A running request waits again."""
        self.pending.requeue(request_id)

    def restart(self) -> None:
        """The engine restarted: nothing is pending and nothing is stored."""
        self.pending.clear()
        self.computing.clear()
        self._stored_wall.clear()

    def _settle(self, state: RequestState) -> None:
        for blocks in (self.pending, self.computing):
            blocks.complete(state.arrived.request_id)

    def _promise(self, state: RequestState) -> None:
        arrived = state.arrived
        self.pending.promise(arrived.block_hashes, state.resident_blocks, arrived.request_id)

    def _find_leader(self, state: RequestState) -> str:
        """Note what others bring past the resident prefix; returns who brings the first of it."""
        arrived = state.arrived
        findable = max(0, arrived.prompt_tokens - 1) // arrived.block_tokens
        awaited = self.pending.awaited(
            arrived.block_hashes, state.resident_blocks, findable, arrived.request_id
        )
        state.leader = awaited.leader
        state.promised_tokens = awaited.blocks * arrived.block_tokens
        return awaited.first_leader

    def _note_delay_hit(self, state: RequestState) -> None:
        producer = self._find_leader(state)
        tokens = state.promised_tokens
        if not producer or tokens < DELAY_HIT_TOKENS:
            return
        self._totals.delay_hits[self.pending.mark(producer)] += 1
        self._totals.delay_hit_tokens += tokens

    def _exists(self, block_hash: int, request_id: str, batch: BatchPlanned) -> bool:
        if self.computing.producer(block_hash) not in (None, request_id):
            return True
        if not self._inventory.resident(block_hash, Tier.HBM, rank=self._rank):
            return False
        stored_wall = self._stored_wall.get(block_hash)
        return stored_wall is None or stored_wall < batch.planned_wall_seconds

    def _exposed_and_hidden(
        self, state: RequestState, first_token_seconds: float
    ) -> tuple[float, float]:
        timeline = state.timeline(first_token_seconds)
        arrived = state.arrived
        computed_tokens = max(0, arrived.prompt_tokens - (state.nominal_tokens or 0))
        blocks_needed = -(-computed_tokens // arrived.block_tokens) if arrived.block_tokens else 0
        exposed = total = 0.0
        for span in _merged((*timeline.loads, *timeline.fetches)):
            total += span.end_seconds - span.begin_seconds
            exposed += self._steps.seconds_with_room(span, blocks_needed)
        return exposed, total - exposed


def _merged(spans: tuple[Interval, ...]) -> list[Interval]:
    """The same instants, without overlap."""
    merged: list[Interval] = []
    for span in sorted(spans, key=lambda span: span.begin_seconds):
        if merged and span.begin_seconds <= merged[-1].end_seconds:
            last = merged.pop()
            span = Interval(last.begin_seconds, max(last.end_seconds, span.end_seconds))
        merged.append(span)
    return merged
