"""What an engine did from one pass of its scheduler on, to be rolled again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kvready.advisor.episode_roll import Start
from kvready.advisor.jobs import Job
from kvready.advisor.lookahead import load_is_ordered
from kvready.advisor.requests import RequestState
from kvready.advisor.savings import Candidate
from kvready.advisor.scheduler_state import SchedulerState
from kvready.collectors.records import BatchMember, BatchPlanned, RequestScheduled

# An engine asks its mover before it ends a step: what is done later is seen a pass later (on two
# bundled recordings nothing younger than 2.3 ms was seen, and all that was older).
POLL_SECONDS = 3e-3
NEXT_PASS_SECONDS = 1e-6

Decision = tuple[frozenset[str], frozenset[str]]  # admitted; loads ordered


class Pass:
    """One of the scheduler; seconds count from the tape's first. `step` is None for one in which an
    idle engine ordered copies and had nothing to run."""

    __slots__ = ("ended_seconds", "free_blocks", "loads", "members", "planned_seconds", "step")

    def __init__(
        self,
        step: int | None,
        members: Iterable[BatchMember],
        planned_seconds: float,
        free_blocks: int | None = None,
    ) -> None:
        self.step = step
        self.free_blocks = free_blocks  # once all of it is decided
        self.members = tuple(members)
        self.planned_seconds = planned_seconds
        self.loads: list[str] = []
        self.ended_seconds = planned_seconds if step is None else None


class Tape:
    """One pass, or an episode that began with it. Seconds count from the pass."""

    def __init__(
        self,
        start: Start,
        batch: BatchPlanned,
        states: Mapping[str, RequestState],
        before_seconds: float | None,
    ) -> None:
        """`before_seconds`: when the pass before was planned."""
        self.start = start
        self.began_seconds = batch.planned_seconds
        self.before_seconds = None if before_seconds is None else self._since(before_seconds)
        self.under_way_ended_seconds = 0.0
        self.is_open = False  # an episode
        self.differing: set[Candidate] = set()
        self.passes: list[Pass] = []
        self.jobs = {job.request_id: job for job in start.jobs}
        self.states = {name: states[name] for name in self.jobs}
        self.counted = {name for name, job in self.jobs.items() if job.prefill_left > 0}
        self.unfinished = set(self.counted)
        self.arrivals: dict[str, float] = {}
        self.admitted: dict[str, tuple[int, RequestScheduled]] = {}  # by which pass
        self.finished: set[str] = set()
        self.batch(batch)

    def batch(self, batch: BatchPlanned) -> None:
        """A pass of the scheduler."""
        planned = self._since(batch.planned_seconds)
        self.passes.append(Pass(batch.step, batch.members, planned, batch.free_blocks))

    def end(self, step: int, finished_seconds: float) -> None:
        """A batch's results are in."""
        ended = self._since(finished_seconds)
        for one in reversed(self.passes):
            if one.step == step:
                one.ended_seconds = ended
                return
        self.under_way_ended_seconds = max(self.under_way_ended_seconds, ended)

    def order_load(self, request_id: str, decided_seconds: float) -> None:
        """It ordered a load."""
        if request_id in self.jobs:
            self._pass_of_order(decided_seconds).loads.append(request_id)

    def arrive(self, state: RequestState, job: Job) -> None:
        """A request came."""
        name = job.request_id
        self.jobs[name] = job
        self.states[name] = state
        self.counted.add(name)
        self.unfinished.add(name)
        self.arrivals[name] = max(0.0, self._since(state.arrived.arrived_seconds))

    def admit(self, record: RequestScheduled) -> None:
        """A request entered a batch."""
        if record.request_id in self.jobs:
            last = len(self.passes) - 1
            self.admitted.setdefault(record.request_id, (last, record))

    def first_token(self, request_id: str) -> None:
        """Its prefill is over."""
        self.unfinished.discard(request_id)

    def finish(self, request_id: str) -> None:
        """It ended."""
        self.finished.add(request_id)

    @property
    def decision(self) -> Decision:
        """Whom the first pass admitted, and whose loads it ordered."""
        known = {m.request_id for batch in self.start.under_way.batches for m in batch}
        waited = {j.request_id for j in self.start.jobs if not j.running} - known
        first = self.passes[0]
        admitted = frozenset(m.request_id for m in first.members if m.request_id in waited)
        return admitted, frozenset(first.loads)

    def look_back(self) -> None:
        """Put right what was not known of the first pass when it came.

        Copies that were done just before it, or since: it did not see them. Blocks that somebody
        found in HBM whose coming had not been told.
        """
        let_in = {name for name, (number, _) in self.admitted.items() if number == 0}
        for job in self.start.jobs:
            if job.running:
                continue
            state = self.states[job.request_id]
            if job.request_id in let_in:
                if job.load_seconds > 0.0 and not load_is_ordered(state):
                    find_in_hbm(job, self.start.limits.block_tokens)
                continue
            for copy in state.copies:
                ready = copy.ready_seconds
                if copy.decided.decided_seconds >= self.began_seconds or copy.is_backup:
                    continue
                if ready is None or self._since(ready) > -POLL_SECONDS:
                    job.usable_after_seconds = max(job.usable_after_seconds, NEXT_PASS_SECONDS)

    @property
    def before_pass(self) -> Start:
        """The state before the first pass, once all that it did is told."""
        return self.with_free_blocks(self.start)

    def with_free_blocks(self, start: Start) -> Start:
        """The same with the blocks that the first pass took: the engine told what was left."""
        left = start.limits.free_blocks
        if left is None:
            return start
        limits = msgspec.structs.replace(start.limits, free_blocks=left + self._blocks_taken(start))
        return msgspec.structs.replace(start, limits=limits)

    def _blocks_taken(self, start: Start) -> int:
        """By whom the first pass let in or ordered loads for, but for what is taken later."""
        state = SchedulerState(start.jobs, None, start.limits, start.link, None)
        for members in start.under_way.batches:
            state.admit_members(members)
        before = state.blocks.own + state.promised_blocks
        state.follow(self.passes[0].members, self.passes[0].loads)
        return before - state.blocks.own - state.promised_blocks

    def _pass_of_order(self, decided_seconds: float) -> Pass:
        last, decided = self.passes[-1], self._since(decided_seconds)
        if last.ended_seconds is not None and decided >= last.ended_seconds:
            last = Pass(None, (), decided)
            self.passes.append(last)
        return last

    def _since(self, seconds: float) -> float:
        return seconds - self.began_seconds


def find_in_hbm(job: Job, block_tokens: int) -> None:
    """What was to be loaded is there."""
    loaded = min(job.blocks_needed, job.load_tokens // block_tokens)
    job.blocks_needed -= loaded
    job.hbm_blocks += loaded
    job.load_seconds = 0.0
    job.load_tokens = 0
    job.load_hashes = ()
