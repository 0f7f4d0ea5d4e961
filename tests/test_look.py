"""A look: differences of pages, by hand where it matters, and the one thing to change next."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_pages import (
    COPIES,
    OFFLOAD,
    PLAIN,
    TRAFFIC,
    EngineHttp,
    grown,
    kv_source,
    set_to,
    without,
)
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.counter_change import Shot, quantile
from kvready.advisor.levels import KV_EVENTS_FLAG
from kvready.advisor.look import COMPUTED, UNPLACED, Look, look
from kvready.collectors.collector import Level
from kvready.collectors.metrics_page import FetchStage, Histogram, read_page
from kvready.collectors.surfaces import RankSource, Surfaces
from kvready.kernels.machine import this_machine
from kvready.kernels.profile import LinkProfile, Provenance, write_profile
from kvready.kernels.profile_source import load_reference
from kvready.kernels.published import published_profile

SECONDS = 10.0
IPC = RankSource(0, "ipc:///kv", "ipc:///replay", "", "ipc:///kv", False, "ipc:///replay")


def seen(*pages: str, version: str | None = "0.32.0", **more) -> Look:
    """A look at these pages, evenly spaced over ten seconds."""
    read = [read_page(page, version) for page in pages]
    known = {
        "url": "http://e", "problem": "", "engine": "vllm", "version": version,
        "models": ("tiny",), "is_healthy": True, "page": read[0], "page_problem": "",
        "tells_sources": True, "sources": (), "observer_dir": None, "observer_sockets": (),
    } | more  # fmt: skip
    apart = SECONDS / (len(read) - 1)
    shots = [Shot(n * apart, page) for n, page in enumerate(read)]
    return look(Surfaces(**known), shots)


def test_hits_loads_and_first_tokens_are_differences() -> None:
    found = seen(OFFLOAD, grown(OFFLOAD, TRAFFIC | COPIES))
    shares = {source.source: (source.tokens, source.tokens_per_second, source.share)
              for source in found.prompt}  # fmt: skip
    assert shares["hbm"] == (2_000, 200, 0.5)
    assert shares["host"] == (1_000, 100, 0.25)
    assert shares[COMPUTED] == (1_000, 100, 0.25)
    assert found.requests == 10
    assert found.load_bytes_per_second == pytest.approx(2e9)
    assert found.stores is not None
    assert found.stores.bytes_per_second == pytest.approx(2e9)
    assert not found.idle
    assert not found.restarted


def test_quantiles_lie_in_their_bucket() -> None:
    found = seen(OFFLOAD, grown(OFFLOAD, TRAFFIC))
    assert found.ttft_p50 is not None
    assert found.ttft_p50.above_seconds == 0.08
    assert found.ttft_p50.up_to_seconds == 0.1
    assert found.ttft_p95 is not None
    assert (found.ttft_p95.above_seconds, found.ttft_p95.up_to_seconds) == (0.1, 0.25)


@given(
    st.lists(st.floats(0.001, 30), min_size=1, max_size=200),
    st.sampled_from([0.05, 0.5, 0.95, 1.0]),
)
def test_a_quantile_s_bucket_holds_the_exact_one(values: list[float], share: float) -> None:
    bounds = (0.01, 0.1, 1.0, 10.0, float("inf"))
    counts = tuple(float(sum(v <= bound for v in values)) for bound in bounds)
    found = quantile(Histogram(bounds, counts, sum(values)), share)
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    assert found is not None
    assert found.above_seconds <= exact
    assert found.up_to_seconds is None or exact <= found.up_to_seconds
    assert found.above_seconds <= found.estimate_seconds


def test_a_counter_that_appears_began_at_zero() -> None:
    later = grown(OFFLOAD, TRAFFIC)
    found = seen(without(OFFLOAD, "kv_offload_load", "lookup_async"), later)
    whole = read_page(later, "0.32.0").engines[0]
    assert found.loads is not None
    assert found.loads.payload_bytes == whole.load_bytes
    assert whole.lookup_held_seconds is not None
    assert found.held == whole.lookup_held_seconds.count
    assert seen(later, without(later, "kv_offload")).loads is None


def test_an_idle_engine_is_said_to_be_idle_and_nothing_is_advised() -> None:
    quiet = set_to(OFFLOAD, {"vllm:num_requests_running": 0})
    found = seen(quiet, quiet)
    assert found.idle
    assert found.change is None
    assert not found.found
    assert found.ttft_p50 is None


def test_a_restart_makes_no_differences() -> None:
    again = OFFLOAD.replace("process_start_time_seconds 1.7", "process_start_time_seconds 1.8")
    for later in (again, without(OFFLOAD, "process_start")):
        found = seen(grown(OFFLOAD, TRAFFIC), later)
        assert found.restarted
        assert found.prompt == ()
        assert found.loads is None


def test_a_counter_that_went_back_is_a_restart_even_without_a_start_time() -> None:
    page = without(OFFLOAD, "process_start")
    assert seen(grown(page, TRAFFIC), page).restarted


def test_a_stalled_engine_is_found() -> None:
    stuck = set_to(OFFLOAD, {"vllm:num_requests_waiting": 3, "vllm:num_requests_running": 0})
    found = seen(stuck, stuck, stuck)
    assert found.stalled
    assert found.found
    assert not found.idle


def test_requests_ready_and_not_scheduled_are_a_share_of_the_time_on_loads() -> None:
    waiting = set_to(
        OFFLOAD,
        {'vllm:num_requests_kv_fetch_by_stage{stage="completed_waiting"': 1,
         'vllm:num_requests_kv_fetch_by_stage{stage="in_progress"': 3},
    )  # fmt: skip
    found = seen(waiting, grown(waiting, TRAFFIC))
    assert found.ready_share == 0.25
    assert found.fetching is not None
    assert found.fetching[FetchStage.IN_PROGRESS] == 3
    assert found.change is not None
    assert "--scheduler-cls" in found.change.change
    assert found.found


def test_without_stages_the_ready_share_is_unknown() -> None:
    page = without(OFFLOAD, "kv_fetch_by_stage")
    found = seen(page, grown(page, TRAFFIC))
    assert found.fetching is None
    assert found.ready_share is None


def test_prefix_caching_off_is_the_first_thing_to_change() -> None:
    off = OFFLOAD.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    found = seen(off, grown(off, TRAFFIC))
    assert found.change is not None
    assert found.change.change == "--enable-prefix-caching"
    assert found.found


def test_much_computed_and_no_host_tier_points_at_a_host_tier() -> None:
    more = grown(PLAIN, TRAFFIC | {
        'vllm:prompt_tokens_by_source_total{source="local_compute"': 9_000.0
    })  # fmt: skip
    found = seen(PLAIN, more)
    assert found.change is not None
    assert found.change.change.startswith("--kv-offloading-size")
    assert not found.found


def test_else_the_next_level_is_the_thing_to_change() -> None:
    found = seen(OFFLOAD, grown(OFFLOAD, TRAFFIC))
    assert found.level is Level.METRICS
    assert found.change is not None
    assert found.change.change == KV_EVENTS_FLAG
    with_events = seen(OFFLOAD, grown(OFFLOAD, TRAFFIC), sources=(IPC,))
    assert with_events.next_level is not None
    assert with_events.next_level.level is Level.OBSERVER
    whole = seen(
        OFFLOAD,
        grown(OFFLOAD, TRAFFIC),
        sources=(IPC,),
        observer_sockets=("observer-scheduler-0.sock",),
    )
    assert whole.next_level is None
    assert whole.change is None


def test_a_version_with_wrong_counters_tells_less_and_why() -> None:
    page = without(OFFLOAD, "by_source")
    found = seen(page, grown(page, {"vllm:prompt_tokens_total": 4_000.0}), version="0.14.0")
    assert {refused.metric for refused in found.refused} == {
        "vllm:prefix_cache_hits",
        "vllm:prefix_cache_queries",
    }
    assert COMPUTED not in {source.source for source in found.prompt}


def test_hits_from_a_connector_that_names_no_tier_have_a_row_of_their_own() -> None:
    page = without(OFFLOAD, "cached_by_source")
    traffic = {name: n for name, n in TRAFFIC.items() if "cached_by_source" not in name}
    found = seen(page, grown(page, traffic), version="0.24.0")
    assert {s.source: s.share for s in found.prompt}[UNPLACED] == 0.25


def test_the_command_prints_what_it_saw_and_the_flag(kvready) -> None:
    later = grown(OFFLOAD, TRAFFIC | COPIES)
    with EngineHttp(OFFLOAD, OFFLOAD, later) as engine:
        ended = kvready("look", engine.url, "--seconds", "1")
        assert {method for method, _ in engine.asked} == {"GET"}
    assert ended.returncode == 0, ended.stderr
    for part in ("found in host", "25.0%", "2.00 GB/s", "Change next", "--kv-events-config",
                 "level 0"):  # fmt: skip
        assert part in ended.stdout, ended.stdout
    assert "\x1b" not in ended.stdout


def test_loads_are_held_against_a_link_profile_and_whose_it_is_is_said(kvready) -> None:
    later = grown(OFFLOAD, TRAFFIC | COPIES)
    expected = load_reference(published_profile("h200-pcie5"))
    assert expected is not None
    arguments = ("--seconds", "1", "--link-profile", "published:h200-pcie5")
    with EngineHttp(OFFLOAD, OFFLOAD, later) as engine:
        text = kvready("look", engine.url, *arguments).stdout
    share = 2e9 / expected.bytes_per_second
    assert f"{expected.origin}; loads get {share:.0%} of it" in " ".join(text.split())
    with EngineHttp(OFFLOAD, OFFLOAD, later) as engine:
        found = json.loads(kvready("look", engine.url, *arguments, "--json").stdout)
    assert found["reference_bytes_per_second"] == expected.bytes_per_second
    assert found["reference_origin"] == expected.origin
    with EngineHttp(OFFLOAD, OFFLOAD, later) as engine:
        text = kvready("look", engine.url, "--seconds", "1").stdout
    assert "kvready calibrate" in text
    assert "of it" not in text


def test_a_link_profile_of_another_machine_is_refused_before_the_engine_is_asked(
    kvready, tmp_path: Path
) -> None:
    path = tmp_path / "box.json"
    machine = msgspec.structs.replace(this_machine(), cpu="Another CPU")
    write_profile(LinkProfile("box", Provenance.MEASURED, machine, ()), path)
    with EngineHttp(OFFLOAD) as engine:
        ended = kvready("look", engine.url, KVREADY_CALIBRATION__LINK_PROFILE=str(path))
        assert not engine.asked
    assert ended.returncode == 2
    assert "run `kvready calibrate` here" in ended.stderr


def test_the_command_is_honest_when_idle(kvready) -> None:
    quiet = set_to(OFFLOAD, {"vllm:num_requests_running": 0})
    with EngineHttp(quiet) as engine:
        ended = kvready("look", engine.url, "--seconds", "1")
    assert ended.returncode == 0
    assert "No request arrived" in ended.stdout


def test_the_command_s_json_is_the_look(kvready) -> None:
    stuck = set_to(OFFLOAD, {"vllm:num_requests_waiting": 3, "vllm:num_requests_running": 0})
    with EngineHttp(stuck, sources={"0": kv_source("ipc:///kv")}) as engine:
        ended = kvready("look", engine.url, "--seconds", "1", "--json")
    assert ended.returncode == 1
    found = msgspec.json.decode(ended.stdout, type=Look)
    assert found.stalled
    assert json.loads(ended.stdout)["level"] == "1"


@pytest.mark.parametrize("url", ["127.0.0.1:9", "nonsense://x"])
def test_the_command_cannot_without_an_engine(kvready, url: str) -> None:
    ended = kvready("look", url)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
