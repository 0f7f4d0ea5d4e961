"""Strata's policies as what a rolled scheduler scans: whom to try to admit, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from kvready.advisor.jobs import Job, Limits, Room
from kvready.advisor.load_start_order import load_start_order
from kvready.advisor.scheduler_state import ROUNDING_SECONDS, SchedulerState
from kvready.advisor.strata import BatchLimits, Settings, Waiting, defer_delay_hits, intended_batch
from kvready.collectors.records import OverlapMode


class StrataScan:
    """One roll's policy: it remembers since when it has held whom."""

    def __init__(self, settings: Settings, limits: Limits) -> None:
        self._settings = settings
        self._limits = limits
        self._parks = limits.overlap is OverlapMode.BEFORE_ADMISSION
        self._held_since: dict[str, float] = {}

    def __call__(self, state: SchedulerState, room: Room, now: float) -> Sequence[Job]:
        """Those to try, in order."""
        jobs = {
            job.request_id: job
            for job in state.waiting
            if not self._parks or job.usable_after_seconds <= now + ROUNDING_SECONDS
        }
        queue = [self._waiting(state, job, now) for job in jobs.values()]
        limits = BatchLimits(
            batch_tokens=room.tokens,
            batch_requests=room.requests,
            free_blocks=room.free_blocks,
            request_tokens=self._limits.request_tokens or None,
            block_tokens=self._limits.block_tokens,
        )
        if self._parks:
            candidates, deferred = defer_delay_hits(queue, self._settings)
            names = [one.request_id for one in load_start_order(candidates, limits, self._settings)]
            held = [waiting.request_id for waiting in deferred]
        else:
            plan = intended_batch(queue, limits, self._settings)
            names = [admission.request_id for admission in plan.admitted]
            held = [*plan.deferred, *plan.deprioritised]
        for name in held:
            self._held_since.setdefault(name, now)
        return [jobs[name] for name in names]

    def _waiting(self, state: SchedulerState, job: Job, now: float) -> Waiting:
        found = max(job.context_tokens, state.found_tokens(job))
        brought_by_others = job.promised_tokens - found if state.is_led(job) else 0
        return Waiting(
            job.request_id,
            max(1, job.prompt_tokens - found),
            load_tokens=job.load_tokens if job.load_seconds > 0.0 else 0,
            load_hashes=job.load_hashes if job.load_seconds > 0.0 else (),
            awaited_tokens=max(0, brought_by_others),
            leader=job.leader,
            held_seconds=now - self._held_since.get(job.request_id, now),
            context_tokens=found,
            blocks_needed=state.blocks_to_take(job),
        )
