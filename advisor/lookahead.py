"""The engine as it stands, ready to be rolled forward: its queue, batches under way, and link."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from kvready.advisor.compute import ComputeModel
from kvready.advisor.episode_roll import Start
from kvready.advisor.forecast_writer import Moment
from kvready.advisor.jobs import Job, Limits, Link, Mark, Rolled, UnderWay
from kvready.advisor.readiness import FROM_DISK, INTO_HBM, Mover
from kvready.advisor.requests import RequestState, RequestTracker
from kvready.advisor.rollforward import (
    ASSUMED_OUTPUT_TOKENS,
    FirstTokens,
    first_tokens,
    roll_forward,
)
from kvready.collectors.records import BatchPlanned, EngineDescribed, Tier

MAX_PLANNED_BATCHES = 64
MAX_JOBS = 2_048  # live requests; of more, nothing is foreseen
MODEL = "roll-forward-2"
EXTRAPOLATED = ".extrapolated"  # to a version: beyond what a roll's bounded work has reached


def load_is_ordered(state: RequestState) -> bool:
    """Whether a copy into HBM was ordered for it; one fetched into host memory waits for that."""
    return any(copy.decided.destination is Tier.HBM for copy in state.copies)


class Lookahead:
    """Rolls one rank forward with what its models say now."""

    def __init__(self, requests: RequestTracker, compute: ComputeModel, mover: Mover) -> None:
        self.engine: EngineDescribed | None = None
        self.free_blocks: int | None = None
        self.planned: OrderedDict[int, BatchPlanned] = OrderedDict()  # not ended, by step
        self._requests = requests
        self._compute = compute
        self._mover = mover

    @property
    def version(self) -> str:
        """Names the rules and the coefficients that a forecast was made with."""
        return f"{MODEL}+{self._compute.version}"

    def version_of(self, rolled: Rolled, seconds: float) -> str:
        """That of a forecast of so many seconds from now."""
        return self.version + (EXTRAPOLATED if seconds > rolled.horizon_seconds else "")

    def plan(self, batch: BatchPlanned) -> None:
        """A batch was planned."""
        self.free_blocks = batch.free_blocks
        self.planned[batch.step] = batch
        while len(self.planned) > MAX_PLANNED_BATCHES:
            self.planned.popitem(last=False)

    def latest_batch(self, planned_seconds: float) -> BatchPlanned | None:
        """The batch that was planned at this very moment."""
        if not self.planned:
            return None
        latest = next(reversed(self.planned.values()))
        return latest if latest.planned_seconds == planned_seconds else None

    def roll(self, subject: RequestState, moment: Moment, mark: Mark | None = None) -> Rolled:
        """What comes of a request, seconds from now. One that has not arrived arrives now."""
        engine = self._foreseeable_engine()
        if engine is None:
            return Rolled(None, None)
        states = list(self._requests.live.values())
        if subject.arrived.request_id not in self._requests.live:
            states.append(subject)
        return roll_forward(
            self._jobs(states, moment, engine),
            subject.arrived.request_id,
            self._limits(engine),
            self._compute.batch_seconds,
            self._under_way(moment),
            self._link(moment),
            mark,
        )

    def first_tokens(self, moment: Moment) -> FirstTokens:
        """Of all live requests, seconds from now: what `roll` says of each, for one roll."""
        engine = self._foreseeable_engine()
        if engine is None:
            return FirstTokens({})
        return first_tokens(
            self._jobs(self._requests.live.values(), moment, engine),
            self._limits(engine),
            self._compute.batch_seconds,
            self._under_way(moment),
            self._link(moment),
        )

    def start(self, moment: Moment, freed_blocks: int = 0) -> Start | None:
        """All live requests as they stand, to be rolled forward by several policies."""
        engine = self._foreseeable_engine()
        if engine is None:
            return None
        limits = self._limits(engine)
        if limits.free_blocks is not None:
            limits = msgspec.structs.replace(limits, free_blocks=limits.free_blocks + freed_blocks)
        jobs = self._jobs(self._requests.live.values(), moment, engine)
        return Start(jobs, limits, self._under_way(moment), self._link(moment))

    def job(self, state: RequestState, moment: Moment) -> Job | None:
        """One request as it stands."""
        engine = self._foreseeable_engine()
        return next(iter(self._jobs([state], moment, engine)), None) if engine else None

    def load_seconds(self, tokens: int) -> float:
        """Service of a load of so many tokens into HBM."""
        engine = self.engine
        return self._unordered_load_seconds(tokens, engine) if engine and tokens else 0.0

    def _foreseeable_engine(self) -> EngineDescribed | None:
        engine = self.engine
        if engine is None or not engine.block_tokens or not engine.supported_kv_state:
            return None
        if len(self._requests.live) > MAX_JOBS:
            return None
        return engine

    def _limits(self, engine: EngineDescribed) -> Limits:
        return Limits(
            batch_tokens=engine.batch_token_limit,
            batch_requests=engine.batch_request_limit,
            free_blocks=self.free_blocks,
            request_tokens=engine.request_token_limit,
            block_tokens=engine.block_tokens,
            overlap=engine.overlap,
            layers=engine.layers,
            reserves_output=engine.reserves_output,
            finds_unfinished=engine.finds_unfinished,
        )

    def _under_way(self, moment: Moment) -> UnderWay:
        planned = list(self.planned.values())
        return UnderWay(
            [batch.members for batch in planned],
            moment[1] - planned[0].planned_seconds if planned else 0.0,
        )

    def _link(self, moment: Moment) -> Link:
        model = self._mover.model(*INTO_HBM)
        backlog = self._mover.backlog_seconds(INTO_HBM, self._requests.copies.values(), moment[1])
        return Link(backlog, model.submit_seconds, model.step_share)

    def copies_left_seconds(self, state: RequestState, moment: Moment) -> float:
        """Until the copies that were ordered for a request are usable; 0 if they are."""
        if not state.copies and not state.waits_on:
            return 0.0
        return max(
            (self._mover.left_seconds(copy, moment[1]) for copy in state.unfinished_copies),
            default=0.0,
        )

    def _jobs(
        self, states: Iterable[RequestState], moment: Moment, engine: EngineDescribed
    ) -> list[Job]:
        copies = self._requests.copies.values()
        disk_backlog = self._mover.backlog_seconds(FROM_DISK, copies, moment[1])
        return [self._job(state, moment, engine, disk_backlog) for state in states]

    def _job(
        self, state: RequestState, moment: Moment, engine: EngineDescribed, disk_backlog: float
    ) -> Job:
        """A request as the roll-forward sees it."""
        arrived, block = state.arrived, engine.block_tokens
        prompt = arrived.prompt_tokens
        output = arrived.output_token_limit or ASSUMED_OUTPUT_TOKENS
        waiting = state.scheduled is None
        will_find = state.expected_tokens if waiting else state.computed_tokens
        found = min(state.nominal_tokens or 0, will_find) if waiting else will_find
        blocks = -(-(prompt + (output if engine.reserves_output else 0)) // block)
        holds = not waiting or load_is_ordered(state)
        load = fetch = 0.0
        if not holds and state.host_tokens:
            load = self._unordered_load_seconds(state.host_tokens, engine)
        if waiting and state.disk_tokens and not (state.copies or state.waits_on):
            fetch = self._unordered_fetch_seconds(state.disk_tokens, disk_backlog, engine)
        held = self._requests.held
        idle = in_hbm = 0
        if holds:
            blocks -= held.held(arrived.block_hashes, prompt // block, by=2)
        else:
            in_hbm = max(0, found - state.host_tokens) // block
            idle = in_hbm - held.held(arrived.block_hashes, in_hbm)
        return Job(
            arrived.request_id,
            prompt_tokens=prompt,
            context_tokens=found,
            output_left=max(1, output - state.output_tokens),
            load_seconds=load,
            usable_after_seconds=self.copies_left_seconds(state, moment),
            running=not waiting and state.is_running,
            blocks_needed=0 if holds else blocks - in_hbm,
            blocks_held=blocks if holds else 0,
            leader=state.leader,
            promised_tokens=will_find,
            idle_blocks=idle,
            family=arrived.block_hashes[0] if arrived.block_hashes else 0,
            fetch_seconds=fetch,
            load_tokens=state.host_tokens if load else 0,
        )

    def _unordered_fetch_seconds(
        self, tokens: int, backlog_seconds: float, engine: EngineDescribed
    ) -> float:
        """Until a fetch that the scheduler has not ordered yet would be in host memory."""
        model = self._mover.model(*FROM_DISK)
        return model.wait_seconds(0.0, backlog_seconds) + model.service_seconds(
            tokens * engine.kv_bytes_per_token, tokens // engine.block_tokens
        )

    def _unordered_load_seconds(self, tokens: int, engine: EngineDescribed) -> float:
        """Service of a load that the scheduler has not ordered yet."""
        blocks = tokens // engine.block_tokens
        return self._mover.model(*INTO_HBM).service_seconds(
            tokens * engine.kv_bytes_per_token, blocks * engine.host_fragments_per_block
        )
