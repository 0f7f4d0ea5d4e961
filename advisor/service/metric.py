"""What a metric is: name, kind, unit, meaning, and labels from closed sets."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import product

import msgspec

from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.collectors.collector import Level

PREFIX = "kvready_"
CONFIGURED = "configured"  # one value per configured tap
IDENTITY = "identity"  # one child in all, whose labels say what something is


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


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

    def children(self, taps: Iterable[str]) -> list[tuple[str, ...]]:
        """Every combination of label values, given the configured taps."""
        columns = [
            tuple(taps) if label.source == CONFIGURED else label.values for label in self.labels
        ]
        return list(product(*columns))

    @property
    def is_identity(self) -> bool:
        """Whether its labels say what something is, in a single child."""
        return any(label.source == IDENTITY for label in self.labels)


def counter(name: str, unit: str, text: str, *labels: Label, level: Level | None = None) -> Metric:
    """One that only rises."""
    return Metric(f"{PREFIX}{name}", Kind.COUNTER, unit, text, labels, level)


def gauge(
    name: str,
    unit: str,
    text: str,
    *labels: Label,
    level: Level | None = None,
    sparse: bool = False,
) -> Metric:
    """One that goes up and down."""
    return Metric(f"{PREFIX}{name}", Kind.GAUGE, unit, text, labels, level, sparse=sparse)


TARGET = Label("target", tuple(Target))
POLICY = Label("policy", tuple(Policy))
