"""When will this request's first token come? The engine's own policy, rolled forward.

First come, first served, as vLLM schedules: each step gives running requests their next tokens,
then admits waiting ones in order while tokens, seats and blocks last. A request whose prefix must
be loaded first has its load ordered when the scan reaches it, and is passed over until it is ready.
Steps cost what the compute model says, loads what the load model says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from kvready.collectors.records import BatchMember

MAX_STEPS = 2_000
MAX_WORK = 100_000  # requests times steps: beyond it, the forecast would cost more than it tells
# A prefill in the future is assumed to decode this long if the request names no limit.
ASSUMED_OUTPUT_TOKENS = 128
UNBOUNDED = 1 << 30

BatchCost = Callable[[Sequence[BatchMember]], float]


class Limits(msgspec.Struct, frozen=True):
    """An engine's bounds on a batch; zero, or None, where unknown, which then does not bind."""

    batch_tokens: int
    batch_requests: int
    free_blocks: int | None


class Link(msgspec.Struct, frozen=True):
    """The mover as it stands: first in, first out, started some share of a step after the order."""

    busy_seconds: float = 0.0  # from now, with what it has already
    submit_seconds: float = 0.0
    step_share: float = 0.0


class Job(msgspec.Struct):
    """A request as the roll-forward moves it."""

    request_id: str
    prompt_tokens: int
    context_tokens: int  # computed, found or being loaded
    output_left: int
    load_seconds: float  # of the copy that is to be ordered yet; 0: none
    usable_after_seconds: float  # its ordered copies are ready then, counted from now
    running: bool
    blocks_needed: int  # new blocks that its admission takes
    blocks_held: int

    @property
    def prefill_left(self) -> int:
        """Prompt tokens still to compute."""
        return max(0, self.prompt_tokens - self.context_tokens)


class UnderWay(msgspec.Struct, frozen=True):
    """Batches that were planned and have not ended, oldest first; jobs are as before them."""

    batches: Sequence[Sequence[BatchMember]] = ()
    elapsed_seconds: float = 0.0  # since the oldest was planned


NOTHING_UNDER_WAY = UnderWay()
IDLE_LINK = Link()


def first_token_seconds(
    jobs: Sequence[Job],
    subject: str,
    limits: Limits,
    batch_seconds: BatchCost,
    under_way: UnderWay = NOTHING_UNDER_WAY,
    link: Link = IDLE_LINK,
) -> float | None:
    """Seconds from now until `subject` has its first token; None if that is too far to tell."""
    rolling = _Rolling(jobs, limits, link)
    now = -under_way.elapsed_seconds
    for members in under_way.batches:
        now += batch_seconds(members)
        rolling.admit_members(members)
        if rolling.advance(members, subject):
            return max(0.0, now)
    now = max(0.0, now)
    work = 0
    for _ in range(MAX_STEPS):
        members = rolling.plan(now)
        work += len(members) + 1
        if work > MAX_WORK:
            return None
        step_seconds = batch_seconds(members) if members else 0.0
        rolling.order_loads(now, step_seconds)
        if not members:
            ready = rolling.next_ready(now)
            if ready is None:
                return None
            now = ready
            continue
        now += step_seconds
        if rolling.advance(members, subject):
            return now
        if not any(member.is_prefill for member in members):
            now += rolling.skip_decodes(now, step_seconds) * step_seconds
    return None


class _Rolling:
    """Two queues in the engine's order, moved a step at a time."""

    def __init__(self, jobs: Sequence[Job], limits: Limits, link: Link) -> None:
        copies = [msgspec.structs.replace(job) for job in jobs]
        self.running = [job for job in copies if job.running]
        self.waiting = [job for job in copies if not job.running]
        self._limits = limits
        self._link = link
        self._link_free_seconds = link.busy_seconds
        self._free_blocks = UNBOUNDED if limits.free_blocks is None else limits.free_blocks
        self._to_load: list[Job] = []

    def plan(self, now: float) -> list[BatchMember]:
        """The next batch: running requests first, then waiting ones in order."""
        tokens_left = self._limits.batch_tokens or UNBOUNDED
        members: list[BatchMember] = []
        for job in self.running:
            if tokens_left <= 0:
                return members
            member = _share(job, tokens_left)
            members.append(member)
            tokens_left -= member.new_tokens
        seats = self._limits.batch_requests or UNBOUNDED
        for job in list(self.waiting):
            if tokens_left <= 0 or len(self.running) >= seats:
                break
            if job.usable_after_seconds > now:
                continue
            if job.blocks_needed > self._free_blocks:
                break  # nobody overtakes the head of the queue
            self._take_blocks(job)
            if job.load_seconds > 0.0:
                job.usable_after_seconds = math.inf
                self._to_load.append(job)
                continue
            self._admit(job)
            member = _share(job, tokens_left)
            members.append(member)
            tokens_left -= member.new_tokens
        return members

    def order_loads(self, now: float, step_seconds: float) -> None:
        """Give the loads that the last plan ordered to the mover."""
        submitted = now + self._link.submit_seconds + self._link.step_share * step_seconds
        for job in self._to_load:
            started = max(submitted, self._link_free_seconds)
            self._link_free_seconds = job.usable_after_seconds = started + job.load_seconds
            job.load_seconds = 0.0
        self._to_load.clear()

    def next_ready(self, now: float) -> float | None:
        """When the next load is ready; None if nothing is loading."""
        later = [j.usable_after_seconds for j in self.waiting if j.usable_after_seconds > now]
        return min(later, default=None)

    def advance(self, members: Sequence[BatchMember], subject: str) -> bool:
        """Apply a step; True when it gave `subject` its first token."""
        new_tokens = {member.request_id: member.new_tokens for member in members}
        reached = False
        for job in self.running:
            new = new_tokens.get(job.request_id)
            if new is None:
                continue
            job.context_tokens += new
            if job.prefill_left > 0:
                continue
            reached = reached or job.request_id == subject
            job.output_left -= 1
            if job.output_left <= 0:
                self._free_blocks += job.blocks_held
        self.running = [j for j in self.running if j.output_left > 0 or j.prefill_left > 0]
        return reached

    def skip_decodes(self, now: float, step_seconds: float) -> int:
        """Advance by the steps, all like the last, in which nothing can change; their number.

        Until a running request ends or a load is ready, a step of decodes is followed by its like.
        """
        steps = min((job.output_left for job in self.running), default=1) - 1
        ready = self.next_ready(now)
        if ready is not None and step_seconds > 0.0:
            steps = min(steps, int((ready - now) / step_seconds))
        if steps <= 0 or any(job.prefill_left > 0 for job in self.running):
            return 0
        if any(self._could_admit(job, now) for job in self.waiting):
            return 0
        for job in self.running:
            job.context_tokens += steps
            job.output_left -= steps
        return steps

    def _could_admit(self, job: Job, now: float) -> bool:
        seats = self._limits.batch_requests or UNBOUNDED
        return (
            job.usable_after_seconds <= now
            and len(self.running) < seats
            and job.blocks_needed <= self._free_blocks
        )

    def admit_members(self, members: Sequence[BatchMember]) -> None:
        """Those that a batch already holds are no longer waiting."""
        holds = {member.request_id for member in members}
        for job in [job for job in self.waiting if job.request_id in holds]:
            self._take_blocks(job)
            self._admit(job)

    def _take_blocks(self, job: Job) -> None:
        self._free_blocks -= job.blocks_needed
        job.blocks_held += job.blocks_needed
        job.blocks_needed = 0

    def _admit(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)


def _share(job: Job, tokens_left: int) -> BatchMember:
    prefill = job.prefill_left > 0
    new = min(job.prefill_left, tokens_left) if prefill else 1
    return BatchMember(job.request_id, new, job.context_tokens, prefill)
