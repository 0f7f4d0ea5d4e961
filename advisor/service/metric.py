"""What a metric is: name, kind, unit, meaning, and labels from closed or bounded sets."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from itertools import product

import msgspec

from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.collectors.collector import Level

PREFIX = "kvready_"
CONFIGURED = "configured"  # one value per configured tap
BOUNDED = "bounded"  # those named, and a few that traffic brings
IDENTITY = "identity"  # one child in all, whose labels say what something is


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(StrEnum):
    """What a metric tells of."""

    CAPACITY = "capacity"
    MOVEMENT = "movement"
    SERVICE = "service"
    PREDICTION = "prediction"
    POLICY = "policy"
    SELF = "self"


class Label(msgspec.Struct, frozen=True):
    """A label with all values that it can have, or where they come from."""

    name: str
    values: tuple[str, ...] = ()
    source: str = "closed"


class Metric(msgspec.Struct, frozen=True):
    """One metric. `level` None: the sidecar's own, always there."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[Label, ...] = ()
    level: Level | None = None
    buckets: tuple[float, ...] = ()
    sparse: bool = False  # a child is absent while its value is unknown
    family: Family = Family.SELF

    def children(self, taps: Iterable[str], classes: Iterable[str] = ()) -> list[tuple[str, ...]]:
        """Every combination of label values, given the taps and the classes that came."""
        return list(combinations(self.labels, tuple(taps), tuple(classes)))

    @property
    def is_identity(self) -> bool:
        """Whether its labels say what something is, in a single child."""
        return any(label.source == IDENTITY for label in self.labels)

    @property
    def series_per_child(self) -> int:
        """Series that one child takes: a histogram's buckets, +Inf, sum and count."""
        return len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1


@lru_cache(maxsize=1_024)
def combinations(
    labels: tuple[Label, ...], taps: tuple[str, ...], classes: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    """Every combination of these labels' values. The same at each scrape, so it is kept."""
    columns = []
    for label in labels:
        if label.source == CONFIGURED:
            columns.append(taps)
        elif label.source == BOUNDED:
            columns.append((*label.values, *classes))
        else:
            columns.append(label.values)
    return tuple(product(*columns))


def counter(name: str, unit: str, text: str, *labels: Label) -> Metric:
    """One that only rises."""
    return Metric(f"{PREFIX}{name}", Kind.COUNTER, unit, text, labels)


def gauge(name: str, unit: str, text: str, *labels: Label, sparse: bool = False) -> Metric:
    """One that goes up and down."""
    return Metric(f"{PREFIX}{name}", Kind.GAUGE, unit, text, labels, sparse=sparse)


def histogram(
    name: str, unit: str, text: str, buckets: tuple[float, ...], *labels: Label
) -> Metric:
    """One that counts values by size."""
    return Metric(f"{PREFIX}{name}", Kind.HISTOGRAM, unit, text, labels, buckets=buckets)


def at(level: Level | None, *metrics: Metric) -> tuple[Metric, ...]:
    """These exist where a tap reaches this level."""
    return tuple(msgspec.structs.replace(metric, level=level) for metric in metrics)


def identity(*names: str) -> tuple[Label, ...]:
    """Labels that say what something is."""
    return tuple(Label(name, source=IDENTITY) for name in names)


TARGET = Label("target", tuple(Target))
POLICY = Label("policy", tuple(Policy))
BOUNDS = ("low", "middle", "high")
