"""An engine's scheduler as it is rolled forward: its requests, what a batch takes, and the mover.

First come, first served, as vLLM schedules, unless a `Scan` chooses whom to try in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from kvready.advisor.block_account import BlockAccount
from kvready.advisor.jobs import UNBOUNDED, Job, Limits, Link, Mark, Progress, Rolled, Room
from kvready.advisor.overlap import usable_batch_seconds
from kvready.advisor.shared_loads import common_blocks
from kvready.collectors.records import BatchMember, OverlapMode

ROUNDING_SECONDS = 1e-9  # sums of seconds in another order differ by less
_HOLDS_NOTHING = attrgetter("holds_nothing")

# Another policy than the engine's: whom to try to admit, in which order, at this moment.
Scan = Callable[["SchedulerState", Room, float], Sequence[Job]]


class SchedulerState:
    """The scheduler's state as it is rolled forward."""

    def __init__(
        self,
        jobs: Sequence[Job],
        subject: str | None,  # None: all of them
        limits: Limits,
        link: Link,
        mark: Mark | None,
        scan: Scan | None = None,  # None: the engine's own
    ) -> None:
        self._scan = scan
        self.first_tokens: dict[str, float] = {}
        self.progress = Progress() if subject is None else None
        self.work = 0  # looks at a request
        copies = [msgspec.structs.replace(job) for job in jobs]
        self.running = [job for job in copies if job.running]
        self.waiting = [job for job in copies if not job.running]
        self._loading = 0  # of these, the first so many have blocks: their loads are ordered
        self._by_id = {job.request_id: job for job in copies}
        self._subject = self._by_id[subject] if subject is not None else None
        self._marked = self._by_id.get(mark.request_id) if mark is not None else None
        self._mark_tokens = mark.tokens if mark is not None else 0
        running = self._subject is not None and self._subject.running
        self._scheduled_seconds = 0.0 if running else None
        self._mark_seconds: float | None = None
        if self._marked is not None and self._marked.running:
            computed = self._marked.context_tokens >= self._mark_tokens
            self._mark_seconds = 0.0 if computed else None
        self._limits = limits
        self._parks = limits.overlap is OverlapMode.BEFORE_ADMISSION
        self._link = link
        self._link_free_seconds = link.busy_seconds
        self.blocks = BlockAccount(limits, copies)
        self._to_load: list[Job] = []
        self._copying = [job for job in self.waiting if job.usable_after_seconds > 0.0]
        # Whose copy brings the blocks that begin with this one: others wait for it, as vLLM's do.
        self._owners = {
            job.load_hashes[0]: job
            for job in self.waiting
            if job.load_hashes and job.load_seconds <= 0.0
        }
        self.prefilled_tokens = 0  # in steps that were planned here
        self._horizon_seconds = math.inf
        self._shares: dict[str, int] = {}  # tokens that the step at hand computes, by request
        self._put_loading_first()
        self.blocks.free -= self.promised_blocks

    @property
    def rolled(self) -> Rolled:
        """What is known so far."""
        first_token = self.first_tokens.get(self._subject.request_id) if self._subject else None
        seconds = self._scheduled_seconds, first_token, self._mark_seconds
        return Rolled(*seconds, self._horizon_seconds)

    def plan(self, now: float) -> list[BatchMember]:
        """The next batch: running requests first, then waiting ones in order."""
        tokens_left = self._limits.batch_tokens or UNBOUNDED
        members: list[BatchMember] = []
        self._shares.clear()
        self.work += 1
        for job in self.running:
            if tokens_left <= 0:
                return members
            tokens_left -= self._join(job, tokens_left, members)
        seats = self._limits.batch_requests or UNBOUNDED
        waiting, place = self.waiting, 0
        if self._scan is not None:
            room = Room(tokens_left, seats - len(self.running), self.blocks.free)
            waiting = sorted(self._scan(self, room, now), key=_HOLDS_NOTHING)
        promised = self.promised_blocks if waiting else 0
        while place < len(waiting) and tokens_left > 0 and len(self.running) < seats:
            job = waiting[place]
            self.work += 1
            if self._parks and self._must_wait(job, now):
                place += 1
                continue
            taken = self.blocks_to_take(job)
            if not self.blocks.fits(job, taken, promised):
                break  # nobody overtakes the head of the queue
            self.blocks.take(job, taken)
            if job.load_seconds > 0.0:
                promised += self.blocks.to_compute(job)
                self._order(job)
                if self._parks:
                    job.usable_after_seconds = math.inf
                    self._copying.append(job)
                    if self._scan is None:
                        waiting.insert(self._loading, waiting.pop(place))
                        self._loading += 1
                    place += 1
                    continue
            elif place < self._loading:
                self._loading -= 1
            del waiting[place]
            self._admit(job, now)
            tokens_left -= self._join(job, tokens_left, members)
        if self._scan is not None:
            self.waiting = [job for job in self.waiting if not job.running]
            self._put_loading_first()
        return members

    def _put_loading_first(self) -> None:
        """An engine that parks requests asks those first whose loads it has ordered."""
        if not self._parks:
            return
        self.waiting.sort(key=_HOLDS_NOTHING)
        self._loading = sum(not job.holds_nothing for job in self.waiting)

    def _order(self, job: Job) -> None:
        job.load_is_ordered = True
        self._to_load.append(job)
        if job.load_hashes:
            self._owners[job.load_hashes[0]] = job

    def _must_wait(self, job: Job, now: float) -> bool:
        """Whether a copy is in its way; a fetch that it needs is ordered as the scan comes by."""
        if job.usable_after_seconds > now + ROUNDING_SECONDS:
            return True
        if job.load_seconds > 0.0 and self._waits_for_another(job, now):
            return True
        if job.fetch_seconds <= 0.0:
            return False
        job.usable_after_seconds = now + job.fetch_seconds
        job.fetch_seconds = 0.0
        self._copying.append(job)
        if job.load_hashes:
            self._owners.setdefault(job.load_hashes[0], job)
        return True

    def _waits_for_another(self, job: Job, now: float) -> bool:
        """Whether another's copy brings some of its load yet; once that is there it is found."""
        hashes = job.load_hashes
        owner = self._owners.get(hashes[0]) if hashes else None
        if owner is None or owner is job:
            return False
        if owner.usable_after_seconds > now + ROUNDING_SECONDS:
            return True
        if owner.load_seconds > 0.0 or owner.output_left <= 0:
            return False  # it orders its load behind this one; or it ended, and nobody holds them
        length = len(hashes)
        end = min(length, len(owner.load_hashes))
        shared = common_blocks(owner.load_hashes, hashes, 1, end)
        job.load_seconds *= (length - shared) / length
        job.load_tokens -= job.load_tokens * shared // length
        job.load_hashes = hashes[shared:]
        job.hbm_blocks += min(job.blocks_needed, shared)
        job.blocks_needed = max(0, job.blocks_needed - shared)
        return False

    def step_seconds(self, now: float, compute_seconds: float) -> float:
        """Give the loads of the step to the mover; how long the step takes, with its loads."""
        ordered, link = self._to_load, self._link
        share = link.step_share if self._parks else 0.0
        submitted = now + link.submit_seconds + share * compute_seconds
        ended, begun = self._link_free_seconds, max(submitted, self._link_free_seconds)
        for job in ordered:
            ended = max(ended, submitted + job.late_seconds) + job.load_seconds
            job.usable_after_seconds = ended + job.unseen_seconds
            job.load_seconds = 0.0
        if ordered:
            self._link_free_seconds = ended
        seconds = compute_seconds
        if not self._parks:
            if ordered:
                seconds = begun - now + self._overlapped(ended - begun, compute_seconds)
            earlier = self._latest_copy(now) - now
            if earlier > 0.0:
                seconds = max(seconds, self._overlapped(earlier, compute_seconds))
        ordered.clear()
        return seconds

    def _overlapped(self, load_seconds: float, compute_seconds: float) -> float:
        mode, layers = self._limits.overlap, self._limits.layers
        return usable_batch_seconds(mode, layers, load_seconds, compute_seconds)

    def _latest_copy(self, now: float) -> float:
        """When the last copy that the step's members need, ordered before it, is usable."""
        members = [self._by_id[name] for name in self._shares if name in self._by_id]
        ordered = {job.request_id for job in self._to_load}
        earlier = (j.usable_after_seconds for j in members if j.request_id not in ordered)
        return max(earlier, default=now)

    def next_ready(self, now: float) -> float | None:
        """When the next load is ready; None if nothing is loading."""
        self.work += len(self._copying)
        self._copying = [
            job for job in self._copying if job.usable_after_seconds > now and not job.running
        ]
        return min((job.usable_after_seconds for job in self._copying), default=None)

    def advance(self, members: Sequence[BatchMember], now: float) -> bool:
        """Apply a step that ends now; True when all that is asked for is known."""
        has_ended = False
        for member in members:
            job = self._by_id.get(member.request_id)
            if job is None or not job.running:
                continue
            job.context_tokens += member.new_tokens
            self.blocks.grow(job, member.new_tokens)
            if self.progress is not None and job.request_id not in self.first_tokens:
                self.progress.step(job.request_id, job.context_tokens, now)
            if job is self._marked and self._mark_seconds is None:
                self._mark_seconds = now if job.context_tokens >= self._mark_tokens else None
            if job.context_tokens < job.prompt_tokens:
                continue
            self.first_tokens.setdefault(job.request_id, now)
            job.output_left -= 1
            if job.output_left <= 0:
                self.blocks.give_back(job)
                job.running = False
                has_ended = True
        if has_ended:
            self.running = [job for job in self.running if job.running]
        return self.is_done

    @property
    def is_done(self) -> bool:
        """Whether all that is asked for is known."""
        if self._subject is None:
            return len(self.first_tokens) == len(self._by_id)
        is_marked = self._marked is None or self._mark_seconds is not None
        return is_marked and self._subject.request_id in self.first_tokens

    def extrapolate(self, now: float, token_seconds: float) -> None:
        """What is not known yet: in order, so many seconds for a token of a prompt."""
        self._horizon_seconds = now
        ahead = 1  # not known by now: later than now
        if self.progress is not None:
            self.progress.end(now, token_seconds)
        for job in (*self.running, *self.waiting):
            found = max(job.context_tokens, job.promised_tokens)
            if self.progress is not None:
                self.progress.left(job.request_id, found, ahead)
            if job is self._marked and self._mark_seconds is None:
                before_mark = max(0, self._mark_tokens - found)
                self._mark_seconds = now + (ahead + before_mark) * token_seconds
            if job is self._subject and self._scheduled_seconds is None:
                self._scheduled_seconds = now + ahead * token_seconds
            ahead += max(0, job.prompt_tokens - found)
            if job.request_id not in self.first_tokens:
                self.first_tokens[job.request_id] = now + ahead * token_seconds
            if job is self._subject and self._marked is None:
                return

    def arrive(self, job: Job) -> None:
        """One more waits."""
        job = msgspec.structs.replace(job)
        self._by_id[job.request_id] = job
        self.waiting.append(job)
        if job.usable_after_seconds > 0.0:
            self._copying.append(job)

    def follow(self, members: Sequence[BatchMember], loads: Sequence[str]) -> None:
        """Take a batch, and the loads ordered with it, as another scheduler chose them."""
        for name in loads:
            job = self._by_id.get(name)
            if job is not None and job.load_seconds > 0.0 and not job.running:
                self.blocks.take(job, self.blocks_to_take(job))
                self._order(job)
        self.admit_members(members)

    @property
    def promised_blocks(self) -> int:
        """Blocks that are taken here and that the engine has not taken yet."""
        return self.blocks.promised(self.running, self.waiting[: self._loading], self._shares)

    @property
    def loads_ordered(self) -> list[Job]:
        """By the plan at hand, not given to the mover yet."""
        return list(self._to_load)

    def usable_seconds(self, members: Sequence[BatchMember]) -> float:
        """When the copies of these are ready that were ordered in steps before; 0 if they are."""
        jobs = [self._by_id[member.request_id] for member in members if member.request_id in self]
        return max((job.usable_after_seconds for job in jobs), default=0.0)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def skip_decodes(self, now: float, step_seconds: float, until_seconds: float = math.inf) -> int:
        """Advance by the steps, all like the last, in which nothing can change; their number.

        Until a running request ends or a load is ready, a step of decodes is followed by its like.
        """
        self.work += len(self.running)
        steps = min((job.output_left for job in self.running), default=1) - 1
        ready = self.next_ready(now)
        change = until_seconds if ready is None else min(ready, until_seconds)
        if change < math.inf and step_seconds > 0.0:
            steps = min(steps, int((change - now) / step_seconds))
        if steps <= 0 or any(job.prefill_left > 0 for job in self.running):
            return 0
        if self._could_admit(now):
            return 0
        for job in self.running:
            job.context_tokens += steps
            self.blocks.grow(job, steps)
            job.output_left -= steps
        return steps

    def _could_admit(self, now: float) -> bool:
        seats = self._limits.batch_requests or UNBOUNDED
        if len(self.running) >= seats:
            return False
        promised = self.promised_blocks if self.waiting else 0
        for job in self.waiting:
            self.work += 1
            taken = self.blocks_to_take(job)
            fits = self.blocks.fits(job, taken, promised)
            if fits and (job.usable_after_seconds <= now or not self._parks):
                return True
        return False

    def admit_members(self, members: Sequence[BatchMember]) -> None:
        """Those that a batch already holds are no longer waiting."""
        self._shares = {member.request_id: member.new_tokens for member in members}
        found = {member.request_id: member.context_tokens for member in members}
        self.work += len(self.waiting)
        admitted = [job for job in self.waiting if job.request_id in found]
        self.waiting = [job for job in self.waiting if job.request_id not in found]
        self._put_loading_first()
        for job in admitted:
            if self._parks and job.load_seconds > 0.0:
                self._waits_for_another(job, math.inf)  # not any more: what that brought is found
            self.blocks.take(job, self.blocks_to_take(job))
            self._admit(job, 0.0)
            job.context_tokens = found[job.request_id]

    def blocks_to_take(self, job: Job) -> int:
        """Of the free ones, by its admission: but what its leader has computed and still holds."""
        leader = self._by_id.get(job.leader)
        brought = 0
        if leader is not None and leader.running:
            brought = max(0, self.found_tokens(job) - job.context_tokens)
        return self.blocks.taken(job, brought)

    def _admit(self, job: Job, now: float) -> None:
        job.running = True
        self.running.append(job)
        job.context_tokens = max(job.context_tokens, self.found_tokens(job))
        if job is self._subject and self._scheduled_seconds is None:
            self._scheduled_seconds = max(0.0, now)

    def is_led(self, job: Job) -> bool:
        """Whether a request that brings its prefix is still to compute."""
        leader = self._by_id.get(job.leader)
        return leader is not None and leader.prefill_left > 0

    def found_tokens(self, job: Job) -> int:
        """What its leader has brought, in whole blocks; what this step brings can be found too."""
        leader = self._by_id.get(job.leader)
        if leader is None:
            return job.promised_tokens
        if not self._limits.finds_unfinished:
            return job.context_tokens if leader.prefill_left > 0 else job.promised_tokens
        brought = leader.context_tokens + self._shares.get(job.leader, 0)
        return min(job.promised_tokens, brought - brought % self._limits.block_tokens)

    def _join(self, job: Job, tokens_left: int, members: list[BatchMember]) -> int:
        """Give a request its share of a step; returns the tokens."""
        self.work += 1
        left = job.prompt_tokens - job.context_tokens
        if left > 0:
            alone = len(self.running) + len(self.waiting) == 1  # then there is nobody to spare
            most = self._limits.request_tokens or UNBOUNDED
            new = min(left, tokens_left if alone else min(tokens_left, most))
            self.prefilled_tokens += new
        else:
            new = 1
        members.append(BatchMember(job.request_id, new, job.context_tokens, left > 0))
        self._shares[job.request_id] = new
        return new
