"""The catalogue and a snapshot, rendered as Prometheus or OpenMetrics text at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from kvready.advisor.service.catalogue import by_name, reachable
from kvready.advisor.service.metric import Kind, Metric
from kvready.advisor.service.snapshot import Snapshot


class Exposition:
    """Renders what `take` returns. Nothing is kept between scrapes."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> Iterator[Family]:
        """Nothing: the names come from the catalogue, whose uniqueness a test checks."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """All families of one moment."""
        return iter(families(self._take()))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, as the scraper's Accept header asks."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type


def families(snapshot: Snapshot) -> list[Family]:
    """Every metric that exists with the snapshot's taps, each child given or zero."""
    unknown = (set(snapshot.values) | set(snapshot.histograms)) - set(by_name())
    if unknown:
        raise KeyError(f"not in the catalogue: {sorted(unknown)}")
    return [_family(metric, snapshot) for metric in reachable(snapshot.levels)]


def _family(metric: Metric, snapshot: Snapshot) -> Family:
    names = [label.name for label in metric.labels]
    if metric.kind is Kind.HISTOGRAM:
        return _histogram(metric, names, snapshot)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=names)
    given = snapshot.values.get(metric.name, {})
    children = metric.children(snapshot.taps)
    if not metric.is_identity and not set(given) <= set(children):
        raise KeyError(f"{metric.name}: labels beyond the catalogue: {set(given) - set(children)}")
    absent_when_unknown = metric.sparse or metric.is_identity
    for child in given if absent_when_unknown else children:
        family.add_metric([str(value) for value in child], given.get(child, 0.0))
    return family


def _histogram(metric: Metric, names: list[str], snapshot: Snapshot) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=names)
    given = snapshot.histograms.get(metric.name, {})
    bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    for child in metric.children(snapshot.taps):
        histogram = given.get(child)
        counts = histogram.counts if histogram else (0,) * len(bounds)
        cumulative, buckets = 0, []
        for bound, count in zip(bounds, counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        family.add_metric(
            [str(value) for value in child], buckets, histogram.total if histogram else 0.0
        )
    return family
