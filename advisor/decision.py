"""What should be done about something that is wanted in HBM, and why. Pure.

Ways are compared by what sets them apart, at both ends of their intervals: where these overlap no
way is known to be sooner, and the engine's own way stands.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.estimates import Estimates, Interference
from kvready.advisor.holding import Holding
from kvready.advisor.ranges import Range
from kvready.advisor.ways import Option, Stage, Way, WayName, Weighing


class Decision(StrEnum):
    """What to do."""

    USE = "use"  # it is ready
    LOAD = "load"
    RECOMPUTE = "recompute"
    LOAD_AND_RECOMPUTE = "load_and_recompute"
    WAIT = "wait"
    RUN_OTHER = "run_other"
    ENGINES_WAY = "engines_way"  # nothing better is known than what the engine does by itself
    NONE = "none"  # nothing can be said


class Reason(StrEnum):
    """Why; the list is closed."""

    READY = "ready"
    LOAD_SOONER = "load_sooner"
    RECOMPUTE_SOONER = "recompute_sooner"  # at present: the link is busy
    NOT_WORTH_LOADING = "not_worth_loading"  # recomputing is sooner even over an idle link
    SPLIT_SOONER = "split_sooner"
    IN_FLIGHT_SOONER = "in_flight_sooner"
    LINK_BUSY_RUN_OTHER = "link_busy_run_other"  # the load would hold up a batch; others can run
    INTERVALS_OVERLAP = "intervals_overlap"
    NOTHING_RESIDENT = "nothing_resident"
    ONLY_LOADING = "only_loading"  # it cannot be computed
    NOT_TOLERATED = "not_tolerated"  # the load would slow others more than the caller allows
    UNKNOWN_LINK = "unknown_link"  # no copy from that tier was ever seen, and no profile names it
    UNKNOWN_RESIDENCY = "unknown_residency"  # no tap tells what is where
    UNKNOWN_REQUEST = "unknown_request"
    UNKNOWN_ENGINE = "unknown_engine"  # nothing has told what the engine is
    UNSUPPORTED = "unsupported"  # sparse, linear, hybrid or several-group KV state
    NOT_RESIDENT = "not_resident"  # it cannot be computed, and no tier holds all of it


class Tolerates(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The most that a caller accepts for a load; None: anything."""

    sm_share: float | None = None
    prefill_slowdown: float | None = None
    decode_slowdown: float | None = None


class BreakEven(msgspec.Struct, frozen=True, gc=False):
    """Where loading and recomputing take equally long at p50; None: nowhere."""

    bytes_per_second: float | None  # effective bandwidth, every cost of the copy counted
    tokens: int | None  # of a prefix in the nearest lower tier, within the candidate's own


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The decision with all it was made from."""

    decision: Decision
    reason: Reason
    ways: tuple[Way, ...] = ()
    break_even: BreakEven | None = None
    interference: Interference | None = None
    tolerated: bool | None = None  # None: not known for sure, or the caller named no bound
    not_included: tuple[str, ...] = ()  # stages of which nothing is known; their seconds lack


ANYTHING = Tolerates()
UNSAID: dict[Reason, Verdict] = {reason: Verdict(Decision.NONE, reason) for reason in Reason}
BY_WAY = {
    WayName.LOAD: (Decision.LOAD, Reason.LOAD_SOONER),
    WayName.RECOMPUTE: (Decision.RECOMPUTE, Reason.RECOMPUTE_SOONER),
    WayName.LOAD_AND_RECOMPUTE: (Decision.LOAD_AND_RECOMPUTE, Reason.SPLIT_SOONER),
    WayName.WAIT: (Decision.WAIT, Reason.IN_FLIGHT_SOONER),
}
PURE_WAYS = (WayName.LOAD, WayName.RECOMPUTE)


def decide(
    holding: Holding,
    estimates: Estimates,
    tolerates: Tolerates = ANYTHING,
    queue: Range | None = None,
    request_id: str = "",
) -> Verdict:
    """The way to take. `queue`: of a request that is in it already; None: of one that comes now.
    `request_id`: which request that is; it is no other work for itself.

    Raises nothing for any holding.
    """
    if not holding.supported:
        return UNSAID[Reason.UNSUPPORTED]
    if holding.missing_bytes:
        return UNSAID[Reason.NOT_RESIDENT]
    if holding.is_ready:
        return Verdict(Decision.USE, Reason.READY)
    weighing = Weighing(holding, estimates, queue or estimates.queue_seconds())
    load, wait = weighing.by_load(), weighing.wait()
    recompute = weighing.recompute() if holding.recomputable else None
    split = other = tolerated = None
    if load is not None:
        split = weighing.split()
        tolerated = is_tolerated(estimates.interference, tolerates)
        if estimates.has_other_work(request_id):
            other = weighing.run_other()
    offered = [option for option in (load, recompute, split, wait, other) if option]
    allowed = (load, split, wait, recompute) if tolerated is not False else (recompute,)
    choices = [option for option in allowed if option]
    decision, reason = _choose(holding, weighing, choices, tolerated)
    if other is not None:
        loading = {Decision.LOAD: load, Decision.LOAD_AND_RECOMPUTE: split}.get(decision)
        if loading and _holds_up(loading.way):
            decision, reason = Decision.RUN_OTHER, Reason.LINK_BUSY_RUN_OTHER
    return Verdict(
        decision,
        reason,
        tuple([option.way for option in offered]),
        break_even(holding, weighing, estimates) if load and recompute else None,
        estimates.interference if load else None,
        tolerated,
        _not_included(holding, weighing),
    )


def _not_included(holding: Holding, weighing: Weighing) -> tuple[str, ...]:
    """Stages of which nothing can be said; without what is in flight, no wait is offered."""
    untold = [] if weighing.queue is not None else [Stage.QUEUE]
    if holding.in_flight_tokens and holding.in_flight_ready is None:
        untold.append(Stage.IN_FLIGHT)
    return tuple(untold)


def _choose(
    holding: Holding, weighing: Weighing, choices: list[Option], tolerated: bool | None
) -> tuple[Decision, Reason]:
    if not choices:
        reason = Reason.NOT_TOLERATED if tolerated is False else Reason.UNKNOWN_LINK
        return Decision.NONE, reason
    if len(choices) == 1:
        return _only(holding, weighing, choices[0], tolerated)
    best = min(choices, key=lambda option: option.apart.p50)
    # A split beats its own pure ways by construction; their intervals overlap all the same.
    parts = PURE_WAYS if best.way.way is WayName.LOAD_AND_RECOMPUTE else ()
    high = best.apart.high
    for rival in choices:
        if high >= rival.apart.low and rival is not best and rival.way.way not in parts:
            return Decision.ENGINES_WAY, Reason.INTERVALS_OVERLAP
    decision, reason = BY_WAY[best.way.way]
    load = weighing.load
    if decision is Decision.RECOMPUTE and load is not None:
        idle_seconds = load.fetch.p50 + load.copy.p50
        if idle_seconds >= weighing.saved.p50:
            reason = Reason.NOT_WORTH_LOADING
    return decision, reason


def _only(
    holding: Holding, weighing: Weighing, option: Option, tolerated: bool | None
) -> tuple[Decision, Reason]:
    """There is one way; say why no other."""
    if option.way.way is not WayName.RECOMPUTE:
        return BY_WAY[option.way.way][0], Reason.ONLY_LOADING
    if holding.degraded or (holding.unknown_tokens and not holding.hbm_tokens):
        return Decision.ENGINES_WAY, Reason.UNKNOWN_RESIDENCY
    if tolerated is False:
        return Decision.RECOMPUTE, Reason.NOT_TOLERATED
    if holding.portions and weighing.load is None:
        return Decision.ENGINES_WAY, Reason.UNKNOWN_LINK
    if holding.in_flight_tokens:
        return Decision.ENGINES_WAY, Reason.INTERVALS_OVERLAP
    return Decision.RECOMPUTE, Reason.NOTHING_RESIDENT


def _holds_up(way: Way) -> bool:
    """Whether its batch would stand still for the load longer than it computes."""
    return way.stalls_batch_seconds > way.stages_seconds[Stage.COMPUTE]


def is_tolerated(causes: Interference, tolerates: Tolerates) -> bool | None:
    """Whether a load stays within what the caller accepts, by its whole interval.

    None: no bound was named, not all was measured, or an interval holds the bound.
    """
    within: list[bool | None] = []
    for name in Tolerates.__struct_fields__:
        bound = getattr(tolerates, name)
        if bound is None:
            continue
        caused = causes.interval(name)
        if caused is None or caused.low <= bound < caused.high:
            within.append(None)
        else:
            within.append(caused.high <= bound)
    if False in within:
        return False
    return None if None in within or not within else True


def break_even(holding: Holding, weighing: Weighing, estimates: Estimates) -> BreakEven:
    """The bandwidth and the prefix length at which a load is no sooner than a recompute."""
    wait_seconds = weighing.load.link_wait.p50 if weighing.load else 0.0
    left = weighing.saved.p50 - wait_seconds
    rate = holding.payload_bytes / left if left > 0.0 else None
    return BreakEven(rate, _break_even_tokens(holding, estimates, wait_seconds))


def _break_even_tokens(holding: Holding, estimates: Estimates, wait_seconds: float) -> int | None:
    """By halving: the load is linear in the prefix, the compute grows faster."""
    nearest = holding.portions[0]
    block = estimates.block_tokens
    blocks = nearest.tokens // block if block else 0
    if not blocks:
        return None
    context = holding.hbm_tokens
    # What is computed either way.
    rest = holding.in_flight_tokens + holding.missing_tokens + holding.unknown_tokens

    def load_is_sooner(number: int) -> bool:
        share = number * block / nearest.tokens
        size = round(nearest.payload_bytes * share)
        fragments = max(1, round(nearest.fragments * share))
        load = estimates.load_seconds(nearest.tier, size, fragments)
        fetch = estimates.fetch_seconds(nearest.tier, size, fragments)
        if load is None or fetch is None:
            return False
        done = number * block
        saved = estimates.prefill_seconds(done + rest, context).p50
        if rest:
            saved -= estimates.prefill_seconds(rest, context + done).p50
        return wait_seconds + fetch.p50 + load.p50 <= saved

    if not load_is_sooner(blocks):
        return None
    if load_is_sooner(1):
        return block
    low, high = 1, blocks
    while high - low > 1:
        middle = (low + high) // 2
        if load_is_sooner(middle):
            high = middle
        else:
            low = middle
    return high * block
