"""What an engine tells from outside, and which taps follow from it; over real HTTP."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
from engine_pages import OFFLOAD, PLAIN, EngineHttp, kv_source, with_ranks, without
from served import free_port

from kvready.advisor.levels import level_now, next_step
from kvready.collectors import http_get
from kvready.collectors.collector import Level
from kvready.collectors.discover import discover
from kvready.collectors.errors import TapError
from kvready.collectors.http_get import Answer, engine_url, get
from kvready.collectors.rank_sources import given_sources, rank_source

IPC = "ipc:///run/kv.sock"


def test_an_engine_that_tells_all_is_known_whole() -> None:
    with EngineHttp(OFFLOAD, sources={"0": kv_source(IPC, "ipc:///run/replay.sock")}) as engine:
        found = discover(engine.url)
    assert found.problem == ""
    assert (found.engine, found.version, found.models) == ("vllm", "0.32.0", ("tiny",))
    assert found.is_healthy
    assert found.ranks == (0,)
    assert found.page is not None
    (source,) = found.sources
    assert (source.address, source.we_bind) == (IPC, False)
    assert source.replay_address == "ipc:///run/replay.sock"
    assert level_now(found) is Level.KV_EVENTS
    step = next_step(found)
    assert step is not None
    assert step.level is Level.OBSERVER
    assert {method for method, _ in engine.asked} == {"GET"}


def test_an_older_engine_does_not_tell_its_sources_and_that_is_said() -> None:
    with EngineHttp(PLAIN, version="0.24.0") as engine:
        found = discover(engine.url)
    assert not found.tells_sources
    assert level_now(found) is Level.METRICS
    step = next_step(found)
    assert step is not None
    assert step.level is Level.KV_EVENTS
    assert "does not tell whether it publishes" in step.because


def test_an_engine_that_publishes_nothing_says_so() -> None:
    off = {"enable_kv_cache_events": False, "publisher": "null", "endpoint": "tcp://*:5557"}
    with EngineHttp(PLAIN, sources={"0": off}) as engine:
        found = discover(engine.url)
    assert found.sources == ()
    step = next_step(found)
    assert step is not None
    assert "publishes no KV events" in step.because


def test_an_engine_beyond_the_observer_s_versions_gets_spans_as_next_step() -> None:
    with EngineHttp(PLAIN, version="0.33.0", sources={"0": kv_source(IPC)}) as engine:
        step = next_step(discover(engine.url))
    assert step is not None
    assert step.level is Level.REQUESTS
    assert "refuses 0.33.0" in step.because


def test_the_observer_is_found_beside_the_kv_events_or_in_the_folder_given(
    short_dir: Path,
) -> None:
    endpoint = f"ipc://{short_dir}/kv.sock"
    with socket.socket(socket.AF_UNIX) as observer:
        observer.bind(str(short_dir / "observer-scheduler-0.sock"))
        with EngineHttp(PLAIN, sources={"0": kv_source(endpoint)}) as engine:
            beside = discover(engine.url)
        with EngineHttp(PLAIN) as engine:
            given = discover(engine.url, short_dir)
    for found in (beside, given):
        assert found.observer_sockets == ("observer-scheduler-0.sock",)
        assert level_now(found) is Level.OBSERVER
    assert next_step(beside) is None


def test_a_stat_logger_s_socket_alone_is_level_two() -> None:
    with EngineHttp(PLAIN, sources={"0": kv_source(IPC)}) as engine:
        found = discover(engine.url)
    found = msgspec.structs.replace(found, observer_sockets=("observer-frontend-0.sock",))
    assert level_now(found) is Level.REQUESTS
    step = next_step(found)
    assert step is not None
    assert step.level is Level.OBSERVER


def test_every_rank_is_found_with_its_own_port() -> None:
    sources = {
        str(rank): kv_source(f"tcp://*:{5557 + rank}", f"tcp://*:{6557 + rank}")
        for rank in range(3)
    }
    with EngineHttp(with_ranks(PLAIN, 3), sources=sources) as engine:
        found = discover(engine.url)
    assert found.ranks == (0, 1, 2)
    assert [s.address for s in found.sources] == [
        f"tcp://127.0.0.1:{port}" for port in (5557, 5558, 5559)
    ]


@pytest.mark.parametrize("wildcard", ["*", "[::]"])
def test_a_wildcard_is_the_host_that_the_user_named(wildcard: str) -> None:
    source = rank_source(0, f"tcp://{wildcard}:5557", "tcp://*:6557", host="gpu-7")
    assert (source.address, source.we_bind) == ("tcp://gpu-7:5557", False)
    assert source.replay_address == "tcp://gpu-7:6557"


def test_an_address_that_the_engine_connects_to_is_ours_to_bind() -> None:
    source = rank_source(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:6557", host="gpu-7")
    assert (source.address, source.we_bind) == ("tcp://127.0.0.1:5557", True)
    assert source.replay_address == "tcp://127.0.0.1:6557"


def test_an_address_that_can_never_deliver_is_a_problem_and_no_error() -> None:
    source = rank_source(0, "tcp://0.0.0.0:5557", None)
    assert source.address is None
    assert "tcp://*:5557" in source.problem


def test_one_base_endpoint_names_all_ranks() -> None:
    sources = given_sources("http://h:8000", ("tcp://*:5557",), ("tcp://*:6557",), (0, 1))
    assert [(s.address, s.replay_address) for s in sources] == [
        ("tcp://h:5557", "tcp://h:6557"),
        ("tcp://h:5558", "tcp://h:6558"),
    ]
    with pytest.raises(TapError, match=r"beyond rank 0|above 0"):
        given_sources("http://h:8000", (IPC,), (), (0, 1))


def test_nothing_there_is_a_problem_that_names_the_fix(free_port: int) -> None:
    found = discover(f"127.0.0.1:{free_port}")
    assert "no engine answers" in found.problem
    assert level_now(found) is None


def test_another_server_is_no_engine() -> None:
    with EngineHttp("up 1\n", version=None) as server:
        found = discover(server.url)
    assert "not a vLLM server" in found.problem


def test_an_engine_without_metrics_is_an_engine_all_the_same() -> None:
    with EngineHttp(without(PLAIN, "vllm:"), sources={"0": kv_source(IPC)}) as engine:
        found = discover(engine.url)
    assert found.problem == ""
    assert "--disable-log-stats" in found.page_problem
    assert level_now(found) is Level.KV_EVENTS


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "list"),
        (b"{", "broken"),
        (b'{"0": 3}', "number"),
        (b'{"x": {}}', "no rank"),
        (b"\xff", ""),
    ],
)
def test_nonsense_for_sources_is_no_source(body: bytes, why: str) -> None:
    with EngineHttp(PLAIN) as engine:
        engine.answers["/kv_event_sources"] = (200, body)
        assert discover(engine.url).sources == (), why


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "h:p", "http://h:99999"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(TapError, match=r"http://host:port"):
        engine_url(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("h:1", "http://h:1"),
        ("https://h/metrics?x", "https://h"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_an_address_is_reduced_to_its_server(text: str, url: str) -> None:
    assert engine_url(text) == url


def test_a_body_without_bound_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_get, "MAX_BODY_BYTES", 1_000)
    with EngineHttp("x" * 5_000) as engine:
        answer = get(engine.url, "/metrics")
    assert not answer.ok
    assert "larger than" in answer.problem


def test_a_server_that_never_answers_does_not_hold_us() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        answer = get(f"http://127.0.0.1:{deaf.getsockname()[1]}", "/metrics", 0.2)
    assert answer.status == 0
    assert isinstance(answer, Answer)
    assert free_port() > 0
