"""The series that one snapshot makes, bounded; and how much of the catalogue they cover."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec

from kvready.advisor.service.catalogue import CATALOGUE, MAX_SERIES, reachable
from kvready.advisor.service.metric import PREFIX, Family, Kind, Metric
from kvready.advisor.service.snapshot import Snapshot
from kvready.collectors.collector import Level

Child = tuple[str, ...]


class Exported(NamedTuple):
    """The children of each metric that is exported, and the series of those that are not."""

    metrics: list[tuple[Metric, list[Child]]]
    series: int
    left_out: int


def children_of(metric: Metric, snapshot: Snapshot) -> list[Child]:
    """All that exist: every combination, or those that have a value where unknown means absent.

    Raises `KeyError` for labels that the catalogue does not know.
    """
    given = snapshot.values.get(metric.name, {})
    if metric.kind is Kind.HISTOGRAM:
        given = dict.fromkeys(snapshot.histograms.get(metric.name, {}), 0.0)
    if metric.is_identity:
        return list(given)
    known = metric.children(snapshot.taps, snapshot.classes)
    if not set(given) <= set(known):
        raise KeyError(f"{metric.name}: labels beyond the catalogue: {set(given) - set(known)}")
    return list(given) if metric.sparse else known


def exported(snapshot: Snapshot) -> Exported:
    """What fits: a metric that would pass the bound is left out whole, and counted."""
    kept: list[tuple[Metric, list[Child]]] = []
    series = left_out = 0
    for metric in reachable(snapshot.levels):
        children = children_of(metric, snapshot)
        more = len(children) * metric.series_per_child
        if series + more > MAX_SERIES:
            left_out += more
        else:
            series += more
            kept.append((metric, children))
    return Exported(kept, series, left_out)


def described(snapshot: Snapshot, overflows: dict[str, int], seconds: float) -> Snapshot:
    """The same with what it says of itself. `overflows`: by label; `seconds`: that it took."""
    found = exported(snapshot)
    values: dict[str, dict[Child, float]] = {
        "level_reached": {(level,): float(level in snapshot.levels) for level in Level},
        "coverage_ratio": _coverage(found),
        "exported_series": {(): found.series},
        "left_out_series": {(): found.left_out},
        "label_overflow_total": {(name,): count for name, count in overflows.items()},
        "snapshot_seconds": {(): seconds},
    }
    own = {PREFIX + name: children for name, children in values.items()}
    return msgspec.structs.replace(snapshot, values={**snapshot.values, **own})


def _coverage(found: Exported) -> dict[Child, float]:
    known = Counter(metric.family for metric in CATALOGUE)
    told = Counter(metric.family for metric, children in found.metrics if children)
    return {(family,): told[family] / known[family] for family in Family}
