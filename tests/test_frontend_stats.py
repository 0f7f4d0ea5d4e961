"""The stat logger in vLLM's API server: real statistics in, records out, and nothing harms it."""

from __future__ import annotations

import enum
import gzip
import importlib
import json
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.collectors.contract import Gathered
from kvready.collectors.engine.frontend_stats import records_of
from kvready.collectors.engine.publisher import OBSERVER_VARIABLE, socket_path
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import (
    AnyRecord,
    Outcome,
    PromptTokensReported,
    RequestReported,
)

CAPTURE = Path("tests/fixtures/vllm_stat_logger_offload.jsonl.gz")
STAT_LOGGER = "kvready.collectors.engine.vllm_stat_logger"
PATIENCE_SECONDS = 20.0


class FinishReason(enum.IntEnum):
    """As vLLM's: an integer that reads as a word."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


def captured() -> Iterator[dict[str, Any]]:
    """The iterations that a real stat logger was given, as plain dicts."""
    with gzip.open(CAPTURE, "rt", encoding="utf-8") as lines:
        for line in lines:
            iteration = json.loads(line).get("iter")
            if iteration is not None:
                yield iteration


def as_objects(told: Any) -> Any:
    """The same with attributes, as vLLM passes it."""
    if isinstance(told, dict):
        made = SimpleNamespace(**{name: as_objects(value) for name, value in told.items()})
        if "finish_reason" in told:
            made.finish_reason = FinishReason(told["finish_reason"])
        return made
    return [as_objects(one) for one in told] if isinstance(told, list) else told


def test_every_finished_request_of_a_real_run_is_reported_as_it_was() -> None:
    seen = 0
    for iteration in captured():
        reports = [
            record
            for record in records_of(as_objects(iteration), 0, 0.0)
            if isinstance(record, RequestReported)
        ]
        for report, told in zip(reports, iteration["finished_requests"], strict=True):
            seen += 1
            assert report.request_id == told["request_id"]
            assert report.ended_wall_seconds == iteration["iteration_timestamp"]
            assert report.whole_seconds == told["e2e_latency"]
            assert report.arrived_wall_seconds == pytest.approx(
                iteration["iteration_timestamp"] - told["e2e_latency"]
            )
            assert report.cached_tokens == told["num_cached_tokens"]
            assert report.prompt_tokens == told["num_prompt_tokens"]
            assert report.queue_seconds == told["queued_time"]
            assert report.ttft_seconds is None  # not told by request; never made up
            assert report.outcome is Outcome.FINISHED
            assert report.same_host
    assert seen == 44


def test_prompt_tokens_of_a_real_run_come_from_the_sources_that_were_told() -> None:
    steps = [
        record
        for iteration in captured()
        for record in records_of(as_objects(iteration), 3, 0.0)
        if isinstance(record, PromptTokensReported)
    ]
    told = [i["prompt_token_stats"] for i in captured() if i["prompt_token_stats"]["total"]]
    assert len(steps) == len(told) > 0
    assert all(step.engine_index == 3 for step in steps)
    for name, key in (
        ("computed_tokens", "computed"),
        ("hbm_tokens", "local_cache_hit"),
        ("loaded_tokens", "external_kv_transfer"),
        ("prompt_tokens", "total"),
    ):
        assert [getattr(step, name) for step in steps] == [one[key] for one in told]


@given(st.data())
def test_a_version_that_lacks_or_respells_attributes_tells_less_and_raises_nothing(
    data: st.DataObject,
) -> None:
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([])
    )
    names = ["request_id", "e2e_latency", "num_prompt_tokens", "queued_time", "finish_reason"]
    drawn = data.draw(st.dictionaries(st.sampled_from(names), values), "request")
    iteration = SimpleNamespace(
        finished_requests=[SimpleNamespace(**drawn)],
        prompt_token_stats=data.draw(values, "prompt tokens"),
    )
    records = list(records_of(iteration, 0, 12.0))
    named = isinstance(drawn.get("request_id"), str) and bool(drawn["request_id"])
    assert len(records) == named
    for record in records:
        assert isinstance(record, RequestReported)
        assert record.ended_wall_seconds == 12.0
        for name in ("whole_seconds", "queue_seconds"):
            told = getattr(record, name)
            assert told is None or 0 <= told < float("inf")


@pytest.fixture
def stat_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The plugin's module, over the base class alone of a vLLM that is not installed here."""
    loggers = types.ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, loggers.__name__, loggers)
    yield importlib.import_module(STAT_LOGGER)
    sys.modules.pop(STAT_LOGGER, None)


CONFIG = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_rank=-1))


def reported(sink: Gathered) -> list[AnyRecord]:
    return [fact for fact in sink.facts if isinstance(fact, RequestReported)]


def test_what_it_publishes_arrives_at_the_observers_tap(
    stat_logger: types.ModuleType, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OBSERVER_VARIABLE, str(short_dir))
    logger = stat_logger.FrontendObserver(CONFIG, 0)
    other_engine = stat_logger.FrontendObserver(CONFIG, 1)
    logger.log_engine_initialized()
    tap, sink = ObserverTap("observer", short_dir), Gathered()
    tap.start(sink)
    iterations = [as_objects(one) for one in captured()]
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not sink.facts:  # PUB drops what is sent before the subscriber has come
            other_engine.record(None, iterations[0], engine_idx=1)
            tap.poll(0.05)
            assert time.monotonic() < deadline
        before = len(reported(sink))
        for iteration in iterations:
            logger.record(None, iteration, mm_cache_stats=None, engine_idx=0, newer="argument")
        while len(reported(sink)) < before + 44:
            tap.poll(0.05)
            assert time.monotonic() < deadline
    finally:
        tap.stop()
        logger.publisher.close()
    assert [path.name for path in short_dir.iterdir()] in ([], ["observer-frontend-0.sock"])
    assert logger.publisher is other_engine.publisher


@pytest.mark.parametrize("value", [None, "", "off"])
def test_it_is_inert_unless_the_observer_is_asked_for(
    stat_logger: types.ModuleType, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv(OBSERVER_VARIABLE, value)
    logger = stat_logger.FrontendObserver(None, 0)
    logger.log_engine_initialized()
    for iteration in captured():
        logger.record(None, as_objects(iteration))
    assert logger.publisher is None


def test_a_failure_is_counted_and_stays_inside(
    stat_logger: types.ModuleType, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    monkeypatch.setenv(OBSERVER_VARIABLE, str(short_dir))
    logger = stat_logger.FrontendObserver(CONFIG, 0)
    logger.record(None, Hostile())
    assert logger.publisher.failures == 1
    assert logger.publisher.dropped_records == 1
    assert not socket_path(short_dir, "frontend", 0).exists()


def test_each_of_several_api_servers_has_a_socket_of_its_own(
    stat_logger: types.ModuleType, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OBSERVER_VARIABLE, str(short_dir))
    for rank in (0, 1):
        config = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_rank=rank))
        logger = stat_logger.FrontendObserver(config, 0)
        logger.log_engine_initialized()
        assert socket_path(short_dir, "frontend", rank).exists()
        logger.publisher.close()
