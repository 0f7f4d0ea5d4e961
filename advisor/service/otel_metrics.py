"""The catalogue as observable instruments: what `/metrics` shows, in OpenTelemetry's terms.

Names, labels and values come from the families that the exposition renders, so that neither way
can show what the other does not. The SDK has no observable histogram: histograms join the points
that it collected, as explicit buckets with running totals, before they are exported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import Exemplar, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    InMemoryMetricReader,
    MetricsData,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from kvready.advisor.service.catalogue import CATALOGUE
from kvready.advisor.service.exposition import TRACE_ID
from kvready.advisor.service.metric import Kind, Metric
from kvready.advisor.service.otel_genai import ENGINE_INFO, aliases
from kvready.advisor.service.otel_links import EngineTraces
from kvready.advisor.service.otel_names import otel_name, otel_unit
from kvready.advisor.version import VERSION

SCOPE = "kvready"
BUCKET, SUM, BOUND = "_bucket", "_sum", "le"
INFINITY = "+Inf"

Callback = Callable[[CallbackOptions], Iterable[Observation]]


class Instruments:
    """One for each metric of the catalogue. `collect` from one thread."""

    def __init__(
        self,
        resource: Resource,
        traces: EngineTraces | None = None,
        catalogue: Sequence[Metric] = CATALOGUE,
    ) -> None:
        """`traces`: of the engine, for exemplars; None: nobody tells of them."""
        self._traces = traces
        self._samples: dict[str, list[Sample]] = {}  # of the collection under way
        self._start_nanoseconds = time.time_ns()
        self._histograms = [metric for metric in catalogue if metric.kind is Kind.HISTOGRAM]
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter(SCOPE, VERSION)
        for metric in catalogue:
            if metric.kind is not Kind.HISTOGRAM:
                self._observe(meter, metric)

    def collect(self, families: Iterable[Family]) -> MetricsData | None:
        """All points of one moment; None where there are none at all."""
        self._samples = {}
        for family in families:
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)
        collected = self._reader.get_metrics_data()
        return None if collected is None else self._with_histograms(collected)

    def close(self) -> None:
        """Let go of the SDK's parts."""
        self._provider.shutdown()

    def _observe(self, meter: Meter, metric: Metric) -> None:
        make = (
            meter.create_observable_counter
            if metric.kind is Kind.COUNTER
            else meter.create_observable_gauge
        )

        def observed(options: CallbackOptions) -> Iterable[Observation]:
            for sample in self._samples.get(metric.name, ()):
                yield Observation(float(sample.value), sample.labels)

        make(otel_name(metric), [observed], otel_unit(metric), metric.help)

    def _with_histograms(self, collected: MetricsData) -> MetricsData:
        """The SDK collects one resource with one scope, since there is one meter."""
        (resource,) = collected.resource_metrics
        (scope,) = resource.scope_metrics
        points = {metric.name: self._points(metric) for metric in self._histograms}
        found = [
            MetricData(
                otel_name(metric),
                metric.help,
                otel_unit(metric),
                HistogramData(points[metric.name], AggregationTemporality.CUMULATIVE),
            )
            for metric in self._histograms
            if points[metric.name]
        ]
        found += aliases(points, self._samples.get(ENGINE_INFO, ()))
        whole = replace(scope, metrics=[*scope.metrics, *found])
        return MetricsData([replace(resource, scope_metrics=[whole])])

    def _points(self, metric: Metric) -> list[HistogramDataPoint]:
        """One for each child; none where the metric is absent."""
        children: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
        for sample in self._samples.get(metric.name + BUCKET, ()):
            labels = {name: value for name, value in sample.labels.items() if name != BOUND}
            children.setdefault(tuple(labels.items()), []).append(sample)
        totals = self._samples.get(metric.name + SUM, ())
        sums = {tuple(one.labels.items()): one.value for one in totals}
        return [
            self._point(dict(labels), buckets, sums[labels]) for labels, buckets in children.items()
        ]

    def _point(
        self, labels: dict[str, str], buckets: Sequence[Sample], total: float
    ) -> HistogramDataPoint:
        running = [0, *(int(one.value) for one in buckets)]  # the exposition's buckets add up
        bounds = [one.labels[BOUND] for one in buckets]
        return HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=self._start_nanoseconds,
            time_unix_nano=time.time_ns(),
            count=running[-1],
            sum=float(total),
            bucket_counts=[after - before for before, after in pairwise(running)],
            explicit_bounds=[float(bound) for bound in bounds if bound != INFINITY],
            # Nobody kept them; the encoder leaves them out.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
            exemplars=[one for sample in buckets if (one := self._exemplar(sample)) is not None],
        )

    def _exemplar(self, sample: Sample) -> Exemplar | None:
        """A request that fell into this bucket, with its trace where the engine told of it."""
        seen = sample.exemplar
        if seen is None:
            return None
        span = self._traces.span_of(seen.labels.get("request_id", "")) if self._traces else None
        return Exemplar(
            filtered_attributes={k: v for k, v in seen.labels.items() if k != TRACE_ID},
            value=float(seen.value),
            time_unix_nano=int(float(seen.timestamp or 0.0) * 1e9),
            span_id=span.span_id if span else None,
            trace_id=span.trace_id if span else None,
        )
