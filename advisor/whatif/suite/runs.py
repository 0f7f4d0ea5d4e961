"""One case under one setting: a saturated run and those of its curve, as a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kvready.advisor.whatif.outcome import SimOutcome
from kvready.advisor.whatif.questions import Questions
from kvready.advisor.whatif.recipes import at_rate
from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.suite.cases import COARSE, GROUPS, OWN_RATE, Case, suite_scenario
from kvready.advisor.whatif.suite.ranges import Ranges, Setting, ranges
from kvready.advisor.whatif.summary import CountedFrom, spread, ttft_seconds
from kvready.advisor.whatif.synthetic import documents
from kvready.advisor.whatif.traces import Reading, read_workload
from kvready.advisor.whatif.workload import Workload

ALL_AT_ONCE = 1e4  # requests per second: beyond what any engine here serves
MAX_HALVINGS = 5  # of a curve's lowest rate, to reach the lowest TTFT level


class Task(msgspec.Struct, frozen=True):
    """What a process is given."""

    case: Case
    setting: Setting
    traces: Path
    queries: int = 0  # in place of a group's; 0: its own


class Point(msgspec.Struct, frozen=True):
    """One run. Seconds, tokens per second, shares."""

    rate: float  # requests per second that were offered
    output_rate: float
    ttft_mean: dict[CountedFrom, float]
    ttft_p90: float  # from arrival
    stall_share: float  # of prefill time
    hit_share: float  # of prompt tokens
    twice_share: float  # of computed tokens


Told = Callable[[float], None]


def run_task(task: Task, told: Told | None = None) -> list[Point]:
    """Its points, by rate. Raises `WorkloadError` where a trace is missing."""
    known = ranges()
    case, group = task.case, GROUPS[task.case.group]
    requests = _requests(task)
    rates = list(group.rates)
    points = []
    if not rates:
        saturated, requests_per_second = _run(task, requests, ALL_AT_ONCE, known)
        points.append(saturated)
        rates += [known.readings.low_rate] if case.low else []
        if case.curve:
            rates += [share * requests_per_second for share in known.readings.load_shares]
    longest = max(known.readings.ttft_seconds)
    for number, rate in enumerate(sorted(rates)):
        point, _ = _run(task, requests, rate, known)
        points.append(point)
        if told is not None:
            told((number + 1) / len(rates))
        if not group.rates and min(point.ttft_mean.values()) > longest:
            break  # more of it is beyond every reading too
    if case.curve and not group.rates:
        points += _lower(task, requests, points, known)
    return sorted(points, key=lambda point: point.rate)


def _lower(
    task: Task, requests: Workload, points: Sequence[Point], known: Ranges
) -> Iterator[Point]:
    """Half the lowest rate, and half of that, until the lowest TTFT level is reached."""
    lowest = min(points, key=lambda point: point.rate)
    for _ in range(MAX_HALVINGS):
        if max(lowest.ttft_mean.values()) <= min(known.readings.ttft_seconds):
            return
        lowest, _requests_per_second = _run(task, requests, lowest.rate / 2.0, known)
        yield lowest


def _run(task: Task, requests: Workload, rate: float, known: Ranges) -> tuple[Point, float]:
    """At one rate; also the requests that it finished a second."""
    if rate != OWN_RATE:
        requests = at_rate(requests, rate)
    outcome = simulate(requests, suite_scenario(task.case, task.setting, known))
    ended = len(outcome.requests) - outcome.unfinished
    return _point(outcome, rate), ended / outcome.elapsed_seconds


def _point(outcome: SimOutcome, rate: float) -> Point:
    ended = [one for one in outcome.requests if one.finished_seconds > 0.0]
    prompt = sum(one.prompt_tokens for one in ended)
    computed = sum(one.computed_tokens for one in ended)
    waits = {
        start: spread(ttft_seconds(one, start) for one in ended).mean or 0.0
        for start in CountedFrom
    }
    p90 = spread(ttft_seconds(one, CountedFrom.ARRIVAL) for one in ended).p90
    return Point(
        rate,
        sum(one.output_tokens for one in ended) / outcome.elapsed_seconds,
        waits,
        p90 or 0.0,
        outcome.stall_seconds / outcome.prefill_seconds if outcome.prefill_seconds else 0.0,
        1.0 - computed / prompt,
        outcome.duplicate_tokens / computed,
    )


def _requests(task: Task) -> Workload:
    group, setting = GROUPS[task.case.group], task.setting
    queries = min(task.queries, group.queries) if group.queries else task.queries
    if group.trace:
        reading = Reading(first=task.queries, spread_seed=setting.number)
        return read_workload(task.traces / group.trace, reading=reading)
    questions = Questions(
        queries_per_second=1.0,
        order=group.order,
        initial=group.initial,
        new_tokens=setting.new_tokens,
        queries=queries or group.queries,
        block_tokens=group.block_tokens,
        whole_blocks=group.block_tokens == COARSE,
    )
    return documents(group.shape, questions, setting.number)
