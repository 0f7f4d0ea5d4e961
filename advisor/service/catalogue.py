"""The one catalogue of metrics: what is exported, in which unit, with which labels, at which level.

Names follow Prometheus: one prefix, base units, `_total` for counters. Label values come from
closed sets (`closed`), from the configuration (`configured`), or are the first few that traffic
brings with one value for all others (`bounded`); nothing that traffic can grow without end.
A metric of a level that no tap reaches is absent rather than zero: unknown is not zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kvready.advisor.service.catalogue_capacity import CAPACITY
from kvready.advisor.service.catalogue_movement import MOVEMENT
from kvready.advisor.service.catalogue_otel import OTEL
from kvready.advisor.service.catalogue_policy import POLICIES
from kvready.advisor.service.catalogue_prediction import PREDICTION
from kvready.advisor.service.catalogue_self import SELF
from kvready.advisor.service.catalogue_service import SERVICE
from kvready.advisor.service.metric import Family, Metric
from kvready.collectors.collector import Level

# The sidecar's own first: they are never among those left out for the bound on series.
FAMILIES: dict[Family, tuple[Metric, ...]] = {
    Family.SELF: SELF + OTEL,
    Family.SERVICE: SERVICE,
    Family.MOVEMENT: MOVEMENT,
    Family.CAPACITY: CAPACITY,
    Family.PREDICTION: PREDICTION,
    Family.POLICY: POLICIES,
}
CATALOGUE: tuple[Metric, ...] = tuple(
    msgspec.structs.replace(metric, family=family)
    for family, metrics in FAMILIES.items()
    for metric in metrics
)
MAX_SERIES = 2_000  # of one page


def reachable(levels: Collection[Level]) -> tuple[Metric, ...]:
    """The metrics that exist when there are taps of these levels."""
    return tuple(metric for metric in CATALOGUE if metric.level is None or metric.level in levels)


def by_name() -> Mapping[str, Metric]:
    """The catalogue keyed by name."""
    return {metric.name: metric for metric in CATALOGUE}
