"""Policies side by side at each rate, and each policy's curve over rates. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from kvready.advisor.whatif.card import OWN
from kvready.advisor.whatif.pairing import Ratio
from kvready.advisor.whatif.standing import (
    Standing,
    good_rate,
    mean_ttft,
    output_rate,
    ratio,
    standings,
)
from kvready.advisor.whatif.summary import Constraint, Hits, LinkUse, Summary, Targets
from kvready.advisor.whatif.verdict import Finding, Step, verdict

MAX_TOLD = 4  # values of a condition that runs differ in
LONG_CHARACTERS = 60  # of such a value: the first alone is told


class Row(msgspec.Struct, frozen=True):
    """One policy at one rate: means over seeds, half-widths of 90 % intervals, ratios to a base."""

    policy: str
    seeds: int
    unfinished: int  # over all seeds
    constraint: Constraint
    good_rate: float
    good_rate_half: float
    good_share: float
    goodput_ratio: Ratio | None
    ttft_mean: float | None
    ttft_half: float
    ttft_p50: float | None
    ttft_p90: float | None
    ttft_p99: float | None
    ttft_ratio: Ratio | None
    output_rate: float
    output_ratio: Ratio | None
    hits: Hits
    tokens: dict[str, float]  # shares of prompt tokens by source; duplicate ones beside
    stall_share: float
    load_link: LinkUse


class CellRow(msgspec.Struct, frozen=True):
    """Requests that share a trait: mean TTFT and good share by policy; None where none are."""

    kind: str
    name: str
    requests: int  # of the first policy and seed
    ttft_mean: dict[str, float | None]
    good_share: dict[str, float | None]


class Comparison(msgspec.Struct, frozen=True):
    """All policies at one rate. `base` is the first of them."""

    rate: float | None
    base: str
    rows: tuple[Row, ...]
    cells: tuple[CellRow, ...]
    findings: tuple[Finding, ...]


class Point(msgspec.Struct, frozen=True):
    """One rate on a policy's curve, means over seeds."""

    rate: float
    ttft_mean: float
    output_rate: float
    good_rate: float
    good_share: float


class Curve(msgspec.Struct, frozen=True):
    """One policy over rates, and what it delivers when its mean TTFT is the target."""

    policy: str
    points: tuple[Point, ...]
    output_rate_at_target: float | None  # None: never so quick
    beyond_target: bool  # whether a rate was tried at which it is slower: else this is a bound


class Report(msgspec.Struct, frozen=True):
    """A whole what-if."""

    evidence: str
    conditions: dict[str, str]  # shared by all runs
    own: dict[str, dict[str, str]]  # by policy: what it differs in
    assumed: dict[str, tuple[str, ...]]  # by policy; "" for all
    targets: Targets
    comparisons: tuple[Comparison, ...]
    curves: tuple[Curve, ...]
    runs: tuple[Summary, ...]


def reported(
    runs: Sequence[Summary],
    policies: Sequence[str],
    steps: Sequence[Step],
    ideals: frozenset[str],
    assumed: Mapping[str, tuple[str, ...]],
) -> Report:
    """Everything that is printed, from the runs alone."""
    rates = list(dict.fromkeys(run.rate for run in runs))
    by_rate = {
        rate: standings([run for run in runs if run.rate == rate], policies) for rate in rates
    }
    targets = runs[0].targets
    return Report(
        "simulated",
        *_conditions(runs, policies),
        dict(assumed),
        targets,
        tuple(_compared(rate, standing, steps, ideals) for rate, standing in by_rate.items()),
        tuple(_curve(name, by_rate, targets) for name in policies) if len(rates) > 1 else (),
        tuple(runs),
    )


def throughput_at(points: Sequence[Point], ttft_seconds: float) -> tuple[float | None, bool]:
    """Tokens per second where a curve's mean TTFT passes a value, and whether it does.

    Between two rates in proportion, on a log scale of TTFT. Of a curve that goes to and fro its
    best side counts.
    """
    along = sorted(points, key=lambda point: point.rate)
    reached = [point.output_rate for point in along if point.ttft_mean <= ttft_seconds]
    passed = False
    for left, right in pairwise(along):
        if left.ttft_mean <= ttft_seconds < right.ttft_mean and left.ttft_mean > 0.0:
            passed = True
            share = math.log(ttft_seconds / left.ttft_mean) / math.log(
                right.ttft_mean / left.ttft_mean
            )
            reached.append(left.output_rate + share * (right.output_rate - left.output_rate))
    return max(reached, default=None), passed


def _compared(
    rate: float | None,
    standing: Sequence[Standing],
    steps: Sequence[Step],
    ideals: frozenset[str],
) -> Comparison:
    base = standing[0]
    return Comparison(
        rate,
        base.policy,
        tuple(_row(one, base) for one in standing),
        tuple(_cell_rows(standing)),
        verdict(standing, steps, ideals),
    )


def _row(one: Standing, base: Standing) -> Row:
    first = one.runs[0]
    return Row(
        policy=one.policy,
        seeds=len(one.runs),
        unfinished=sum(run.unfinished for run in one.runs),
        constraint=one.constraint,
        good_rate=one.figure(good_rate),
        good_rate_half=one.spread_over_seeds(good_rate),
        good_share=one.figure(lambda run: run.good_share),
        goodput_ratio=ratio(one, base, good_rate),
        ttft_mean=one.average(mean_ttft),
        ttft_half=one.spread_over_seeds(mean_ttft),
        ttft_p50=one.average(lambda run: run.ttft.p50),
        ttft_p90=one.average(lambda run: run.ttft.p90),
        ttft_p99=one.average(lambda run: run.ttft.p99),
        ttft_ratio=ratio(one, base, mean_ttft),
        output_rate=one.figure(output_rate),
        output_ratio=ratio(one, base, output_rate),
        hits=Hits(*(one.figure(_field("hits", name)) for name in Hits.__struct_fields__)),
        tokens={name: one.figure(_token_share(name)) for name in first.sources.__struct_fields__},
        stall_share=one.figure(lambda run: run.stall_share),
        load_link=_mean_use(one),
    )


def _mean_use(one: Standing) -> LinkUse:
    names = [name for name in LinkUse.__struct_fields__ if name != "effective_bandwidth"]
    means = {name: one.figure(_field("load_link", name)) for name in names}
    return LinkUse(
        **means, effective_bandwidth=one.average(lambda run: run.load_link.effective_bandwidth)
    )


def _field(part: str, name: str) -> Callable[[Summary], float]:
    return lambda run: float(getattr(getattr(run, part), name))


def _token_share(name: str) -> Callable[[Summary], float]:
    def share(run: Summary) -> float:
        sources = run.sources
        whole = sources.hbm + sources.host + sources.disk + sources.computed
        return getattr(sources, name) / whole if whole else 0.0

    return share


def _cell_rows(standing: Sequence[Standing]) -> list[CellRow]:
    keys = dict.fromkeys(
        (cell.kind, cell.name) for one in standing for run in one.runs for cell in run.cells
    )
    kinds = list(dict.fromkeys(kind for kind, _ in keys))
    rows = []
    for kind, name in sorted(keys, key=lambda key: kinds.index(key[0])):
        cells = {
            one.policy: [
                c for run in one.runs for c in run.cells if (c.kind, c.name) == (kind, name)
            ]
            for one in standing
        }
        first = next(iter(cells.values()))
        rows.append(
            CellRow(
                kind,
                name,
                first[0].ttft.count if first else 0,
                {p: _mean([c.ttft.mean for c in found]) for p, found in cells.items()},
                {p: _mean([c.good_share for c in found]) for p, found in cells.items()},
            )
        )
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _curve(
    name: str, by_rate: Mapping[float | None, Sequence[Standing]], targets: Targets
) -> Curve:
    points = []
    for rate, standing in by_rate.items():
        one = next(one for one in standing if one.policy == name)
        ttft = one.average(mean_ttft)
        if rate is not None and ttft is not None:
            share = one.figure(lambda run: run.good_share)
            points.append(Point(rate, ttft, one.figure(output_rate), one.figure(good_rate), share))
    return Curve(name, tuple(points), *throughput_at(points, targets.ttft_seconds))


def _conditions(
    runs: Sequence[Summary], policies: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What all runs share, and what the policies differ in; a value for each rate and seed."""
    shared: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {name: {} for name in policies}
    for name in dict.fromkeys(name for run in runs for name in run.conditions):
        values = list(dict.fromkeys(run.conditions.get(name, "-") for run in runs))
        if name not in OWN or len(values) == 1:
            shared[name] = _joined(values)
            continue
        for policy in policies:
            mine = [run.conditions.get(name, "-") for run in runs if run.policy == policy]
            own[policy][name] = _joined(list(dict.fromkeys(mine)))
    return shared, own


def _joined(values: Sequence[str]) -> str:
    if len(values) > 1 and len(values[0]) > LONG_CHARACTERS:
        return f"{values[0]} (and {len(values) - 1} more, alike, over rates and seeds)"
    if len(values) <= MAX_TOLD:
        return " | ".join(values)
    return f"{values[0]} | ... | {values[-1]} ({len(values)} values over rates and seeds)"
