"""OTLP carries exactly what `/metrics` shows: each metric of the catalogue, each value."""

from __future__ import annotations

import re

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Exported
from opentelemetry.sdk.resources import Resource
from otel_collector import attributes, metrics_of
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from story import Story

from kvready.advisor.service.catalogue import CATALOGUE, by_name
from kvready.advisor.service.exposition import Exposition, families
from kvready.advisor.service.metric import Kind
from kvready.advisor.service.otel_genai import ALIASES, aliases
from kvready.advisor.service.otel_links import EngineTraces
from kvready.advisor.service.otel_metrics import Instruments
from kvready.advisor.service.otel_names import otel_name, otel_unit
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.snapshot import Exemplar, Histogram, Snapshot
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import Settings
from kvready.collectors.collector import Level

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

# What OpenTelemetry asks of a name and of a unit.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,254}")
UNIT = re.compile(r"[\x21-\x7e]{0,63}")
# What a Collector appends for a unit when it hands a metric on to Prometheus.
WORDS = {"s": "seconds", "By": "bytes"}


def prometheus_name(name: str, unit: str, is_counter: bool, is_gauge: bool) -> str:
    """The name under which a Collector hands a metric on, as its translation defines it."""
    parts = re.split(r"[^A-Za-z0-9]+", name)
    if unit in WORDS and WORDS[unit] not in parts:
        parts.append(WORDS[unit])
    if is_counter:
        parts = [part for part in parts if part != "total"] + ["total"]
    if unit == "1" and is_gauge:
        parts = [part for part in parts if part != "ratio"] + ["ratio"]
    return "_".join(parts)


def scraped(snapshot: Snapshot) -> Series:
    """Every series as a scraper reads it."""
    body, _ = Exposition(lambda: snapshot).render("")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def pushed(instruments: Instruments, snapshot: Snapshot) -> tuple[Series, list[Exported]]:
    """The same, from what leaves over OTLP, under the names that a Collector gives them."""
    data = instruments.collect(families(snapshot))
    assert data is not None
    metrics = metrics_of(encode_metrics(data))
    series: Series = {}

    def keep(name: str, labels: dict[str, object], value: float) -> None:
        key = name, tuple(sorted((one, str(text)) for one, text in labels.items()))
        assert key not in series
        series[key] = value

    for metric in metrics:
        if metric.name in ALIASES:
            continue  # tested below
        kind = metric.WhichOneof("data")
        name = prometheus_name(metric.name, metric.unit, kind == "sum", kind == "gauge")
        for point in getattr(metric, str(kind)).data_points:
            labels = attributes(point.attributes)
            if kind != "histogram":
                keep(name, labels, point.as_double)
                continue
            running = 0
            for bound, count in zip(
                [*point.explicit_bounds, "+Inf"], point.bucket_counts, strict=True
            ):
                running += count
                text = bound if isinstance(bound, str) else f"{bound:g}"
                keep(f"{name}_bucket", labels | {"le": text}, running)
            assert point.count == running
            keep(f"{name}_count", labels, point.count)
            keep(f"{name}_sum", labels, point.sum)
            assert not point.HasField("min")
            assert not point.HasField("max")
    return series, metrics


def same_bounds(series: Series) -> Series:
    """With bounds as numbers, since `1` and `1.0` are one."""
    return {
        (name, tuple((k, str(float(v)) if k == "le" else v) for k, v in labels)): value
        for (name, labels), value in series.items()
    }


@pytest.fixture
def instruments():
    made = Instruments(Resource({}))
    yield made
    made.close()


@pytest.fixture
def snapshot(told_story: Story) -> Snapshot:
    tally = PairTally()
    for pair in told_story.pairs:
        tally(pair)
    taken = Sidecar(Settings(), told_story.pipeline, tally)._snapshot()
    return msgspec.structs.replace(taken, levels=frozenset(Level), taps=("a", "b"))


def test_each_value_that_a_scraper_reads_leaves_over_otlp(instruments, snapshot) -> None:
    expected = scraped(snapshot)
    found, _ = pushed(instruments, snapshot)
    assert len(expected) > 500
    assert same_bounds(found) == same_bounds(expected)


def test_a_value_that_is_unknown_now_is_not_sent_as_it_was_before(instruments, snapshot) -> None:
    everything, _ = pushed(instruments, snapshot)
    names = {name for name, _ in everything}
    bare = Snapshot(levels=snapshot.levels, taps=snapshot.taps, values={})
    found, _ = pushed(instruments, bare)
    assert same_bounds(found) == same_bounds(scraped(bare))
    assert {name for name, _ in found} < names


@pytest.mark.parametrize("level", list(Level))
def test_each_level_exports_what_it_shows(instruments, level: Level) -> None:
    bare = Snapshot(levels=frozenset({level}), taps=("a", "b"), values={})
    found, _ = pushed(instruments, bare)
    assert same_bounds(found) == same_bounds(scraped(bare))


def test_no_metric_of_the_catalogue_is_left_out_or_told_otherwise(instruments, snapshot) -> None:
    _, metrics = pushed(instruments, snapshot)
    sent = {metric.name: metric for metric in metrics if metric.name not in ALIASES}
    for metric in CATALOGUE:
        told = sent.pop(otel_name(metric), None)
        if told is None:  # absent here while its value is unknown
            assert metric.sparse or metric.is_identity, metric.name
            continue
        kind = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}[metric.kind]
        assert told.WhichOneof("data") == kind
        assert told.unit == otel_unit(metric)
        assert told.description == metric.help
        if kind != "gauge":
            data = getattr(told, kind)
            cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            assert data.aggregation_temporality == cumulative
            assert all(0 < p.start_time_unix_nano <= p.time_unix_nano for p in data.data_points)
        if kind == "sum":
            assert told.sum.is_monotonic
    assert not sent, "not in the catalogue"


def test_a_collector_hands_every_metric_on_under_the_name_that_a_scraper_reads() -> None:
    for metric in CATALOGUE:
        name, unit = otel_name(metric), otel_unit(metric)
        assert NAME.fullmatch(name)
        assert UNIT.fullmatch(unit)
        is_counter, is_gauge = metric.kind is Kind.COUNTER, metric.kind is Kind.GAUGE
        assert prometheus_name(name, unit, is_counter, is_gauge) == metric.name
    assert len({otel_name(metric) for metric in CATALOGUE}) == len(by_name())


def alias(metrics: list[Exported]) -> Exported | None:
    found = [metric for metric in metrics if metric.name == "gen_ai.server.time_to_first_token"]
    return found[0] if found else None


def test_time_to_first_token_is_told_under_the_name_of_the_conventions_too(
    instruments, snapshot, told_story: Story
) -> None:
    series, metrics = pushed(instruments, snapshot)
    told = alias(metrics)
    assert told is not None
    (point,) = told.histogram.data_points
    assert told.unit == "s"
    assert point.count == sum(point.bucket_counts) == told_story.pipeline.totals.first_tokens > 0
    summed = [v for (name, _), v in series.items() if name == "kvready_ttft_by_state_seconds_sum"]
    assert point.sum == pytest.approx(sum(summed))
    engine = told_story.pipeline.engine
    assert attributes(point.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": engine.engine,
        "gen_ai.request.model": engine.model,
    }


def test_what_reports_tell_stands_in_where_no_observer_does(instruments, snapshot) -> None:
    reports = frozenset({Level.REQUESTS})
    info = snapshot.values["kvready_engine_info"]
    name = "kvready_reported_ttft_seconds"
    (blank,) = snapshot.histograms[name].values()
    counts = (3, *blank.counts[1:])
    told = msgspec.structs.replace(blank, counts=counts, total=0.5)
    below = msgspec.structs.replace(
        snapshot,
        levels=reports,
        values={"kvready_engine_info": info},
        histograms={name: {(): told}},
    )
    _, metrics = pushed(instruments, below)
    assert alias(metrics) is None, "whose it is was not told"
    points = {name: instruments._points(by_name()[name])}
    (made,) = aliases(points, [Sample("kvready_engine_info", {"engine": "e", "model": "m"}, 1.0)])
    assert (made.data.data_points[0].count, made.data.data_points[0].sum) == (3, 0.5)


def test_exemplars_carry_the_trace_that_the_engine_told_of(snapshot) -> None:
    name = "kvready_ttft_by_state_seconds"
    traces = EngineTraces()
    traces.told("cmpl-a-0", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    child, blank = next(iter(snapshot.histograms[name].items()))
    seen = [Exemplar(0.25, "cmpl-a-0-b673a854", 1_700_000_000.0), Exemplar(0.5, "other", None)]
    exemplars = (*seen, *[None] * (len(blank.counts) - 2))
    counts = (1, 1, *[0] * (len(blank.counts) - 2))
    histogram = Histogram(counts, 0.75, exemplars)
    marked = msgspec.structs.replace(snapshot, histograms={name: {child: histogram}})
    made = Instruments(Resource({}), traces)
    _, metrics = pushed(made, marked)
    made.close()
    (metric,) = (one for one in metrics if one.name == "kvready.ttft_by_state_seconds")
    known, other = (e for point in metric.histogram.data_points for e in point.exemplars)
    assert known.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert known.span_id.hex() == "b7ad6b7169203331"
    assert (known.as_double, known.time_unix_nano) == (0.25, 1_700_000_000 * 10**9)
    assert attributes(known.filtered_attributes) == {"request_id": "cmpl-a-0-b673a854"}
    assert other.trace_id == b""
