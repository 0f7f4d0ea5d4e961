"""One rank's models at one moment, as a decision asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kvready.advisor.contract import Evidence
from kvready.advisor.copy_ranges import Course, Node, Nodes, nodes_of, range_along
from kvready.advisor.engine_rank import ASSUMED_CHUNK_TOKENS, EngineRank
from kvready.advisor.forecast_writer import Moment
from kvready.advisor.holding import Holding, Portion
from kvready.advisor.intervals import FLOOR_SECONDS
from kvready.advisor.ledger import Target
from kvready.advisor.load_priors import PriorKind
from kvready.advisor.ranges import NOTHING, Range, ordered, total
from kvready.advisor.readiness import LoadModel, direction_of
from kvready.advisor.requests import Copy, RequestState
from kvready.advisor.rollforward import FirstTokens
from kvready.advisor.shape_cells import (
    compute_cell,
    inflight_cell,
    load_cell,
    queue_cell,
    request_cell,
)
from kvready.collectors.records import OverlapMode, RequestArrived, Surface, Tier

ROLLS_APART = 4  # requests rolled forward one by one; for more, all are rolled at once
MAX_LEADERS = 16  # places in prompts that are foreseen for one set of estimates
MAX_REMEMBERED_SHAPES = 4_096  # of prefills, and of copies: candidates of one call share them
UNSEEN_FACTOR = 4.0  # of a load of which nothing like it was seen, either way
INTO_HBM = (Tier.HOST, Tier.HBM)

Factors = tuple[float, float, float]  # of the median, the lower and the upper bound
CopyShape = tuple[Tier, int, int]  # source, bytes, fragments
Shape = TypeVar("Shape")
Found = TypeVar("Found")


class EngineEstimates:
    """Computes each thing once, when it is first wanted."""

    def __init__(
        self,
        rank: EngineRank,
        moment: Moment,
    ) -> None:
        engine = rank.engine
        self.rank = rank.rank
        self.moment = moment
        self.is_known = engine is not None
        self.supported = engine is None or engine.supported_kv_state
        self.overlap = engine.overlap if engine else OverlapMode.BEFORE_ADMISSION
        self.layers = engine.layers if engine else 0
        self.block_tokens = engine.block_tokens if engine else 0
        self.interference = rank.forecaster.interference.measured()
        # They name the coefficients that the figures are made with, and the loads' link profile.
        versions = (rank.forecaster.mover.model(*INTO_HBM), rank.forecaster.compute)
        self.model_version = "+".join(model.version for model in versions)
        self.calibration_id = rank.forecaster.mover.calibration_id or None
        self._engine_rank = rank
        self._forecaster = rank.forecaster
        self._block_bytes = self.block_tokens * engine.kv_bytes_per_token if engine else 0
        self._block_fragments = engine.host_fragments_per_block if engine else 0
        self._chunk = (engine.batch_token_limit if engine else 0) or ASSUMED_CHUNK_TOKENS
        # Whether a roll forward reached its bound before what was asked of it.
        self.has_extrapolated = False
        self._queue: Range | None = None
        self._has_queue = False
        self._link_wait: Range | None = None
        self._rolls = 0
        self._first_tokens: FirstTokens | None = None
        self._leaders: dict[tuple[str, int], float | None] = {}
        self._compute_factors: dict[int, Factors] = {}
        self._nodes: dict[tuple[Target, Tier, float], Nodes] = {}
        self._prefills: dict[tuple[int, int], Range] = {}
        self._loads: dict[CopyShape, Range] = {}
        self._fetches: dict[CopyShape, Range | None] = {}
        self._evidence: dict[tuple[Tier, ...], Evidence] = {}

    def portion(self, tier: Tier, blocks: int) -> Portion:
        """So many blocks of KV in a lower tier."""
        return Portion(
            tier,
            blocks * self._block_bytes,
            max(1, blocks * self._block_fragments),
            blocks * self.block_tokens,
        )

    # Loads

    def load_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        """A copy into HBM: straight, where the engine was seen to do so, else from host memory."""
        shape = (source, payload_bytes, fragments)
        known = self._loads.get(shape)
        if known is None:
            straight = self._straight(source)
            if straight is None:
                source, straight = Tier.HOST, self._forecaster.mover.model(*INTO_HBM)
            course = straight.course(payload_bytes, fragments)
            known = _remember(self._loads, shape, self._copy_range(Target.LOAD, source, course))
        return known

    def fetch_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        """Into host memory first. None: no such copy was seen, and no profile names the path."""
        if source is Tier.HOST:
            return NOTHING
        shape = (source, payload_bytes, fragments)
        if shape in self._fetches:
            return self._fetches[shape]
        return _remember(self._fetches, shape, self._fetch_seconds(*shape))

    def _fetch_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        if self._straight(source) is not None:
            return NOTHING
        model = self._forecaster.mover.model(source, Tier.HOST)
        if not _is_founded(model):
            return None
        course = model.course(payload_bytes, fragments)
        return self._copy_range(Target.FETCH, source, course)

    def link_wait_seconds(self) -> Range:
        """What the mover still has to do, and its share of the step that is under way."""
        if self._link_wait is None:
            rank, mover = self._engine_rank, self._forecaster.mover
            backlog = mover.backlog_seconds(INTO_HBM, rank.requests.copies.values(), self.moment[1])
            busy = any(state.is_running for state in rank.requests.live.values())
            step = rank.steps.median_step_seconds if busy else 0.0
            seconds = mover.model(*INTO_HBM).wait_seconds(step, backlog)
            factors = self._factors_of(Target.LOAD, load_cell(Tier.HOST, 0))
            self._link_wait = _scaled(seconds, factors)
        return self._link_wait

    def copies_ready(self, copies: Sequence[Copy]) -> Range:
        """Until all of these are usable; what is left of them is taken to grow as their bytes."""
        mover, source = self._forecaster.mover, copies[0].decided.source
        size = sum(copy.decided.payload_bytes for copy in copies)
        seconds = max(mover.left_seconds(copy, self.moment[1]) for copy in copies)
        prior_factor = mover.model(*direction_of(copies[0])).prior_factor
        course = Course(size, seconds, seconds / max(size, 1), prior_factor)
        return self._copy_range(Target.LOAD, source, course)

    # Compute and queue

    def prefill_seconds(self, new_tokens: int, context_tokens: int) -> Range:
        """Alone, in the engine's chunks."""
        shape = (new_tokens, context_tokens)
        known = self._prefills.get(shape)
        if known is None:
            chunk = self._chunk
            seconds = self._forecaster.compute.recompute_seconds(new_tokens, context_tokens, chunk)
            batch_tokens = new_tokens if new_tokens < chunk else chunk
            octave = batch_tokens.bit_length()
            factors = self._compute_factors.get(octave)
            if factors is None:
                factors = self._factors_of(Target.BATCH_COMPUTE, compute_cell(batch_tokens))
                self._compute_factors[octave] = factors
            known = _remember(self._prefills, shape, _scaled(seconds, factors))
        return known

    def queue_seconds(self) -> Range | None:
        """Of a request that comes now and needs no load."""
        if not self._has_queue:
            self._has_queue = True
            self._queue = self._queue_of_a_newcomer()
        return self._queue

    def _queue_of_a_newcomer(self) -> Range | None:
        rank = self._engine_rank
        if not rank.revision:
            return None
        probe = RequestState(
            RequestArrived(
                "", Surface.SCHEDULER, self.moment[1], self.block_tokens, output_token_limit=1
            )
        )
        probe.nominal_tokens = 0
        rolled = self._forecaster.lookahead.roll(probe, self.moment)
        seconds = self._noted(rolled.scheduled_seconds, rolled.horizon_seconds)
        if seconds is None:
            return None
        ahead = sum(state.scheduled is None for state in rank.requests.live.values())
        return _scaled(seconds, self._factors_of(Target.QUEUE, queue_cell(probe, ahead)))

    def queue_of(self, state: RequestState, own: Range) -> Range | None:
        """What a request waits beyond its own work: its forecast as of now, less that work."""
        whole = self._first_token(state)
        if whole is None:
            return None
        return ordered(whole.p50 - own.p50, whole.low - own.low, whole.high - own.high)

    def own_seconds(self, holding: Holding) -> Range | None:
        """What the engine does for a request by itself: loads what it can, computes the rest."""
        rest = holding.missing_tokens + holding.unknown_tokens
        parts = [self.prefill_seconds(rest, holding.prompt_tokens - rest)]
        for portion in holding.portions:
            for seconds in (
                self.load_seconds(portion.tier, portion.payload_bytes, portion.fragments),
                self.fetch_seconds(portion.tier, portion.payload_bytes, portion.fragments),
            ):
                if seconds is None:
                    return None
                parts.append(seconds)
        if holding.portions:
            parts.append(self.link_wait_seconds())
        return total(*parts)

    def has_other_work(self, request_id: str) -> bool | None:
        """Whether somebody else waits or runs; unknown where nothing tells of requests."""
        if not self._engine_rank.revision:
            return None
        live = self._engine_rank.requests.live
        return len(live) > (request_id in live)

    def in_flight(
        self, block_hashes: Sequence[int], resident_blocks: int, request_id: str
    ) -> tuple[int, Range | None]:
        """How many of a chain's blocks, after those resident, other requests bring, and when.

        The range is None where the last of them cannot be foreseen.
        """
        producer = self._engine_rank.hits.pending.producer
        leader = ""
        end = resident_blocks
        for block_hash in block_hashes[resident_blocks:]:
            found = producer(block_hash)
            if found is None or found == request_id:
                break
            leader = found
            end += 1
        blocks = end - resident_blocks
        if not blocks:
            return 0, None
        return blocks, self._brought(leader, end * self.block_tokens, blocks * self.block_tokens)

    def _brought(self, leader: str, end_tokens: int, tokens: int) -> Range | None:
        """Until a request has computed its prompt up to here; one roll tells of all of them."""
        place = (leader, end_tokens)
        if place not in self._leaders:
            state = self._engine_rank.requests.live.get(leader)
            if state is None or len(self._leaders) >= MAX_LEADERS:
                return None
            self._leaders[place] = self._place_seconds(state, end_tokens)
        seconds = self._leaders[place]
        if seconds is None:
            return None
        cell = inflight_cell("batch", tokens)
        return _scaled(seconds, self._factors_of(Target.INFLIGHT_READY, cell))

    def _place_seconds(self, state: RequestState, tokens: int) -> float | None:
        if state.has_computed(tokens):
            return 0.0
        rolled = self._all_rolled()
        seconds = rolled.progress.reached_seconds(state.arrived.request_id, tokens)
        return self._noted(seconds, rolled.horizon_seconds)

    def _first_token(self, state: RequestState) -> Range | None:
        """From now, by the same forecast that is written when a request arrives."""
        if not self._engine_rank.revision:
            return None
        seconds = self._first_token_seconds(state)
        if seconds is None:
            return None
        elapsed = max(0.0, self.moment[1] - state.arrived.arrived_seconds)
        factors = self._factors_of(Target.TTFT, request_cell(state))
        whole = _scaled(elapsed + seconds, factors)
        return ordered(whole.p50 - elapsed, whole.low - elapsed, whole.high - elapsed)

    def _first_token_seconds(self, state: RequestState) -> float | None:
        """A roll forward stops at its request, one of all at the last: the same, for many."""
        if self._first_tokens is None and self._rolls < ROLLS_APART:
            self._rolls += 1
            apart = self._forecaster.lookahead.roll(state, self.moment)
            return self._noted(apart.first_token_seconds, apart.horizon_seconds)
        rolled = self._all_rolled()
        seconds = rolled.seconds.get(state.arrived.request_id)
        return self._noted(seconds, rolled.horizon_seconds)

    def _all_rolled(self) -> FirstTokens:
        if self._first_tokens is None:
            self._first_tokens = self._forecaster.lookahead.first_tokens(self.moment)
        return self._first_tokens

    def _noted(self, seconds: float | None, horizon_seconds: float) -> float | None:
        self.has_extrapolated |= seconds is not None and seconds > horizon_seconds
        return seconds

    # What it rests on

    def evidence(self, holding: Holding) -> Evidence:
        """The weakest kind that the figures of this holding rest on."""
        if not holding.recomputable:
            return Evidence.ASSUMED  # no load of such a thing was ever seen to its end
        if not self._forecaster.compute.prefill_observations:
            return Evidence.ASSUMED
        tiers = tuple([portion.tier for portion in holding.portions])
        known = self._evidence.get(tiers)
        if known is None:
            kinds = {_evidence_of(model) for tier in tiers for model in self._hops(tier)}
            known = self._evidence[tiers] = next(
                (kind for kind in (Evidence.ASSUMED, Evidence.PUBLISHED) if kind in kinds),
                Evidence.MEASURED,
            )
        return known

    def _hops(self, source: Tier) -> list[LoadModel]:
        """The models of the copies that bring something into HBM."""
        straight = self._straight(source)
        if straight is not None:
            return [straight]
        mover = self._forecaster.mover
        return [mover.model(source, Tier.HOST), mover.model(*INTO_HBM)]

    def _straight(self, source: Tier) -> LoadModel | None:
        if source is Tier.HOST:
            return self._forecaster.mover.model(*INTO_HBM)
        model = self._forecaster.mover.models.get((source, Tier.HBM))
        return model if model is not None and _is_founded(model) else None

    def _copy_range(self, target: Target, source: Tier, course: Course) -> Range:
        key = (target, source, course.prior_factor)
        nodes = self._nodes.get(key)
        if nodes is None:
            nodes = self._nodes[key] = self._nodes_of(*key)
        return range_along(nodes, course)

    def _nodes_of(self, target: Target, source: Tier, prior_factor: float) -> Nodes:
        return nodes_of(self._forecaster.intervals[target], source, prior_factor)

    def _factors_of(self, target: Target, cell: str) -> Factors:
        """What a prediction in this cell is multiplied by: for its median and its bounds."""
        frame = self._forecaster.intervals[target].frame(cell)
        return frame.factor(frame.middle), frame.factor(frame.low), frame.factor(frame.high)


class ResourceEstimates(EngineEstimates):
    """Of what takes the path that KV takes, but of which no load was ever seen to its end.

    The size and the fragments say as much as they say of KV; the interval is that of ignorance.
    """

    def queue_seconds(self) -> Range | None:
        """No scheduler stands before it."""
        return NOTHING

    def _nodes_of(self, target: Target, source: Tier, prior_factor: float) -> Nodes:
        return Nodes([Node(1.0, 1.0, (1.0 / UNSEEN_FACTOR, 1.0, UNSEEN_FACTOR))])

    def _factors_of(self, target: Target, cell: str) -> Factors:
        return 1.0, 1.0 / UNSEEN_FACTOR, UNSEEN_FACTOR


def _remember(memory: dict[Shape, Found], shape: Shape, found: Found) -> Found:
    if len(memory) >= MAX_REMEMBERED_SHAPES:
        memory.clear()
    memory[shape] = found
    return found


def _scaled(seconds: float, factors: Factors) -> Range:
    """Around a prediction, as `Intervals` lays it: its bounds are factors beyond a floor."""
    if seconds <= 0.0:
        return NOTHING
    floored = seconds + FLOOR_SECONDS
    middle, low, high = factors
    return ordered(
        floored * middle - FLOOR_SECONDS,
        floored * low - FLOOR_SECONDS,
        floored * high - FLOOR_SECONDS,
    )


def _is_founded(model: LoadModel) -> bool:
    """Whether anything was measured or published of this path."""
    mover = model.mover(model.expected_method)
    return bool(mover.copies) or mover.prior.kind is not PriorKind.GENERIC


def _evidence_of(model: LoadModel) -> Evidence:
    mover = model.mover(model.expected_method)
    if mover.copies or mover.prior.kind is PriorKind.MEASURED:
        return Evidence.MEASURED
    return Evidence.PUBLISHED if mover.prior.kind is PriorKind.PUBLISHED else Evidence.ASSUMED
