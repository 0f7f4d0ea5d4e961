"""A page of metrics: bounded whatever comes, honest about its gaps, examples where allowed."""

from __future__ import annotations

import re

import pytest
from full_page import full_snapshot
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Exemplar as PrometheusExemplar
from story import Story

from kvready.advisor.bounded_names import OVERFLOW
from kvready.advisor.distribution import WAIT_BUCKETS, Distribution
from kvready.advisor.known_traces import MAX_TRACES, KnownTraces
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.service import series
from kvready.advisor.service.catalogue import CATALOGUE, MAX_SERIES, by_name, reachable
from kvready.advisor.service.exposition import Exposition, families
from kvready.advisor.service.metric import IDENTITY, PREFIX, Family
from kvready.advisor.service.series import described, exported
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.snapshot import (
    Exemplar,
    Histogram,
    Snapshot,
    histogram_of,
)
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.tap_labels import MAX_SHOWN_TAPS, TapLabels
from kvready.advisor.service_account import By
from kvready.advisor.settings import Settings
from kvready.collectors.collector import Coverage, Level, Stability
from kvready.collectors.records import Ingested, RequestReported, Surface, TapState

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TTFT = f"{PREFIX}ttft_by_class_seconds"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HOSTILE = ('"', "\\", "\n", '"} 1 # {a="b"} 2', "é" * 40, "\u2028")


def page(snapshot: Snapshot, accept: str = "") -> str:
    return Exposition(lambda: snapshot).render(accept)[0].decode()


@pytest.fixture
def sidecar(told_story: Story) -> Sidecar:
    tally = PairTally()
    for pair in told_story.pairs:
        tally(pair)
    day = Replayed("a story", "simulated", {})
    return Sidecar(Settings(), told_story.pipeline, tally, replayed=day)


def test_a_page_with_every_child_there_can_be_leaves_nothing_out() -> None:
    full = exported(full_snapshot())
    assert full.left_out == 0
    assert full.series <= MAX_SERIES
    assert [metric for metric, _ in full.metrics] == list(CATALOGUE)


def test_series_are_counted_as_a_scraper_counts_them() -> None:
    snapshot = full_snapshot()
    samples = sum(len(family.samples) for family in parse_text(page(snapshot)))
    assert samples == exported(snapshot).series


def test_what_would_pass_the_bound_is_left_out_whole_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = full_snapshot()
    whole = exported(snapshot)
    monkeypatch.setattr(series, "MAX_SERIES", whole.series // 2)
    told = described(snapshot, {}, 0.0)
    kept = exported(told)
    assert kept.series + kept.left_out == whole.series
    assert kept.series <= whole.series // 2
    assert told.values[f"{PREFIX}left_out_series"] == {(): kept.left_out}
    assert len(families(told)) == len(kept.metrics) < len(whole.metrics)
    own = [metric for metric in CATALOGUE if metric.family is Family.SELF]
    assert own == [metric for metric, _ in kept.metrics][: len(own)]  # they say what is missing


@pytest.mark.parametrize("accept", [OPENMETRICS, ""])
def test_examples_are_told_in_openmetrics_alone(sidecar: Sidecar, accept: str) -> None:
    text = page(sidecar._snapshot(), accept)
    assert bool(re.search(r"_bucket\{.*\} .* # \{request_id=\"r\d+\"\}", text)) is bool(accept)


def test_an_example_lies_in_its_bucket_and_names_a_request_of_the_day(sidecar: Sidecar) -> None:
    found = 0
    for family in parse_openmetrics(page(sidecar._snapshot(), OPENMETRICS)):
        below: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                continue
            child = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            bound = float(sample.labels["le"])
            if sample.exemplar is not None:
                found += 1
                assert re.fullmatch(r"r\d+", sample.exemplar.labels["request_id"])
                assert below.get(child, float("-inf")) < sample.exemplar.value <= bound
            below[child] = bound
    assert found > len(By)


def told_by(pipeline: Pipeline, *seen: tuple[float, str]) -> Histogram:
    """Waits of requests, each told at 1.5 s."""
    waits = Distribution(WAIT_BUCKETS)
    for value, request_id in seen:
        waits.add(value, request_id, 1.5)
    return histogram_of(waits, pipeline)


@pytest.mark.parametrize("request_id", [*HOSTILE, "x" * 79])
def test_an_id_that_a_scraper_might_stumble_over_makes_no_example(request_id: str) -> None:
    told = told_by(Pipeline(), (0.01, request_id), (0.2, "cmpl-a/b.c:0@x+y=z"))
    assert [one for one in told.exemplars if one] == [Exemplar(0.2, "cmpl-a/b.c:0@x+y=z", None)]
    assert sum(told.counts) == 2  # and is counted all the same


def exemplars_of(histogram: Histogram) -> list[PrometheusExemplar]:
    """As a scraper reads them."""
    snapshot = Snapshot(frozenset(Level), (), {}, {TTFT: {("untold",): histogram}})
    return [
        sample.exemplar
        for family in parse_openmetrics(page(snapshot, OPENMETRICS))
        for sample in family.samples
        if sample.exemplar is not None
    ]


@pytest.mark.parametrize("offset_seconds", [None, 100.0])
def test_an_example_carries_its_time_where_that_can_be_placed(offset_seconds: float | None) -> None:
    pipeline = Pipeline()
    if offset_seconds is not None:
        pipeline.outside.clock.observe(1.0, 1.0 + offset_seconds)
    [one] = exemplars_of(told_by(pipeline, (0.01, "r")))
    assert (one.labels, one.value) == ({"request_id": "r"}, 0.01)
    assert one.timestamp is None if offset_seconds is None else float(one.timestamp) == 101.5


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        ("", None),
        ("nonsense", None),
        (f"00-{TRACE[:-1]}-00f067aa0ba902b7-01", None),
        (f'00-{TRACE[:-1]}"-00f067aa0ba902b7-01', None),
    ],
)
def test_an_example_leads_to_its_trace_where_the_engines_span_told_of_one(
    traceparent: str, trace_id: str | None
) -> None:
    pipeline = Pipeline()
    report = RequestReported("cmpl-a-0", Surface.FRONTEND, traceparent=traceparent)
    pipeline.ingest(Ingested(1, 1.0, "spans", report))
    pipeline.outside.backcaster.tick(60.0, pipeline.outside.clock)
    [one] = exemplars_of(told_by(pipeline, (0.01, "cmpl-a-0-b673a854")))  # the scheduler's name
    expected = {"request_id": "cmpl-a-0-b673a854"}
    assert one.labels == expected | ({"trace_id": trace_id} if trace_id else {})


def test_the_longest_labels_of_an_example_fit_into_openmetrics() -> None:
    longest = Exemplar(0.01, "x" * 78, None, TRACE)
    none = (None,) * len(WAIT_BUCKETS)
    histogram = Histogram((1, *(0,) * len(WAIT_BUCKETS)), 0.01, (longest, *none))
    [one] = exemplars_of(histogram)
    assert sum(len(name) + len(value) for name, value in one.labels.items()) == 128


def test_only_the_latest_traces_are_remembered() -> None:
    traces = KnownTraces()
    for number in range(MAX_TRACES + 1):
        traceparent = f"00-{number + 1:032x}-00f067aa0ba902b7-01"
        traces.report(RequestReported(f"r{number}", Surface.FRONTEND, traceparent=traceparent))
    assert traces.of("r0") == ""
    assert traces.of(f"r{MAX_TRACES}") == f"{MAX_TRACES + 1:032x}"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_class_is_one_label_and_no_more(name: str) -> None:
    snapshot = Snapshot(
        frozenset(Level), (), {f"{PREFIX}served_requests_total": {(name, "good"): 3.0}},
        classes=(name,),
    )  # fmt: skip
    for accept, parse in ((OPENMETRICS, parse_openmetrics), ("", parse_text)):
        found = [
            sample.value
            for family in parse(page(snapshot, accept))
            for sample in family.samples
            if sample.labels.get("class") == name and sample.labels.get("served") == "good"
        ]
        assert found == [3.0]


def coverage_of(tap: str, **told: object) -> Coverage:
    fresh = {
        "level": Level.KV_EVENTS, "state": TapState.LIVE, "stability": Stability.STABLE,
        "records": 0, "messages": 0, "gaps": 0, "decode_errors": 0, "dropped": 0,
        "last_received_seconds": None,
    }  # fmt: skip
    return Coverage(tap, **{**fresh, **told})  # type: ignore[arg-type]


def test_taps_beyond_the_first_are_counted_together() -> None:
    taps = [f"tap-{number}" for number in range(MAX_SHOWN_TAPS + 3)]
    labels = TapLabels(taps)
    assert labels.labels == (*taps[:MAX_SHOWN_TAPS], OVERFLOW)
    assert labels.overflowed == 3
    counts = labels.sums((tap, 2.0) for tap in taps)
    assert counts[(taps[0],)] == 2.0
    assert counts[(OVERFLOW,)] == 6.0
    assert labels.longest((tap, float(place)) for place, tap in enumerate(taps)) == {
        (tap if place < MAX_SHOWN_TAPS else OVERFLOW,): float(place)
        for place, tap in enumerate(taps)
    }
    states = labels.states(
        [coverage_of(tap, state=TapState.SILENT if tap == taps[-1] else TapState.LIVE)
         for tap in taps]
    )  # fmt: skip
    assert states[OVERFLOW, TapState.SILENT] == states[OVERFLOW, TapState.LIVE] == 1.0


@pytest.mark.parametrize("level", list(Level))
def test_a_level_says_what_it_cannot_see(level: Level) -> None:
    told = described(Snapshot(frozenset({level}), ("a",), {}), {}, 0.0)
    assert told.values[f"{PREFIX}level_reached"] == {(one,): float(one is level) for one in Level}
    ratios = told.values[f"{PREFIX}coverage_ratio"]
    assert set(ratios) == {(family,) for family in Family}
    present = exported(told).metrics
    for family in Family:
        known = [metric for metric in CATALOGUE if metric.family is family]
        seen = [metric for metric, children in present if metric.family is family and children]
        assert ratios[(family,)] == len(seen) / len(known)
    if level is not Level.OBSERVER:
        assert ratios[(Family.MOVEMENT,)] == 0.0


def test_a_page_counts_its_own_series(sidecar: Sidecar) -> None:
    snapshot = sidecar._snapshot()
    samples = sum(len(family.samples) for family in parse_text(page(snapshot)))
    assert snapshot.values[f"{PREFIX}exported_series"] == {(): samples}


def test_every_level_zero_initialises_what_it_can_know() -> None:
    taps = ("a",)
    for level in Level:
        snapshot = Snapshot(frozenset({level}), taps, {})
        for metric, children in exported(snapshot).metrics:
            if not metric.sparse and not metric.is_identity:
                assert children == metric.children(taps), metric.name
            else:
                assert children == []
        assert len(exported(snapshot).metrics) == len(reachable({level}))


def test_labels_have_closed_sets_or_bounded_ones() -> None:
    for metric in by_name().values():
        for label in metric.labels:
            assert label.source in ("closed", "configured", "bounded", IDENTITY), metric.name
            if label.source in ("closed", "bounded"):
                assert label.values, metric.name
