"""Pages of /metrics read as the reference parser reads them, and meant as their version means."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_pages import OFFLOAD, PLAIN, with_ranks, without
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.parser import text_string_to_metric_families as reference

from kvready.collectors.counter_hazards import COUNTER_HAZARDS, parse_version, refusal, version_text
from kvready.collectors.metrics_page import FetchStage, Refused, known, read_page
from kvready.collectors.prometheus_text import MAX_SAMPLES, read_samples
from kvready.collectors.records import Tier


def _as_set(samples) -> Counter:
    return Counter((s.name, tuple(sorted(s.labels.items())), s.value) for s in samples)


@pytest.mark.parametrize("page", [PLAIN, OFFLOAD], ids=["plain", "offload"])
def test_a_real_page_is_read_as_the_reference_parser_reads_it(page: str) -> None:
    read = read_samples(page, ("vllm:",))
    wanted = (s for family in reference(page) for s in family.samples if s.name.startswith("vllm:"))
    assert _as_set(read.samples) == _as_set(wanted)
    assert read.malformed == 0
    assert not read.truncated


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.floats(0, 1e18))
def test_any_label_value_survives(value: str, amount: float) -> None:
    registry = CollectorRegistry()
    PrometheusCounter("hits", "h", ["why"], registry=registry).labels(value).inc(amount)
    (sample,) = read_samples(generate_latest(registry).decode(), ("hits_total",)).samples
    assert sample == ("hits_total", {"why": value}, amount)


@given(st.text(max_size=200))
def test_nothing_that_arrives_raises(text: str) -> None:
    read_page(text, None)
    read_page(f"vllm:{text}", text)


def test_a_line_that_cannot_be_read_is_counted_and_spoils_no_other() -> None:
    read = read_samples('a{b="c 1\na 2\na{b="}"} 3\na x\n', ("a",))
    assert [sample.value for sample in read.samples] == [2, 3]
    assert read.malformed == 2


def test_a_page_without_end_is_cut() -> None:
    read = read_samples("a 1\n" * (MAX_SAMPLES + 2), ("a",))
    assert read.truncated
    assert len(read.samples) == MAX_SAMPLES


def test_hits_by_tier_are_the_engine_s_own_and_make_up_the_prompt() -> None:
    engine = read_page(OFFLOAD, "0.32.0").engines[0]
    assert engine.hit_tokens[Tier.HBM] == 18_720
    assert engine.hit_tokens[Tier.HOST] == 12_928
    assert engine.computed_tokens == 9_766
    hits = known(engine.hit_tokens.values())
    assert hits is not None
    assert hits + engine.computed_tokens == engine.prompt_tokens
    assert engine.load_bytes == 6_619_136
    assert engine.fetching == dict.fromkeys(FetchStage, 0.0)
    assert engine.ttft_seconds is not None
    assert engine.ttft_seconds.count == 44
    assert engine.queue_seconds is not None
    assert engine.queue_seconds.bounds[0] == 0.3
    assert engine.cache is not None
    assert (engine.cache.block_tokens, engine.cache.prefix_caching) == (32, True)


def test_what_is_not_on_the_page_is_unknown_and_not_zero() -> None:
    engine = read_page(without(OFFLOAD, "kv_offload", "by_stage", "by_source"), "0.32.0").engines[0]
    assert engine.load_bytes is None
    assert engine.fetching is None
    assert engine.computed_tokens is None
    assert engine.block_lifetime_seconds is None


def test_a_direction_that_has_not_copied_yet_is_zero_beside_one_that_has() -> None:
    engine = read_page(without(OFFLOAD, "kv_offload_load"), "0.32.0").engines[0]
    assert (engine.load_bytes, engine.load_seconds) == (0, 0)
    assert engine.store_bytes == 4_636_672


def test_without_tiers_the_connector_s_hits_have_no_place() -> None:
    engine = read_page(without(OFFLOAD, "cached_by_source"), "0.24.0").engines[0]
    assert engine.hit_tokens == {Tier.HBM: 18_720}
    assert engine.unplaced_hit_tokens == 12_928


@pytest.mark.parametrize("version", ["0.11.2", "0.20.0", "0.28.1", None, "dev"])
def test_a_counter_that_the_version_gets_wrong_is_refused_with_the_reason(version) -> None:
    page = read_page(without(OFFLOAD, "by_source"), version)
    reading = page.engines[0].hit_tokens[Tier.HBM]
    assert isinstance(reading, Refused)
    assert "counted at each scheduling attempt" in reading.reason
    assert reading in page.refused
    assert ("not known" in reading.reason) is (parse_version(version) is None)


def test_a_version_that_counts_right_is_not_refused() -> None:
    page = read_page(without(OFFLOAD, "by_source"), "0.32.0")
    assert page.engines[0].hit_tokens[Tier.HBM] == 18_720
    assert page.refused == ()


def test_ranks_are_kept_apart() -> None:
    page = read_page(with_ranks(OFFLOAD, 3), "0.32.0")
    assert set(page.engines) == {0, 1, 2}
    assert page.engines[2].prompt_tokens == 41_414


def test_readings_add_up_only_where_all_are_known() -> None:
    assert known([1.0, 2.0]) == 3.0
    assert known([1.0, None]) is None
    assert known([1.0, Refused("a", "b")]) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32.1rc1.dev3+gabc.cpu", (0, 32, 1)),
        ("v0.9", (0, 9, 0)),
        ("dev", None),
        ("0.1.dev1", None),
        ("", None),
        (None, None),
    ],
)
def test_versions_are_releases(text, version) -> None:
    assert parse_version(text) == version


def test_every_hazard_is_told_with_its_versions_and_a_source() -> None:
    for hazard in COUNTER_HAZARDS:
        assert hazard.sources
        assert hazard.wrong
        if hazard.until is not None:
            assert not hazard.applies(hazard.until)
        for metric in hazard.metrics:
            assert f"vllm:{metric.removeprefix('vllm:')}" in OFFLOAD
    assert refusal("vllm:prompt_tokens_by_source", None) is None
    assert version_text((0, 32, 0)) == "0.32"
