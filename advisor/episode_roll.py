"""Two ways to run the same requests from one state with one model: as a policy would, as it was.

Both take the same arrivals at the same moments and pay the same model's costs, so that what differs
between them is the order of decisions alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvready.advisor.draws import NO_DRAWS, BatchDraws, Moments
from kvready.advisor.jobs import Job, Limits, Link, UnderWay
from kvready.advisor.rollforward import BatchCost, finish_under_way
from kvready.advisor.scheduler_state import ROUNDING_SECONDS, Scan, SchedulerState
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
    begin_seconds: float | None = None  # None: as soon as what it needs is there
    free_blocks: int | None = None  # that it left


class Side(NamedTuple):
    """What came of it. Without a first token by the horizon a request is not in there."""

    first_token_seconds: dict[str, float]
    busy_seconds: float
    ended_seconds: float
    whole: bool  # all have their first token


# Blocks that were free beside those that a roll accounts for, by when; fewer, if negative. Copies
# out of HBM hold blocks, and an engine's count is finer than ours.
Lent = Moments[int]
NOTHING_LENT: Lent = Moments()


class EpisodeRoll:
    """Common to both."""

    def __init__(
        self,
        start: Start,
        arrivals: Sequence[Arrival],
        batch_seconds: BatchCost,
        scan: Scan | None = None,
        draws: BatchDraws = NO_DRAWS,
        lent: Lent = NOTHING_LENT,
    ) -> None:
        self.state = SchedulerState(start.jobs, None, start.limits, start.link, None, scan)
        self.now = finish_under_way(self.state, batch_seconds, start.under_way)
        if draws.begin_seconds is not None:
            self.now = draws.begin_seconds
        self._draws, self._lent = draws, lent
        self.busy_seconds = 0.0
        self.arrivals = deque(arrivals)
        self._batch_seconds = batch_seconds

    def let_in(self) -> None:
        """Those that have come by now wait."""
        while self.arrivals and self.arrivals[0].seconds <= self.now + ROUNDING_SECONDS:
            self.state.arrive(self.arrivals.popleft().job)

    def plan(self) -> list[BatchMember]:
        """What the roll's policy runs now."""
        self.state.blocks.lend(self._lent.at(self.now) or 0)
        return self.state.plan(self.now)

    def wait_for(self, decided: Decided, parks: bool) -> None:
        """Nobody is scheduled before it came, or with a copy that is not there yet."""
        needed = {*decided.loads, *(member.request_id for member in decided.members)}
        came = (one.seconds for one in self.arrivals if one.job.request_id in needed)
        self.now = max(self.now, *came, 0.0)
        self.let_in()
        if parks:
            self.now = max(self.now, self.state.usable_seconds(decided.members))

    def run(self, members: Sequence[BatchMember]) -> float:
        """One step; its seconds."""
        compute_seconds = 0.0
        if members:
            drawn = self._draws.factor(members, self.now)
            compute_seconds = self._batch_seconds(members) * drawn
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
    draws: BatchDraws = NO_DRAWS,
    lent: Lent = NOTHING_LENT,
) -> Side | None:
    """As a policy would have it, the engine's own without a scan; None: too much work."""
    roll = EpisodeRoll(start, arrivals, batch_seconds, scan, draws, lent)
    while roll.now < horizon_seconds and not roll.is_done:
        if roll.state.work > MAX_ROLL_WORK:
            return None
        roll.let_in()
        members = roll.plan()
        seconds = roll.run(members)
        coming = roll.arrivals[0].seconds if roll.arrivals else horizon_seconds
        if not members:
            ready = roll.state.next_ready(roll.now)
            if ready is None and not roll.arrivals:
                break
            roll.now = min(coming, ready) if ready is not None else coming
        elif roll.now >= draws.end_seconds and not any(m.is_prefill for m in members):
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
    draws: BatchDraws = NO_DRAWS,
) -> tuple[Side, Lent]:
    """As the engine did it: its batches and its loads; when, if told, else at the model's costs."""
    lent: Lent = Moments()
    roll = EpisodeRoll(start, arrivals, batch_seconds, None, draws)
    parks = start.limits.overlap is OverlapMode.BEFORE_ADMISSION
    for decided in script:
        if roll.now >= horizon_seconds or roll.is_done:
            break
        if decided.begin_seconds is not None:
            roll.now = decided.begin_seconds
            roll.let_in()
        else:
            roll.wait_for(decided, parks)
        roll.state.follow(decided.members, decided.loads)
        if decided.free_blocks is not None:
            counted = roll.state.blocks.own + roll.state.promised_blocks
            lent.add(roll.now, decided.free_blocks - counted)
        roll.run(decided.members)
    return roll.side, lent
