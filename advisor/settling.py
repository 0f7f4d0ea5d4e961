"""An episode's requests with what is known of them since: one draw for all who roll them again.

How long they decode, what they found, how long their copies took and when the scheduler saw that
they were done. The engine is asked once a pass what its movers have done, some while before the
batch ends, and does not say when: from the pass that made use of a copy that is known within
bounds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import NamedTuple

import msgspec

from kvready.advisor.draws import BatchDraws, Ran
from kvready.advisor.episode_roll import Arrival, Decided, Side, Start
from kvready.advisor.jobs import UNBOUNDED, Job
from kvready.advisor.lookahead import load_is_ordered
from kvready.advisor.requests import Copy
from kvready.advisor.rollforward import BatchCost
from kvready.advisor.shared_loads import common_blocks
from kvready.advisor.tape import POLL_SECONDS, Tape, find_in_hbm
from kvready.collectors.records import OverlapMode, Tier

QUEUED_SECONDS = 2e-3  # a copy that starts so soon after another's end waited for that
IDLE_SECONDS = 1e-3  # between two batches; a busy engine plans sooner
SHORTEST_SECONDS = 1e-9  # of what was ordered and took no time

LoadSeconds = Callable[[int], float]


class Episode(NamedTuple):
    """All that is needed to run an episode again."""

    start: Start
    arrivals: list[Arrival]
    script: list[Decided]
    draws: BatchDraws
    counted: frozenset[str]

    def waits(self, side: Side, horizon_seconds: float) -> float:
        """Summed seconds to the first token, from arrival or the pass, up to the horizon."""
        came = {arrival.job.request_id: arrival.seconds for arrival in self.arrivals}
        return sum(
            min(side.first_token_seconds.get(name, horizon_seconds), horizon_seconds)
            - min(came.get(name, 0.0), horizon_seconds)
            for name in sorted(self.counted)
        )


def settled(tape: Tape, load_seconds: LoadSeconds, batch_seconds: BatchCost) -> Episode:
    """Where the engine does not park requests a batch's time has its loads in it: then batches and
    copies take what the models say, for both sides."""
    settling = _Settling(tape, load_seconds)
    jobs = settling.jobs()
    start = msgspec.structs.replace(
        tape.start,
        jobs=[jobs[job.request_id] for job in tape.start.jobs],
        link=msgspec.structs.replace(tape.start.link, busy_seconds=settling.busy_seconds),
    )
    start = tape.with_free_blocks(start)
    arrivals = [Arrival(seconds, jobs[name]) for name, seconds in tape.arrivals.items()]
    arrivals.sort(key=lambda arrival: arrival.seconds)
    script = [
        Decided(
            one.members,
            one.loads,
            ran.begin_seconds if settling.parks else None,
            one.free_blocks,
        )
        for one, ran in zip(tape.passes, settling.ran, strict=False)
    ]
    draws = BatchDraws(settling.ran if settling.parks else (), batch_seconds)
    return Episode(start, arrivals, script, draws, frozenset(tape.counted))


class _Start(NamedTuple):
    """Of a copy into HBM: when it could start once the mover was free, and what it took then."""

    late_seconds: float
    service_seconds: float


class _Settling:
    """One tape's."""

    def __init__(self, tape: Tape, load_seconds: LoadSeconds) -> None:
        self._tape = tape
        self._load_seconds = load_seconds
        self._block_tokens = tape.start.limits.block_tokens
        self.parks = tape.start.limits.overlap is OverlapMode.BEFORE_ADMISSION
        self.ran = _ran(tape)
        self._begins = [ran.begin_seconds for ran in self.ran]
        self._decodes = Counter(
            member.request_id
            for one in tape.passes
            for member in one.members
            if not member.is_prefill
        )
        self.busy_seconds = tape.start.link.busy_seconds
        self._starts: dict[int, _Start] = {}
        if self.parks:
            self._draw_loads()

    def jobs(self) -> dict[str, Job]:
        """By request, with what is known of them since."""
        jobs = {name: msgspec.structs.replace(job) for name, job in self._tape.jobs.items()}
        waiting = [job for job in jobs.values() if not job.running]
        for job in jobs.values():
            self._settle_output(job)
        for job in waiting:
            self._settle_found(job)
            self._settle_copies(job)
        for job in waiting:
            self._settle_shared(job, jobs)
        return jobs

    def _settle_output(self, job: Job) -> None:
        """How long it decodes; until it has ended nobody knows."""
        name = job.request_id
        if name not in self._tape.finished:
            job.output_left = UNBOUNDED
            return
        decodes = self._decodes[name]
        output_left = 1 + decodes if job.prefill_left > 0 else max(1, decodes)
        if self._tape.start.limits.reserves_output:
            whole = job.prompt_tokens + job.output_left
            unused = max(0, job.output_left - output_left)
            spared = self._blocks(whole) - self._blocks(whole - unused)
            if job.blocks_needed:
                job.blocks_needed = max(0, job.blocks_needed - spared)
            else:
                job.blocks_held = max(0, job.blocks_held - spared)
        job.output_left = output_left

    def _settle_found(self, job: Job) -> None:
        """What was found in HBM when it was let in, and what was loaded."""
        name, state = job.request_id, self._tape.states[job.request_id]
        loaded = next((c for c in state.copies if c.decided.destination is Tier.HBM), None)
        if loaded is not None and self._order_of(loaded) is not None:
            job.load_tokens = loaded.decided.tokens
            job.load_seconds = self._load_seconds(job.load_tokens)
        admitted = self._tape.admitted.get(name)
        if admitted is None or job.leader:
            return
        _, record = admitted
        job.context_tokens = job.promised_tokens = record.hbm_tokens + record.loaded_tokens
        if loaded is None and job.load_seconds > 0.0 and not state.waits_on:
            find_in_hbm(job, self._block_tokens)
        elif loaded is not None and record.loaded_tokens:
            in_hbm = record.hbm_tokens // self._block_tokens
            loaded_blocks = record.loaded_tokens // self._block_tokens
            job.load_hashes = state.arrived.block_hashes[in_hbm : in_hbm + loaded_blocks]
            if job.blocks_needed:
                job.blocks_needed = max(1, job.blocks_needed + job.hbm_blocks - in_hbm)
                job.hbm_blocks = in_hbm

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _settle_copies(self, job: Job) -> None:
        """What it waited for, and since when the scheduler knew that it is there."""
        if not self.parks:
            return
        state = self._tape.states[job.request_id]
        used = self._used(job.request_id)
        job.usable_after_seconds = job.fetch_seconds = 0.0
        awaited = [copy for _, copy in state.waits_on if self._order_of(copy) is None]
        for copy in (*state.copies, *awaited):
            if copy.is_backup:
                continue
            into_hbm = copy in state.copies and copy.decided.destination is Tier.HBM
            seen = self._seen_seconds(copy, used[into_hbm])
            ordered = self._order_of(copy)
            if ordered is None:
                job.usable_after_seconds = max(job.usable_after_seconds, seen)
            elif not into_hbm:
                begin = self._begins[ordered]
                job.fetch_seconds = max(job.fetch_seconds, seen - begin, SHORTEST_SECONDS)
            elif (start := self._starts.get(id(copy))) is not None:
                job.late_seconds, job.load_seconds = start
                job.unseen_seconds = seen - self._ready_seconds(copy)

    def _settle_shared(self, job: Job, jobs: Mapping[str, Job]) -> None:
        """It ordered no load, since another had: it waits for that one, and would pay for its own
        where it comes first."""
        state = self._tape.states[job.request_id]
        if not self.parks or load_is_ordered(state) or job.request_id not in self._tape.admitted:
            return
        for _, copy in state.waits_on:
            owner = jobs.get(copy.decided.request_id)
            if owner is None or not owner.load_hashes or self._order_of(copy) is None:
                continue
            chain, first = state.arrived.block_hashes, owner.load_hashes[0]
            begin = chain.index(first) if first in chain else len(chain)
            most = min(len(chain) - begin, len(owner.load_hashes))
            shared = common_blocks(chain[begin:], owner.load_hashes, 0, most)
            if shared:
                tokens = shared * self._block_tokens
                job.load_hashes = chain[begin : begin + shared]
                missing = max(0, tokens - job.load_tokens) // self._block_tokens
                job.blocks_needed += missing
                job.hbm_blocks = max(0, job.hbm_blocks - missing)
                job.load_tokens = tokens
                job.load_seconds = max(SHORTEST_SECONDS, self._load_seconds(tokens))
                return

    def _used(self, name: str) -> tuple[int | None, int | None]:
        """The passes that made use of what was fetched, and of what was loaded."""
        state = self._tape.states[name]
        admitted = self._tape.admitted.get(name)
        loaded = None if admitted is None else admitted[0]
        orders = [self._order_of(c) for c in state.copies if c.decided.destination is Tier.HBM]
        return next((one for one in orders if one is not None), loaded), loaded

    def _seen_seconds(self, copy: Copy, used: int | None) -> float:
        """When a pass would have seen that a copy is done, within what the passes tell."""
        ready = self._ready_seconds(copy)
        if used is None or used >= len(self._begins):
            return ready + POLL_SECONDS
        latest = self._begins[used]
        before = self.ran[used - 1] if used else None
        if before is not None:
            ended = before.begin_seconds + before.took_seconds
            if ended <= max(ready, latest - IDLE_SECONDS):
                return latest  # nothing ran: who is idle asks again and again
        earliest = ready
        first = bisect_right(self._begins, ready)  # the first pass that could
        if first == used - 1 and self._had_room(first) and self._is_next_after(ready, first):
            earliest = self._begins[first]
        usual = ready + POLL_SECONDS
        return usual if earliest < usual < latest else min(latest, (earliest + latest) / 2.0)

    def _is_next_after(self, ready: float, first: int) -> bool:
        """Whether no pass before this one could have seen it."""
        if first > 0:
            return True
        before = self._tape.before_seconds
        return before is not None and before <= ready

    def _had_room(self, number: int) -> bool:
        limits, members = self._tape.start.limits, self.ran[number].members
        tokens = sum(member.new_tokens for member in members)
        return tokens < (limits.batch_tokens or UNBOUNDED) and len(members) < (
            limits.batch_requests or UNBOUNDED
        )

    def _draw_loads(self) -> None:
        """First in, first out: what each took from when it could start."""
        loads = {
            id(copy): copy
            for state in self._tape.states.values()
            for copy in (*state.copies, *(one for _, one in state.waits_on))
            if copy.decided.destination is Tier.HBM and copy.ready_seconds is not None
        }
        free = float("-inf")
        link = self._tape.start.link
        for copy in sorted(loads.values(), key=lambda copy: copy.ready_seconds or 0.0):
            ready = self._ready_seconds(copy)
            ordered = self._order_of(copy)
            if ordered is None:
                free = max(free, ready)
                self.busy_seconds = max(0.0, free)
                continue
            ran = self.ran[ordered]
            submitted = ran.begin_seconds + link.submit_seconds + link.step_share * ran.took_seconds
            started = self._started_seconds(copy, max(submitted, free))
            if free >= submitted and started - free <= QUEUED_SECONDS:
                late, begun = 0.0, free
            else:
                late, begun = started - submitted, started
            self._starts[id(copy)] = _Start(late, max(SHORTEST_SECONDS, ready - begun))
            free = ready

    def _started_seconds(self, copy: Copy, otherwise: float) -> float:
        if copy.started_seconds is None:
            return otherwise
        return copy.started_seconds - self._tape.began_seconds

    def _ready_seconds(self, copy: Copy) -> float:
        """Of one that is not done by the episode's end: not before that."""
        if copy.ready_seconds is None:
            last = self.ran[-1]
            return last.begin_seconds + last.took_seconds
        return copy.ready_seconds - self._tape.began_seconds

    def _order_of(self, copy: Copy) -> int | None:
        """The pass that ordered it; None: it was ordered before the episode."""
        decided = copy.decided.decided_seconds - self._tape.began_seconds
        if decided < 0.0:
            return None
        planned = [one.planned_seconds for one in self._tape.passes[: len(self.ran)]]
        return bisect_right(planned, decided) - 1


def _ran(tape: Tape) -> list[Ran]:
    """The passes whose results are known, each with its own time of the engine.

    An engine that plans ahead begins a batch when the one before it has ended. What passes until a
    busy engine's next batch is its scheduler's, and part of the batch's time.
    """
    passes = list(takewhile(lambda one: one.ended_seconds is not None, tape.passes))
    ran: list[Ran] = []
    ended = tape.under_way_ended_seconds
    for number, one in enumerate(passes):
        begin = max(one.planned_seconds, ended)
        assert one.ended_seconds is not None
        ended = max(begin, one.ended_seconds)
        if number + 1 < len(passes) and one.step is not None:
            following = passes[number + 1]
            names = {member.request_id for member in one.members}
            if any(member.request_id in names for member in following.members):
                ended = max(ended, following.planned_seconds)
        ran.append(Ran(one.members, begin, ended - begin))
    return ran
