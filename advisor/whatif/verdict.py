"""What a comparison says: what binds, what helps, what does not, what to change. Pure.

A difference counts when it is beyond chance, as far as several seeds tell, and larger than
`LEAST`. Saying that nothing helps, or that a tier does not pay, is an answer like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from kvready.advisor.whatif.pairing import Ratio
from kvready.advisor.whatif.standing import Standing, good_rate, mean_ttft, ratio
from kvready.advisor.whatif.summary import Constraint, Summary

LEAST = 0.02  # of goodput or mean TTFT: smaller differences decide nothing
HEADROOM = 0.1  # of an oracle over the best: less, and a faster link buys nothing
KEPT = 0.99  # share of good requests beyond which targets count as kept
MANY_DUPLICATES = 0.05  # of computed tokens
MUCH_DISK = 0.1  # of reused tokens
LARGEST_RATIO = 99
SERVED = 0.1  # share of good requests below which ratios say little
OVERLOADED = (
    ". Overloaded: hardly anybody is served in time, so that ratios mean little; try a lower --rate"
)
CLASS_GAP = 0.2  # between the good shares of two classes


class Kind(StrEnum):
    """What a finding is about."""

    CONSTRAINT = "constraint"
    TIER_PAYS = "tier_pays"
    TIER_DOES_NOT_PAY = "tier_does_not_pay"
    HELPS = "helps"
    NO_BENEFIT = "no_benefit"
    HARMS = "harms"
    HEADROOM = "headroom"
    CHANGE = "change"


class Finding(msgspec.Struct, frozen=True):
    """One sentence, and what it is about."""

    kind: Kind
    text: str


class Step(msgspec.Struct, frozen=True):
    """What one policy adds to another that was simulated beside it."""

    policy: str
    base: str
    added: str
    tier: bool = False  # the base has none, and nothing else differs


def verdict(
    standings: Sequence[Standing], steps: Sequence[Step], ideals: frozenset[str] = frozenset()
) -> tuple[Finding, ...]:
    """Findings in the order in which they are read. `ideals` cannot be bought."""
    by_name = {one.policy: one for one in standings}
    real = [one for one in standings if one.policy not in ideals]
    if not real:
        return ()
    best = _best(real)
    told = [step for step in steps if step.policy not in ideals]
    found = [_constraint(best), *_tier(real, [step for step in told if step.tier], by_name)]
    found += [_step(step, by_name) for step in told if not step.tier]
    found += [_headroom(by_name[name], best) for name in sorted(ideals & by_name.keys())]
    found += _changes(best, by_name)
    return tuple(found)


def _best(standings: Sequence[Standing]) -> Standing:
    """Most requests inside their targets, then the shortest wait; the first of equals."""
    return max(standings, key=lambda one: (one.figure(good_rate), -(one.average(mean_ttft) or 0.0)))


def _constraint(best: Standing) -> Finding:
    busy = best.figure(lambda run: run.load_link.busy)
    stalled = best.figure(lambda run: run.stall_share)
    share = best.figure(lambda run: run.good_share)
    what = {
        Constraint.LINK: "the link is the constraint",
        Constraint.COMPUTE: "compute is the constraint",
        Constraint.NONE: "neither link nor compute is the constraint",
    }[best.constraint]
    return Finding(
        Kind.CONSTRAINT,
        f"Best here: {best.policy}, {share:.0%} of requests inside their targets; {what} "
        f"(loads run {busy:.0%} of the time, {stalled:.0%} of prefill time is stalled)"
        + (OVERLOADED if share < SERVED else ""),
    )


def _tier(
    real: Sequence[Standing], steps: Sequence[Step], by_name: Mapping[str, Standing]
) -> list[Finding]:
    """Tier and order are judged as a pair, and apart where the same order ran without a tier."""
    without = [one for one in real if not one.tier]
    with_tier = [one for one in real if one.tier]
    if not without or not with_tier:
        return []
    bare, best = _best(without), _best(with_tier)
    told = f"{best.policy} beside {bare.policy}: {_told(*_ratios(best, bare))}"
    below = best.figure(_below_hbm)
    gained = _gains(best, bare)
    alone = [step for step in steps if _gains(by_name[step.policy], by_name[step.base])]
    if gained and below > 0.0 and (alone or not steps):
        return [Finding(Kind.TIER_PAYS, f"A tier below HBM pays: {told}")]
    if gained and below >= LEAST:
        return [Finding(Kind.TIER_PAYS, f"A tier below HBM pays, but only with {told}")]
    why = f"{below:.0%} of prompt tokens came from below HBM"
    why += ", so that what is gained comes of the order" if gained else ""
    return [Finding(Kind.TIER_DOES_NOT_PAY, f"A CPU tier does not pay here: {why} ({told})")]


def _step(step: Step, by_name: Mapping[str, Standing]) -> Finding:
    ours, base = by_name[step.policy], by_name[step.base]
    told = f"{step.base} to {step.policy}: {_told(*_ratios(ours, base))}"
    if _gains(ours, base):
        return Finding(Kind.HELPS, f"Helps: {step.added} ({told})")
    if _gains(base, ours):
        return Finding(Kind.HARMS, f"Does harm: {step.added} ({told})")
    return Finding(Kind.NO_BENEFIT, f"No benefit expected of {step.added} ({told})")


def _ratios(ours: Standing, base: Standing) -> tuple[Ratio | None, Ratio | None]:
    return ratio(ours, base, good_rate), ratio(ours, base, mean_ttft)


def _gains(ours: Standing, base: Standing) -> bool:
    """More good requests; or as many, and sooner. Nobody in time is no base for a ratio."""
    goodput, ttft = _ratios(ours, base)
    if goodput is None:
        ahead = ours.figure(good_rate) - base.figure(good_rate)
        if ahead:
            return ahead > 0.0
    elif goodput.differs(LEAST):
        return goodput.middle > 1.0
    return ttft is not None and ttft.differs(LEAST) and ttft.middle < 1.0


def _headroom(ideal: Standing, best: Standing) -> Finding:
    goodput, ttft = _ratios(ideal, best)
    much = (
        ideal.figure(good_rate) > best.figure(good_rate)
        if goodput is None
        else (goodput.differs(HEADROOM) and goodput.middle > 1.0)
    )
    much |= ttft is not None and ttft.differs(HEADROOM) and ttft.middle < 1.0
    says = "a faster link has room to help" if much else "a faster link buys nothing here"
    return Finding(
        Kind.HEADROOM,
        f"A link that takes no time, beside {best.policy}: {_told(goodput, ttft)}; {says}",
    )


def _changes(best: Standing, by_name: Mapping[str, Standing]) -> list[Finding]:
    """Which of admission, placement, link, order or isolation the figures ask for."""
    told = []
    if best.constraint is Constraint.LINK:
        told.append(_link_change(best, by_name))
    elif best.constraint is Constraint.COMPUTE:
        told.append(_compute_change(best))
    elif best.figure(lambda run: run.good_share) >= KEPT:
        told.append("Change nothing: the targets are kept and no resource is full")
    else:
        told.append(_unbound_change(best))
    disk, reused = best.figure(lambda run: run.sources.disk), best.figure(_reused)
    if reused and disk / reused >= MUCH_DISK:
        told.append(
            f"Data placement: {disk / reused:.0%} of reused tokens came from disk; more host "
            "memory, or keeping fewer large prefixes, brings them nearer"
        )
    told += _isolation(best)
    return [Finding(Kind.CHANGE, text) for text in told]


def _link_change(best: Standing, by_name: Mapping[str, Standing]) -> str:
    rates = [run.load_link.effective_bandwidth for run in best.runs]
    reached = max((rate for rate in rates if rate is not None), default=0.0)
    quicker = [
        name
        for name, one in by_name.items()
        if any((run.load_link.effective_bandwidth or 0.0) > 1.2 * reached for run in one.runs)
    ]
    if quicker:
        return f"Change the copies: {quicker[0]} moves bytes faster over the same link"
    return (
        "Change the link, or load less: a faster link, batches that hide loads (balance), or "
        "admitting fewer prefixes to host memory that come back too late"
    )


def _compute_change(best: Standing) -> str:
    computed = best.figure(lambda run: run.sources.computed)
    duplicate = best.figure(lambda run: run.sources.duplicate)
    if computed and duplicate / computed >= MANY_DUPLICATES:
        return (
            f"Change the order: {duplicate / computed:.0%} of computed tokens were computed "
            "while another request did so (dedup)"
        )
    return (
        "Change the compute: more GPUs or a lower rate; neither a faster link nor more host memory "
        "relieves it unless it raises the hits"
    )


def _unbound_change(best: Standing) -> str:
    missed = 1.0 - best.figure(lambda run: run.good_share)
    told = f"Neither link nor compute is full, yet {missed:.0%} miss their targets"
    fresh = _share_of_cell(best, "nothing resident")
    resident = _share_of_cell(best, "resident")
    if fresh is not None and resident is not None and resident - fresh >= CLASS_GAP:
        return (
            f"{told}: of requests of which nothing was resident: {fresh:.0%} come in time, of the "
            f"others {resident:.0%}. Warm the cache, spread what arrives together, or relax the "
            "target"
        )
    return f"{told}: look at bursts (TTFT p99), at the throughput target, and at classes"


def _share_of_cell(best: Standing, name: str) -> float | None:
    """Share of good requests in a state at arrival, over all seeds; None where there are none."""
    cells = [
        cell
        for run in best.runs
        for cell in run.cells
        if (cell.kind, cell.name) == ("at arrival", name)
    ]
    count = sum(cell.ttft.count for cell in cells)
    return sum(cell.good_share * cell.ttft.count for cell in cells) / count if count else None


def _isolation(best: Standing) -> list[str]:
    shares: dict[str, list[float]] = {}
    for run in best.runs:
        for cell in run.cells:
            if cell.kind == "class":
                shares.setdefault(cell.name, []).append(cell.good_share)
    if len(shares) < 2:
        return []
    means = {name: sum(values) / len(values) for name, values in shares.items()}
    worst, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    if means[highest] - means[worst] < CLASS_GAP:
        return []
    return [
        f"SLO isolation: class {worst} has {means[worst]:.0%} inside its targets, class {highest} "
        f"{means[highest]:.0%}"
    ]


def _below_hbm(run: Summary) -> float:
    prompt = _reused(run) + run.sources.computed
    return (run.sources.host + run.sources.disk) / prompt if prompt else 0.0


def _reused(run: Summary) -> int:
    return run.sources.hbm + run.sources.host + run.sources.disk


def _told(goodput: Ratio | None, ttft: Ratio | None) -> str:
    return f"goodput {ratio_text(goodput)}, mean TTFT {ratio_text(ttft)}"


def ratio_text(one: Ratio | None) -> str:
    """`x1.20 (1.10 to 1.31)`; a dash where there is no ratio."""
    if one is None:
        return "-"
    if one.middle > LARGEST_RATIO:
        return f">x{LARGEST_RATIO}"  # of nearly nothing
    if not one.has_interval:
        return f"x{one.middle:.2f}"
    return f"x{one.middle:.2f} ({one.low:.2f} to {one.high:.2f})"
