"""The catalogue and a snapshot, rendered as Prometheus or OpenMetrics text at scrape time."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Exemplar as _Exemplar

from kvready.advisor.service.catalogue import by_name
from kvready.advisor.service.metric import Kind, Metric
from kvready.advisor.service.metrics_page import MetricsPage
from kvready.advisor.service.series import Child, exported
from kvready.advisor.service.snapshot import Exemplar, Histogram, Snapshot

TRACE_ID = "trace_id"  # as Grafana looks for it


class Exposition(MetricsPage):
    """Renders what `take` returns."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        super().__init__(lambda: iter(families(take())))


def families(snapshot: Snapshot) -> list[Family]:
    """Every metric that exists with the snapshot's taps, each child given or zero."""
    unknown = (set(snapshot.values) | set(snapshot.histograms)) - set(by_name())
    if unknown:
        raise KeyError(f"not in the catalogue: {sorted(unknown)}")
    return [_family(metric, children, snapshot) for metric, children in exported(snapshot).metrics]


def _family(metric: Metric, children: list[Child], snapshot: Snapshot) -> Family:
    names = [label.name for label in metric.labels]
    if metric.kind is Kind.HISTOGRAM:
        return _histogram(metric, names, children, snapshot)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=names)
    given = snapshot.values.get(metric.name, {})
    for child in children:
        family.add_metric([str(value) for value in child], given.get(child, 0.0))
    return family


def _histogram(
    metric: Metric, names: list[str], children: list[Child], snapshot: Snapshot
) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=names)
    given = snapshot.histograms.get(metric.name, {})
    bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    nothing = Histogram((0,) * len(bounds), 0.0)
    for child in children:
        histogram = given.get(child, nothing)
        exemplars = histogram.exemplars or (None,) * len(bounds)
        cumulative = 0
        buckets: list[tuple[str, float] | tuple[str, float, _Exemplar]] = []
        for bound, count, exemplar in zip(bounds, histogram.counts, exemplars, strict=True):
            cumulative += count
            if exemplar is None:
                buckets.append((bound, float(cumulative)))
            else:
                buckets.append((bound, float(cumulative), _exemplar(exemplar)))
        family.add_metric([str(value) for value in child], buckets, histogram.total)
    return family


def _exemplar(seen: Exemplar) -> _Exemplar:
    """Only OpenMetrics carries these; the plain format leaves them out."""
    labels = {"request_id": seen.request_id}
    if seen.trace_id:
        labels[TRACE_ID] = seen.trace_id
    return _Exemplar(labels, seen.value, seen.wall_seconds)
