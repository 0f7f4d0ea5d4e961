"""When will this request run, and its first token come? The engine's own policy, rolled forward.

First come, first served, as vLLM schedules: each step gives running requests their next tokens,
then admits waiting ones in order while tokens, seats and blocks last. A request whose prefix must
be loaded first has its load ordered when the scan reaches it: in overlap mode `before_admission` it
is passed over until the load is ready, in the others its batch takes as long as `overlap` says. One
whose prefix another request is computing finds what that one has computed by then.
Steps cost what the compute model says, loads what the load model says.
Only so much is rolled as its work allows; what lies beyond comes on as fast as what was rolled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvready.advisor.jobs import Job, Limits, Link, Mark, Progress, Rolled, UnderWay
from kvready.advisor.scheduler_state import SchedulerState
from kvready.collectors.records import BatchMember

MAX_WORK = 1_000  # looks at a request that computes, waits or loads; about 0.7 us each
# A prefill in the future is assumed to decode this long if the request names no limit.
ASSUMED_OUTPUT_TOKENS = 128

BatchCost = Callable[[Sequence[BatchMember]], float]


class FirstTokens(NamedTuple):
    """Of all requests that can be told, seconds from now, and how far each is until then."""

    seconds: dict[str, float]
    horizon_seconds: float = math.inf
    progress: Progress = Progress()


NOTHING_UNDER_WAY = UnderWay()
IDLE_LINK = Link()


def roll_forward(
    jobs: Sequence[Job],
    subject: str,
    limits: Limits,
    batch_seconds: BatchCost,
    under_way: UnderWay = NOTHING_UNDER_WAY,
    link: Link = IDLE_LINK,
    mark: Mark | None = None,
) -> Rolled:
    """When `subject` is first scheduled, when it has its first token, when the mark is reached."""
    rolling = SchedulerState(jobs, subject, limits, link, mark)
    _roll(rolling, batch_seconds, under_way)
    return rolling.rolled


def first_tokens(
    jobs: Sequence[Job],
    limits: Limits,
    batch_seconds: BatchCost,
    under_way: UnderWay = NOTHING_UNDER_WAY,
    link: Link = IDLE_LINK,
) -> FirstTokens:
    """When each has its first token, rolled once: equal to `roll_forward` of one after another."""
    rolling = SchedulerState(jobs, None, limits, link, None)
    _roll(rolling, batch_seconds, under_way)
    assert rolling.progress is not None
    return FirstTokens(rolling.first_tokens, rolling.rolled.horizon_seconds, rolling.progress)


def _roll(rolling: SchedulerState, batch_seconds: BatchCost, under_way: UnderWay) -> None:
    """Until all that is asked for is known, or the bounds are reached."""
    now = finish_under_way(rolling, batch_seconds, under_way)
    if rolling.is_done:
        return
    half = None  # the pace of the later half: by then the engine is as full as it gets
    while rolling.work <= MAX_WORK:
        if half is None and rolling.work > MAX_WORK // 2:
            half = now, rolling.prefilled_tokens
        members = rolling.plan(now)
        step_seconds = rolling.step_seconds(now, batch_seconds(members) if members else 0.0)
        if not members:
            ready = rolling.next_ready(now)
            if ready is None:
                return
            now = ready
            continue
        now += step_seconds
        if rolling.advance(members, now):
            return
        if not any(member.is_prefill for member in members):
            now += rolling.skip_decodes(now, step_seconds) * step_seconds
    if half is not None and rolling.prefilled_tokens > half[1]:
        pace = (now - half[0]) / (rolling.prefilled_tokens - half[1])
        rolling.extrapolate(now, pace)


def finish_under_way(
    rolling: SchedulerState, batch_seconds: BatchCost, under_way: UnderWay
) -> float:
    """When the batches under way have ended, unless all that is asked for is known before."""
    now = -under_way.elapsed_seconds
    for members in under_way.batches:
        rolling.admit_members(members)
        now += rolling.step_seconds(now, batch_seconds(members))
        if rolling.advance(members, max(0.0, now)):
            break
    return max(0.0, now)
