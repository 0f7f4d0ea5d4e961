"""Shadow batches: at each of the engine's, the one that Strata would have formed.

Where a policy would have decided otherwise an episode begins: what the engine does from there on is
written down, until nobody of those concerned still waits for a first token, or 30 s. Then the same
requests are rolled forward from the same state by the engine's batches, by its own policy as we
know it, and by each policy that differed, with what chance gave the engine. One episode at a time,
so that a request counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from kvready.advisor.compute import ComputeModel
from kvready.advisor.episode_roll import Start, as_it_was, as_policy
from kvready.advisor.forecast_writer import Moment
from kvready.advisor.jobs import Job
from kvready.advisor.lookahead import Lookahead, load_is_ordered
from kvready.advisor.overlap import stall_seconds
from kvready.advisor.requests import RequestState, RequestTracker
from kvready.advisor.rollforward import finish_under_way
from kvready.advisor.savings import Candidate, Difference, Savings
from kvready.advisor.scheduler_state import Scan, SchedulerState
from kvready.advisor.settling import settled
from kvready.advisor.strata import PAPER, Settings
from kvready.advisor.strata_scan import StrataScan
from kvready.advisor.tape import Decision, Tape
from kvready.advisor.waiting_queue import WaitingQueue
from kvready.collectors.records import BatchFinished, BatchMember, BatchPlanned

MAX_TAPE_BATCHES = 2_048
MAX_TAPE_REQUESTS = 512
EPISODE_SECONDS = 30.0
MICROSECONDS = 6  # digits: two rolls that decide alike differ by the rounding of their sums

SETTINGS = {
    Candidate.DEDUP: Settings(balance=False),
    Candidate.BALANCE: Settings(dedup=False),
}


class Compared(StrEnum):
    """An observed batch beside the intended one."""

    SAME = "same"
    DIFFERENT = "different"
    NO_CHOICE = "no_choice"  # nobody waits for a load or for another's prefix
    IN_EPISODE = "in_episode"  # its state is not the one that the policy would be in
    TOO_MANY = "too_many"  # live requests: shed


class Voided(StrEnum):
    """Why an episode came to nothing."""

    ABORTED = "aborted"  # a request of it ended without a first token
    PREEMPTED = "preempted"
    LOST = "lost"  # records were lost, or the engine restarted
    TOO_LARGE = "too_large"
    TOO_MUCH_WORK = "too_much_work"


class Intended(msgspec.Struct):
    """Sums over the batches that Strata would have formed, seconds as the models predict."""

    batches: int = 0
    load_seconds: float = 0.0
    compute_seconds: float = 0.0
    stall_seconds: float = 0.0


class ShadowTotals:
    """What all ranks of an engine add to."""

    def __init__(self) -> None:
        self.compared: Counter[Compared] = Counter()
        self.voided: Counter[Voided] = Counter()
        self.intended = Intended()
        self.savings = Savings()
        # Hears what the engine decided in a pass, and what Strata would have.
        self.on_judged: Callable[[Decision, Decision], None] | None = None


class Shadow:
    """One rank's. Told of a batch before the parts that change the rank's state take it."""

    def __init__(
        self,
        requests: RequestTracker,
        lookahead: Lookahead,
        compute: ComputeModel,
        totals: ShadowTotals,
    ) -> None:
        self._requests = requests
        self._lookahead = lookahead
        self._compute = compute
        self._totals = totals
        self._tape: Tape | None = None
        self._planned_seconds: float | None = None  # of the latest pass

    def batch_planned(self, batch: BatchPlanned, queue: WaitingQueue, moment: Moment) -> None:
        """The scheduler's next pass; what it ordered in the pass before is all known now."""
        self._judge_pass()
        before_seconds, self._planned_seconds = self._planned_seconds, batch.planned_seconds
        tape = self._tape
        if tape is not None and tape.is_open:
            self._totals.compared[Compared.IN_EPISODE] += 1
            if len(tape.passes) >= MAX_TAPE_BATCHES:
                self.void(Voided.TOO_LARGE)
            else:
                tape.batch(batch)
            return
        self._tape = None
        if len(self._requests.live) > MAX_TAPE_REQUESTS:
            self._totals.compared[Compared.TOO_MANY] += 1
        elif not self._has_choice(queue, moment):
            self._totals.compared[Compared.NO_CHOICE] += 1
        elif (start := self._start(batch, queue, moment)) is not None:
            self._tape = Tape(start, batch, self._requests.live, before_seconds)

    def batch_finished(self, batch: BatchFinished) -> None:
        """A batch ended: an episode may be over."""
        self._judge_pass()
        tape = self._tape
        if tape is None or not tape.is_open:
            return
        tape.end(batch.step, batch.finished_seconds)
        age = batch.finished_seconds - tape.began_seconds
        if age >= EPISODE_SECONDS or not tape.unfinished:
            self._tape = None
            self._close(tape)

    def arrived(self, state: RequestState, queue: WaitingQueue, moment: Moment) -> None:
        """A request came."""
        tape = self._tape
        if tape is None:
            return
        job = self._lookahead.job(state, moment)
        if job is None or len(tape.jobs) >= MAX_TAPE_REQUESTS:
            self.void(Voided.TOO_LARGE)
            return
        self._follow_blocks(job)
        self._renew([job], queue, moment)
        tape.arrive(state, job)

    @property
    def tape(self) -> Tape | None:
        """Where the facts of the pass or the episode at hand go."""
        return self._tape

    def void(self, reason: Voided) -> None:
        """What is written down cannot be compared."""
        if self._tape is not None and self._tape.is_open:
            self._totals.voided[reason] += 1
        self._tape = None

    def _has_choice(self, queue: WaitingQueue, moment: Moment) -> bool:
        """Whether anybody waits whom a policy might treat otherwise than the engine."""
        live = self._requests.live
        return any(
            (waiting.load_tokens or waiting.awaited_tokens > PAPER.delay_tokens)
            and not load_is_ordered(live[waiting.request_id])
            for waiting in queue.waiting(moment[1])
            if waiting.request_id in live
        )

    def _start(self, batch: BatchPlanned, queue: WaitingQueue, moment: Moment) -> Start | None:
        """The state before the pass, but for its free blocks, which are those after it."""
        start = self._lookahead.start(moment)
        if start is None:
            return None
        for job in start.jobs:
            self._follow_blocks(job)
        self._renew(start.jobs, queue, moment)
        limits = msgspec.structs.replace(start.limits, free_blocks=batch.free_blocks)
        return msgspec.structs.replace(start, limits=limits)

    def _follow_blocks(self, job: Job) -> None:
        """From here on it is known who shares which blocks: all that it has are its own."""
        job.chain = chain = self._requests.live[job.request_id].arrived.block_hashes
        if job.blocks_held:
            job.blocks_held += self._requests.held.held(chain, len(chain), by=2)

    def _renew(self, jobs: Sequence[Job], queue: WaitingQueue, moment: Moment) -> None:
        """Who waits is known by its match as it is now, not as it was at its arrival."""
        engine = self._lookahead.engine
        reserves_output = engine is not None and engine.reserves_output
        by_id = {job.request_id: job for job in jobs if not job.running}
        block_tokens = queue.block_tokens
        for waiting in queue.these(by_id, moment[1]):
            job = by_id[waiting.request_id]
            job.load_hashes = waiting.load_hashes
            state = self._requests.live[waiting.request_id]
            if load_is_ordered(state):
                continue
            job.context_tokens = waiting.context_tokens
            job.promised_tokens = waiting.context_tokens + waiting.awaited_tokens
            job.leader = waiting.leader if waiting.awaited_tokens else ""
            job.load_tokens = waiting.load_tokens
            job.load_seconds = self._lookahead.load_seconds(waiting.load_tokens)
            in_hbm = (waiting.context_tokens - waiting.load_tokens) // block_tokens
            job.blocks_held = 0
            job.hbm_blocks = in_hbm
            whole = job.prompt_tokens + (job.output_left if reserves_output else 0)
            job.blocks_needed = -(-whole // block_tokens) - in_hbm

    def _judge_pass(self) -> None:
        """Whether some policy would have decided the pass at hand otherwise."""
        tape = self._tape
        if tape is None or tape.is_open:
            return
        tape.look_back()
        start, actual = tape.before_pass, tape.decision
        intended = self._first_decision(start, StrataScan(PAPER, start.limits), note=True)
        self._totals.compared[Compared.SAME if intended == actual else Compared.DIFFERENT] += 1
        if self._totals.on_judged is not None:
            self._totals.on_judged(actual, intended)
        placebo = self._first_decision(start, None)
        if placebo != actual:
            tape.differing.add(Candidate.PLACEBO)
        # Where all of Strata decides as the engine would, so does each part of it.
        parts = SETTINGS.items() if intended != placebo else ()
        for candidate, settings in parts:
            # As the engine's own policy would: then what differs is not the candidate's doing.
            if self._first_decision(start, StrataScan(settings, start.limits)) not in (
                actual,
                placebo,
            ):
                tape.differing.add(candidate)
        tape.is_open = bool(tape.differing) or self._totals.savings.needs_placebos
        if not tape.is_open:
            self._tape = None

    def _first_decision(
        self, start: Start, scan: Scan | None, *, note: bool = False
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Whom a policy would have admitted in this pass, and whose loads it would have ordered."""
        state = SchedulerState(start.jobs, None, start.limits, start.link, None, scan)
        now = finish_under_way(state, self._compute.batch_seconds, start.under_way)
        waited = {job.request_id for job in state.waiting}
        members = state.plan(now)
        loads = state.loads_ordered
        if note:
            self._note(start, sum(job.load_seconds for job in loads), members)
        admitted = frozenset(m.request_id for m in members if m.request_id in waited)
        return admitted, frozenset(job.request_id for job in loads)

    def _note(self, start: Start, load: float, members: Sequence[BatchMember]) -> None:
        compute = self._compute.batch_seconds(members) if members else 0.0
        limits, intended = start.limits, self._totals.intended
        intended.batches += 1
        intended.load_seconds += load
        intended.compute_seconds += compute
        intended.stall_seconds += stall_seconds(limits.overlap, limits.layers, load, compute)

    def _close(self, tape: Tape) -> None:
        """Roll what happened, the engine's policy, and each that differed."""
        cost = self._compute.batch_seconds
        episode = settled(tape, self._lookahead.load_seconds, cost)
        start, arrivals, draws = episode.start, episode.arrivals, episode.draws
        actual, lent = as_it_was(start, arrivals, cost, EPISODE_SECONDS, episode.script, draws)
        # Where it did not come to an end nobody is followed for longer than it was.
        horizon = EPISODE_SECONDS if actual.whole else min(EPISODE_SECONDS, actual.ended_seconds)

        def saved(scan: Scan | None) -> tuple[float, float] | None:
            side = as_policy(start, arrivals, cost, horizon, scan, draws, lent)
            if side is None:
                self._totals.voided[Voided.TOO_MUCH_WORK] += 1
                return None
            waits = episode.waits(actual, horizon) - episode.waits(side, horizon)
            both_whole = actual.whole and side.whole  # else they did not do the same work
            busy = actual.busy_seconds - side.busy_seconds if both_whole else 0.0
            return round(waits, MICROSECONDS), round(busy, MICROSECONDS)

        wrong = saved(None)
        if wrong is None:
            return
        requests = len(episode.counted)
        self._totals.savings.add(Candidate.PLACEBO, Difference(*wrong, *wrong, requests))
        for candidate in sorted(tape.differing - {Candidate.PLACEBO}):
            difference = saved(StrataScan(SETTINGS[candidate], start.limits))
            if difference is not None:
                self._totals.savings.add(candidate, Difference(*difference, *wrong, requests))
