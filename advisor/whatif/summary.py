"""What a simulated run was worth: requests inside their targets first, then where time went. Pure.

A request is *good* when it finished, its first token came within the TTFT target and its further
tokens came at the throughput target or faster. Unfinished requests are never good. Seconds, tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from kvready.advisor.whatif.outcome import LinkTime, RequestOutcome, SimOutcome
from kvready.advisor.whatif.scenario import Scenario

IN_TIME_SECONDS = 2e-3  # or one decode step of the run, where that is longer
REUSE_EDGES = (10_000, 100_000, 300_000, 1_000_000, 3_000_000)  # distinct tokens in between
LINK_BOUND_SHARE = 0.5
COMPUTE_BOUND_SHARE = 0.9


class CountedFrom(StrEnum):
    """Where a time to first token begins."""

    ARRIVAL = "arrival"  # at the client's side, its own queue included
    ADMISSION = "admission"  # under the in-flight cap


class Constraint(StrEnum):
    """Which resource a run waited for most."""

    LINK = "link"
    COMPUTE = "compute"
    NONE = "none"


class Targets(msgspec.Struct, frozen=True):
    """What a request must keep to be good."""

    ttft_seconds: float
    tokens_per_second: float | None = None  # of its own output; None: no target
    counted_from: CountedFrom = CountedFrom.ARRIVAL


class Spread(msgspec.Struct, frozen=True):
    """Of so many values; None where there are none."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Cell(msgspec.Struct, frozen=True):
    """TTFT of the requests that share one trait."""

    kind: str  # reuse distance | class | at arrival
    name: str
    good_share: float
    ttft: Spread


class Hits(msgspec.Struct, frozen=True):
    """Shares of all prompt tokens."""

    nominal: float  # resident in some tier at arrival
    in_time: float  # and used, with no more than IN_TIME_SECONDS of load in the open
    late: float  # used, and waited for
    lost: float  # resident, computed all the same


class Sources(msgspec.Struct, frozen=True):
    """Prompt tokens by where they came from."""

    hbm: int = 0
    host: int = 0
    disk: int = 0
    computed: int = 0
    duplicate: int = 0  # of the computed ones: while another request computed or held the same


class LinkUse(msgspec.Struct, frozen=True):
    """One link's time as shares of the run, and what it carried in bytes per second."""

    busy: float
    idle_no_demand: float
    idle_scheduler: float
    idle_compute: float
    used_bandwidth: float  # of the whole run
    effective_bandwidth: float | None  # while it was busy; None: never


class Summary(msgspec.Struct, frozen=True):
    """One run of one scenario on one workload."""

    policy: str
    rate: float | None  # that was asked for; None: as the trace has it
    seed: int
    requests: int
    unfinished: int
    elapsed_seconds: float
    offered_rate: float | None  # requests per second over the span of arrivals
    good_rate: float  # good requests per second of the run
    good_share: float
    ttft: Spread
    targets: Targets
    cells: tuple[Cell, ...]
    hits: Hits
    sources: Sources
    stall_share: float  # of prefill time
    output_rate: float  # tokens per second of the run
    load_link: LinkUse
    backup_link: LinkUse
    fetch_link: LinkUse
    constraint: Constraint
    tier: bool  # a tier below HBM exists
    prompt_tokens: Spread
    reuse_tokens: Spread
    conditions: dict[str, str] = {}


def summarize(
    outcome: SimOutcome,
    scenario: Scenario,
    targets: Targets,
    seed: int = 0,
    conditions: dict[str, str] | None = None,
    rate: float | None = None,
) -> Summary:
    """One run's figures; `conditions` and the `rate` asked for are carried along."""
    every = outcome.requests
    ended = [one for one in every if _finished(one)]
    unfinished = max(outcome.unfinished, len(every) - len(ended))
    asked = len(ended) + unfinished
    good = sum(is_good(one, targets) for one in ended)
    elapsed = outcome.elapsed_seconds
    step = outcome.decode_seconds / outcome.decode_steps if outcome.decode_steps else 0.0
    return Summary(
        policy=outcome.scenario,
        rate=rate,
        seed=seed,
        requests=asked,
        unfinished=unfinished,
        elapsed_seconds=elapsed,
        offered_rate=_offered_rate(every),
        good_rate=good / elapsed if elapsed else 0.0,
        good_share=good / asked if asked else 0.0,
        ttft=spread(ttft_seconds(one, targets.counted_from) for one in ended),
        targets=targets,
        cells=tuple(_cells(ended, targets)),
        hits=_hits(ended, max(IN_TIME_SECONDS, step)),
        sources=_sources(ended, outcome.duplicate_tokens),
        stall_share=_share(outcome.stall_seconds, outcome.prefill_seconds),
        output_rate=_share(sum(one.output_tokens for one in ended), elapsed),
        load_link=_use(outcome.load_link, elapsed),
        backup_link=_use(outcome.backup_link, elapsed),
        fetch_link=_use(outcome.fetch_link, elapsed),
        constraint=_constraint(outcome, ended),
        tier=bool(scenario.tiers.host_bytes or scenario.tiers.disk_bytes),
        prompt_tokens=spread(one.prompt_tokens for one in every),
        reuse_tokens=spread(one.reuse_tokens for one in every if one.reuse_tokens is not None),
        conditions=conditions or {},
    )


def ttft_seconds(one: RequestOutcome, counted_from: CountedFrom) -> float:
    """From arrival, or from admission under the cap."""
    start = one.arrived_seconds if counted_from is CountedFrom.ARRIVAL else one.admitted_seconds
    return one.first_token_seconds - start


def is_good(one: RequestOutcome, targets: Targets) -> bool:
    """Finished inside both targets."""
    if ttft_seconds(one, targets.counted_from) > targets.ttft_seconds:
        return False
    further = one.output_tokens - 1
    if targets.tokens_per_second is None or further < 1:
        return True
    return further >= targets.tokens_per_second * (one.finished_seconds - one.first_token_seconds)


def spread(values: Iterable[float]) -> Spread:
    """Mean and percentiles, between neighbours in proportion."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0)
    mean = sum(ordered) / len(ordered)
    return Spread(len(ordered), mean, *(percentile(ordered, share) for share in (0.5, 0.9, 0.99)))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, at least one."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def reuse_cell(tokens: int | None) -> str:
    """How far back a prefix was last asked for, in distinct tokens."""
    if tokens is None:
        return "first use"
    below = 0
    for edge in REUSE_EDGES:
        if tokens < edge:
            return f"{_short(below)} to {_short(edge)}"
        below = edge
    return f"{_short(below)} and more"


def _finished(one: RequestOutcome) -> bool:
    return one.finished_seconds > 0.0


def _cells(ended: Sequence[RequestOutcome], targets: Targets) -> Iterable[Cell]:
    reuse = sorted(ended, key=lambda one: -1 if one.reuse_tokens is None else one.reuse_tokens)
    yield from _grouped("reuse distance", ((reuse_cell(o.reuse_tokens), o) for o in reuse), targets)
    classes = sorted(ended, key=lambda one: one.request_class)
    if any(one.request_class for one in ended):
        named = ((one.request_class or "none", one) for one in classes)
        yield from _grouped("class", named, targets)
    resident = sorted(ended, key=lambda one: bool(one.nominal_tokens))
    states = (("resident" if o.nominal_tokens else "nothing resident", o) for o in resident)
    yield from _grouped("at arrival", states, targets)


def _grouped(
    kind: str, named: Iterable[tuple[str, RequestOutcome]], targets: Targets
) -> Iterable[Cell]:
    groups: dict[str, list[RequestOutcome]] = {}
    for name, one in named:
        groups.setdefault(name, []).append(one)
    for name, members in groups.items():
        good = sum(is_good(one, targets) for one in members)
        ttft = spread(ttft_seconds(one, targets.counted_from) for one in members)
        yield Cell(kind, name, good / len(members), ttft)


def _hits(ended: Sequence[RequestOutcome], tolerance_seconds: float) -> Hits:
    prompt = sum(one.prompt_tokens for one in ended)
    nominal = in_time = late = 0
    for one in ended:
        used = min(one.nominal_tokens, one.hbm_tokens + one.host_tokens + one.disk_tokens)
        nominal += one.nominal_tokens
        if one.exposed_seconds <= tolerance_seconds:
            in_time += used
        else:
            late += used
    lost = nominal - in_time - late
    return Hits(*(_share(tokens, prompt) for tokens in (nominal, in_time, late, lost)))


def _sources(ended: Sequence[RequestOutcome], duplicate_tokens: int) -> Sources:
    return Sources(
        sum(one.hbm_tokens for one in ended),
        sum(one.host_tokens for one in ended),
        sum(one.disk_tokens for one in ended),
        sum(one.computed_tokens for one in ended),
        duplicate_tokens,
    )


def _use(link: LinkTime, elapsed: float) -> LinkUse:
    return LinkUse(
        _share(link.busy_seconds, elapsed),
        _share(link.idle_no_demand_seconds, elapsed),
        _share(link.idle_scheduler_seconds, elapsed),
        _share(link.idle_compute_seconds, elapsed),
        _share(link.payload_bytes, elapsed),
        link.payload_bytes / link.busy_seconds if link.busy_seconds else None,
    )


def _constraint(outcome: SimOutcome, ended: Sequence[RequestOutcome]) -> Constraint:
    exposed = outcome.stall_seconds > 0.0 or any(one.exposed_seconds > 0.0 for one in ended)
    if exposed and _share(outcome.load_link.busy_seconds, outcome.elapsed_seconds) >= (
        LINK_BOUND_SHARE
    ):
        return Constraint.LINK
    running = outcome.prefill_seconds + outcome.decode_seconds
    if _share(running, outcome.elapsed_seconds) >= COMPUTE_BOUND_SHARE:
        return Constraint.COMPUTE
    return Constraint.NONE


def _offered_rate(every: Sequence[RequestOutcome]) -> float | None:
    arrivals = [one.arrived_seconds for one in every]
    span = max(arrivals) - min(arrivals) if len(arrivals) > 1 else 0.0
    return (len(arrivals) - 1) / span if span else None


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _short(tokens: int) -> str:
    if tokens >= 1_000_000:
        return f"{tokens // 1_000_000}M"
    return f"{tokens // 1_000}k" if tokens else "0"
