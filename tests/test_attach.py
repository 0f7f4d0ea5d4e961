"""`attach`: from a URL to a sidecar that serves, or to a refusal that names the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_pages import OFFLOAD, EngineHttp, kv_source, without
from observer_publisher import ObserverPublisher
from publisher import Publisher
from served import serving

from kvready.advisor.service.taps import build_taps
from kvready.advisor.tap_settings import TapSettings
from kvready.collectors.errors import TapError


def taps_of(served) -> dict[str, str]:
    status = served.get("/v1/status").json()
    return {tap["tap"]: tap["state"] for tap in status["taps"]}


def test_every_tap_that_the_engine_offers_is_attached(short_dir: Path, free_port: int) -> None:
    observer = ObserverPublisher(short_dir)
    try:
        with Publisher(short_dir) as engine:
            engine.store(1)
            sources = {"0": kv_source(engine.events, engine.replay)}
            with EngineHttp(OFFLOAD, sources=sources) as server:
                with serving("attach", server.url, port=free_port) as served:
                    served.wait_for(lambda: taps_of(served).get("kv-events") == "live")
                    found = taps_of(served)
                    code, said = served.end()
                methods = {method for method, _ in server.asked}
    finally:
        observer.end()
    assert code == 0, said
    assert {"kv-events", "observer"} <= set(found)
    assert "vLLM 0.32.0" in said
    assert f"KV events of rank 0: {engine.events}" in said
    assert "cannot see" in said
    assert methods == {"GET"}
    assert engine.replay_requests


def test_an_engine_started_with_nothing_is_watched_by_its_metrics(free_port: int) -> None:
    with (
        EngineHttp(OFFLOAD, version="0.24.0") as server,
        serving(
            "attach", server.url, "--link-profile", "published:gh200", port=free_port
        ) as served,
    ):
        served.wait_for(lambda: taps_of(served).get("metrics") == "live")
        assert set(taps_of(served)) == {"metrics"}
        code, said = served.end()
    assert code == 0, said
    assert "0.24.0 does not tell whether it publishes KV events" in said
    assert "any single request" in said
    assert "loads start from published: GH200" in said


def test_the_next_level_is_said_with_its_flag(short_dir: Path, free_port: int) -> None:
    with Publisher(short_dir) as engine:
        sources = {"0": kv_source(engine.events)}
        with (
            EngineHttp(OFFLOAD, sources=sources) as server,
            serving("attach", server.url, port=free_port) as served,
        ):
            _, said = served.end()
    assert "level 3 would add" in said
    assert "--scheduler-cls" in said


def test_an_engine_that_offers_nothing_is_refused_with_the_fix(kvready) -> None:
    with EngineHttp(without(OFFLOAD, "vllm:")) as server:
        ended = kvready("attach", server.url)
    assert ended.returncode == 2
    assert "--disable-log-stats" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_nothing_there_is_refused_with_the_fix(kvready) -> None:
    ended = kvready("attach", "127.0.0.1:9")
    assert ended.returncode == 2
    assert "no engine answers" in ended.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_wildcard_endpoint_is_opened_at_the_engine_s_host(host: str) -> None:
    settings = TapSettings(kv_events=("tcp://*:5557",), replay=("tcp://*:6557",), engine_host=host)
    (tap,) = build_taps(settings)
    try:
        tap.collector.start(lambda record, received_seconds, tap: None)
    except TapError as error:  # pragma: no cover - the message is what a failure should show
        pytest.fail(str(error))
    finally:
        tap.collector.stop()
