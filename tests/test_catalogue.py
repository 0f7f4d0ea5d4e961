"""What is exported is exactly what the catalogue says, at every level, and all of it documented."""

from __future__ import annotations

import re

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from story import Story

from kvready.advisor.service.catalogue import (
    CATALOGUE,
    MAX_SERIES,
    reachable,
)
from kvready.advisor.service.exposition import Exposition, families
from kvready.advisor.service.metric import PREFIX, Kind, Metric
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.snapshot import Snapshot
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.tap_labels import TapLabels
from kvready.advisor.service_account import MAX_CLASSES
from kvready.advisor.settings import Settings
from kvready.collectors.collector import Level

UNITS = {"seconds", "bytes", "ratio"}


def exported(snapshot: Snapshot) -> dict[str, set[tuple[tuple[str, str], ...]]]:
    """Names and label sets as a scraper reads them."""
    body, _ = Exposition(lambda: snapshot).render("")
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for family in parse_text(body.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.documentation
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "le"}
            found.setdefault(name, set()).add(tuple(sorted(labels.items())))
    return found


def expected(metric: Metric, taps: tuple[str, ...]) -> set[tuple[tuple[str, str], ...]]:
    names = [label.name for label in metric.labels]
    return {
        tuple(sorted(zip(names, map(str, child), strict=True))) for child in metric.children(taps)
    }


@pytest.mark.parametrize("level", list(Level))
def test_each_level_exports_exactly_its_metrics_zero_initialised(level: Level) -> None:
    taps = ("a", "b")
    found = exported(Snapshot(levels=frozenset({level}), taps=taps, values={}))
    complete = [m for m in reachable({level}) if not (m.sparse or m.is_identity)]
    assert set(found) == {metric.name for metric in complete}
    for metric in complete:
        assert found[metric.name] == expected(metric, taps), metric.name


def test_a_level_below_the_observer_says_nothing_of_requests() -> None:
    names = {metric.name for metric in reachable({Level.KV_EVENTS})}
    assert f"{PREFIX}inventory_blocks" in names
    assert not any("request" in name or "forecast" in name for name in names)


@pytest.fixture
def sidecar(told_story: Story) -> Sidecar:
    tally = PairTally()
    for pair in told_story.pairs:
        tally(pair)
    return Sidecar(Settings(), told_story.pipeline, tally)


def test_a_real_pipeline_fills_every_metric_of_the_catalogue(sidecar: Sidecar) -> None:
    snapshot = sidecar._snapshot()
    assert set(snapshot.values) | set(snapshot.histograms) == {m.name for m in CATALOGUE}
    assert len(families(snapshot)) == len(reachable(snapshot.levels))


def test_the_histogram_counts_each_paired_forecast_once(
    sidecar: Sidecar, told_story: Story
) -> None:
    snapshot = sidecar._snapshot()
    paired = snapshot.values[f"{PREFIX}forecasts_total"]
    for (target,), histogram in snapshot.histograms[f"{PREFIX}forecast_error_ratio"].items():
        assert sum(histogram.counts) == paired[target, "paired"]
        inside = snapshot.values[f"{PREFIX}forecast_interval_total"]
        assert sum(v for (t, _), v in inside.items() if t == target) == paired[target, "paired"]
    assert sum(paired.values()) == len(told_story.pairs) > 0


def test_under_and_over_explain_the_difference_of_predicted_and_observed(sidecar: Sidecar) -> None:
    values = sidecar._snapshot().values
    for target, observed in values[f"{PREFIX}forecast_observed_seconds_total"].items():
        error = observed - values[f"{PREFIX}forecast_predicted_seconds_total"][target]
        under = values[f"{PREFIX}forecast_under_seconds_total"][target]
        over = values[f"{PREFIX}forecast_over_seconds_total"][target]
        assert error == pytest.approx(under - over)


def test_prompt_sources_add_up_to_the_prompt(sidecar: Sidecar) -> None:
    values = sidecar._snapshot().values
    total = values[f"{PREFIX}prompt_tokens_total"][()]
    assert total == sum(values[f"{PREFIX}prompt_source_tokens_total"].values()) > 0


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "*/*", ""])
def test_the_format_follows_what_the_scraper_accepts(accept: str) -> None:
    snapshot = Snapshot(levels=frozenset(Level), taps=("a",), values={})
    body, kind = Exposition(lambda: snapshot).render(accept)
    is_openmetrics = "openmetrics" in accept
    assert ("openmetrics" in kind) is is_openmetrics
    parse = parse_openmetrics if is_openmetrics else parse_text
    assert len(list(parse(body.decode()))) == len(reachable(Level))


@pytest.mark.parametrize(
    "values",
    [{f"{PREFIX}unheard_of": {(): 1.0}}, {f"{PREFIX}requests_total": {("vanished",): 1.0}}],
    ids=["name", "label value"],
)
def test_nothing_beyond_the_catalogue_can_be_exported(values) -> None:
    with pytest.raises(KeyError, match=r"catalogue"):
        families(Snapshot(levels=frozenset(Level), taps=(), values=values))


def test_names_follow_prometheus() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert re.fullmatch(PREFIX + r"[a-z][a-z_]*[a-z]", metric.name), metric.name
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER), metric.name
        if metric.unit in UNITS:
            assert metric.unit in metric.name.split("_"), metric.name
        assert metric.help.endswith("."), metric.name
        for label in metric.labels:
            assert label.values or label.source != "closed", metric.name
            assert label.name not in ("request", "request_id", "le", "tenant"), metric.name


def test_no_traffic_and_no_number_of_taps_can_make_more_series_than_the_bound() -> None:
    taps = TapLabels(f"tap-{number}" for number in range(200)).labels
    classes = tuple(f"class-{number}" for number in range(MAX_CLASSES))
    series = 0
    for metric in CATALOGUE:
        children = 1 if metric.is_identity else len(metric.children(taps, classes))
        series += children * metric.series_per_child
    assert series <= MAX_SERIES
