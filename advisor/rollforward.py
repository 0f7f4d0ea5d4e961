"""When will this request's first token come? The engine's own policy, rolled forward.

First come, first served, as vLLM schedules: each step gives running requests their next tokens,
then admits waiting ones in order while tokens, seats and blocks last; a request that still loads
is passed over until its copy is ready. Steps cost what the compute model says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kvready.collectors.records import BatchMember

MAX_STEPS = 2_000
# A prefill in the future is assumed to decode this long if the request names no limit.
ASSUMED_OUTPUT_TOKENS = 128
UNBOUNDED = 1 << 30

BatchCost = Callable[[Sequence[BatchMember]], float]


class Limits(msgspec.Struct, frozen=True):
    """An engine's bounds on a batch; zero where unknown, which then does not bind."""

    batch_tokens: int
    batch_requests: int
    block_tokens: int
    free_blocks: int


class Job(msgspec.Struct):
    """A request as the roll-forward moves it."""

    request_id: str
    prompt_tokens: int
    context_tokens: int  # computed, found or being loaded
    output_left: int
    usable_after_seconds: float  # its copies are ready then, counted from now
    running: bool
    blocks_needed: int  # new blocks that its admission takes
    blocks_held: int

    @property
    def prefill_left(self) -> int:
        """Prompt tokens still to compute."""
        return max(0, self.prompt_tokens - self.context_tokens)


def first_token_seconds(
    jobs: Sequence[Job], subject: str, limits: Limits, batch_seconds: BatchCost
) -> float | None:
    """Seconds from now until `subject` has its first token; None if not within MAX_STEPS."""
    rolling = _Rolling(jobs, limits)
    now = 0.0
    for _ in range(MAX_STEPS):
        members = rolling.plan(now)
        if not members:
            pending = [j.usable_after_seconds for j in rolling.waiting]
            later = [seconds for seconds in pending if seconds > now]
            if not later:
                return None
            now = min(later)
            continue
        now += batch_seconds(members)
        if rolling.advance(members, subject):
            return now
    return None


class _Rolling:
    """Two queues in the engine's order, moved a step at a time."""

    def __init__(self, jobs: Sequence[Job], limits: Limits) -> None:
        copies = [msgspec.structs.replace(job) for job in jobs]
        self.running = [job for job in copies if job.running]
        self.waiting = [job for job in copies if not job.running]
        self._limits = limits
        self._free_blocks = limits.free_blocks

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
            if self._limits.free_blocks and job.blocks_needed > self._free_blocks:
                break  # nobody overtakes the head of the queue
            self._admit(job)
            member = _share(job, tokens_left)
            members.append(member)
            tokens_left -= member.new_tokens
        return members

    def advance(self, members: Sequence[BatchMember], subject: str) -> bool:
        """Apply a step; True when it gave `subject` its first token."""
        reached = False
        for member, job in zip(members, self.running, strict=False):
            job.context_tokens += member.new_tokens
            if job.prefill_left > 0:
                continue
            reached = reached or job.request_id == subject
            job.output_left -= 1
            if job.output_left <= 0:
                self._free_blocks += job.blocks_held
        self.running = [j for j in self.running if j.output_left > 0 or j.prefill_left > 0]
        return reached

    def _admit(self, job: Job) -> None:
        self.waiting.remove(job)
        self._free_blocks -= job.blocks_needed
        job.blocks_held += job.blocks_needed
        self.running.append(job)


def _share(job: Job, tokens_left: int) -> BatchMember:
    prefill = job.prefill_left > 0
    new = min(job.prefill_left, tokens_left) if prefill else 1
    return BatchMember(job.request_id, new, job.context_tokens, prefill)
