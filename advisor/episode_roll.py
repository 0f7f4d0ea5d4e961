"""Two ways to run the same requests from one state with one model: as a policy would, as it was.

Both take the same arrivals at the same moments and pay the same model's costs, so that what differs
between them is the order of decisions alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvready.advisor.jobs import Job, Limits, Link, UnderWay
from kvready.advisor.rollforward import BatchCost, finish_under_way
from kvready.advisor.scheduler_state import Scan, SchedulerState
from kvready.collectors.records import BatchMember, OverlapMode

MAX_ROLL_WORK = 60_000  # looks at a request, of one side: about 40 ms


class Start(msgspec.Struct, frozen=True):
    """The state that both sides start from; seconds count from it."""

    jobs: Sequence[Job]
    limits: Limits
    under_way: UnderWay
    link: Link


class Arrival(NamedTuple):
    """A request that came later."""

    seconds: float
    job: Job


class Decided(NamedTuple):
    """One pass of the scheduler as it was: the batch, and the loads that it ordered."""

    members: Sequence[BatchMember]
    loads: list[str]


class Side(NamedTuple):
    """What came of it. Without a first token by the horizon a request is not in there."""

    first_token_seconds: dict[str, float]
    busy_seconds: float
    ended_seconds: float
    whole: bool  # all have their first token


class EpisodeRoll:
    """Common to both."""

    def __init__(
        self,
        start: Start,
        arrivals: Sequence[Arrival],
        batch_seconds: BatchCost,
        scan: Scan | None = None,
    ) -> None:
        self.state = SchedulerState(start.jobs, None, start.limits, start.link, None, scan)
        self.now = finish_under_way(self.state, batch_seconds, start.under_way)
        self.busy_seconds = 0.0
        self.arrivals = deque(arrivals)
        self._batch_seconds = batch_seconds

    def let_in(self) -> None:
        """Those that have come by now wait."""
        while self.arrivals and self.arrivals[0].seconds <= self.now:
            self.state.arrive(self.arrivals.popleft().job)

    def run(self, members: Sequence[BatchMember]) -> float:
        """One step; its seconds."""
        compute_seconds = self._batch_seconds(members) if members else 0.0
        seconds = self.state.step_seconds(self.now, compute_seconds)
        if members:
            self.now += seconds
            self.busy_seconds += seconds
            self.state.advance(members, self.now)
        return seconds

    @property
    def is_done(self) -> bool:
        """Whether all have come and have their first token."""
        return not self.arrivals and self.state.is_done

    @property
    def side(self) -> Side:
        """What came of it."""
        return Side(self.state.first_tokens, self.busy_seconds, self.now, self.is_done)


def as_policy(
    start: Start,
    arrivals: Sequence[Arrival],
    batch_seconds: BatchCost,
    horizon_seconds: float,
    scan: Scan | None,
) -> Side | None:
    """As a policy would have it, the engine's own without a scan; None: too much work."""
    roll = EpisodeRoll(start, arrivals, batch_seconds, scan)
    while roll.now < horizon_seconds and not roll.is_done:
        if roll.state.work > MAX_ROLL_WORK:
            return None
        roll.let_in()
        members = roll.state.plan(roll.now)
        seconds = roll.run(members)
        coming = roll.arrivals[0].seconds if roll.arrivals else horizon_seconds
        if not members:
            ready = roll.state.next_ready(roll.now)
            if ready is None and not roll.arrivals:
                break
            roll.now = min(coming, ready) if ready is not None else coming
        elif not any(member.is_prefill for member in members):
            skipped = roll.state.skip_decodes(roll.now, seconds, coming) * seconds
            roll.now += skipped
            roll.busy_seconds += skipped
    return roll.side


def as_it_was(
    start: Start,
    arrivals: Sequence[Arrival],
    batch_seconds: BatchCost,
    horizon_seconds: float,
    script: Sequence[Decided],
) -> Side:
    """As the engine did it: its batches and its loads, at the model's costs."""
    roll = EpisodeRoll(start, arrivals, batch_seconds)
    parks = start.limits.overlap is OverlapMode.BEFORE_ADMISSION
    for decided in script:
        if roll.now >= horizon_seconds or roll.is_done:
            break
        needed = {*decided.loads, *(member.request_id for member in decided.members)}
        # Nobody is scheduled before it came, or with a copy that is not there yet.
        came = (one.seconds for one in roll.arrivals if one.job.request_id in needed)
        roll.now = max(roll.now, *came, 0.0)
        roll.let_in()
        if parks:
            roll.now = max(roll.now, roll.state.usable_seconds(decided.members))
        roll.state.follow(decided.members, decided.loads)
        roll.run(decided.members)
    return roll.side
