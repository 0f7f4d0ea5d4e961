"""Level 2 beside a real engine with its stock scheduler: spans, statistics and counters agree."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import load
import pytest
from engine import STOCK_SCHEDULER, Engine
from prometheus_client.parser import text_string_to_metric_families
from served import free_port, serving

from kvready.advisor.backcasts import HOLD_SECONDS
from kvready.collectors.recording import read_recording
from kvready.collectors.records import CounterName, CountersScraped, RequestReported

pytestmark = pytest.mark.engine

EXPORT_SECONDS = 30.0  # the exporter sends every 5 s


@dataclass
class Reported:
    """What a sidecar heard of one load."""

    answers: list[load.Answer]
    status: dict[str, Any]
    metrics: dict[str, float]
    spans: dict[str, RequestReported]
    statistics: dict[str, RequestReported]
    counters: list[CountersScraped]


def values(text: str) -> dict[str, float]:
    """Sums by metric name, as the reference parser reads them."""
    return {
        family.name: sum(sample.value for sample in family.samples)
        for family in text_string_to_metric_families(text)
    }


@pytest.fixture(scope="module")
def heard(
    engine_python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reported]:
    spans_port, port = free_port(), free_port()
    recording = tmp_path_factory.mktemp("reports") / "run.kvr"
    engine = Engine(
        engine_python,
        models / "kv-heavy",
        scheduler_class=STOCK_SCHEDULER,
        extra_arguments=("--otlp-traces-endpoint", f"grpc://127.0.0.1:{spans_port}"),
    )
    command = [
        *("serve", "--kv-events", engine.kv_events_endpoint, "--replay", engine.kv_replay_endpoint),
        *("--observer-dir", engine.observer_folder, "--metrics-url", engine.url),
        *("--otlp-grpc-port", spans_port, "--recording", recording),
    ]
    with serving(*command, port=port) as served, engine:
        shape = replace(load.SHAPES["small"], seed=3, questions=24, sessions=1)
        answers = load.run(engine.url, "kv-heavy", shape)
        wanted = 2.0 * len([one for one in answers if one.ttft_seconds is not None])
        served.wait_for(
            lambda: values(served.get("/metrics").text)["kvready_reports"] >= wanted, EXPORT_SECONDS
        )
        time.sleep(HOLD_SECONDS)
        served.wait_for(
            lambda: values(served.get("/metrics").text)["kvready_reports_held"] == 0, EXPORT_SECONDS
        )
        status = served.get("/v1/status").json()
        metrics = values(served.get("/metrics").text)
    told = list(read_recording(recording))
    by_tap: dict[str, dict[str, RequestReported]] = {"spans": {}, "observer": {}}
    for item in told:
        if isinstance(item.record, RequestReported):
            by_tap[item.tap][item.record.request_id] = item.record
    scrapes = [item.record for item in told if isinstance(item.record, CountersScraped)]
    yield Reported(answers, status, metrics, by_tap["spans"], by_tap["observer"], scrapes)


def test_both_taps_tell_the_same_of_every_request(heard: Reported) -> None:
    assert heard.spans.keys() == heard.statistics.keys()
    assert len(heard.spans) == len(heard.answers)
    for request_id, span in heard.spans.items():
        statistics = heard.statistics[request_id]
        assert span.same_host
        assert span.prompt_tokens == statistics.prompt_tokens
        assert span.output_tokens == statistics.output_tokens
        assert span.queue_seconds == pytest.approx(statistics.queue_seconds)
        assert span.prefill_seconds == pytest.approx(statistics.prefill_seconds)
        assert span.arrived_wall_seconds == pytest.approx(statistics.arrived_wall_seconds, abs=0.05)
        assert statistics.cached_tokens is not None


def test_cached_tokens_of_all_requests_are_what_counters_say_was_found(heard: Reported) -> None:
    last = heard.counters[-1].values
    found = last[CounterName.HBM_HIT_TOKENS] + last[CounterName.HOST_HIT_TOKENS]
    cached = sum(one.cached_tokens or 0 for one in heard.statistics.values())
    assert found == cached > 0
    computed = last[CounterName.COMPUTED_TOKENS]
    assert last[CounterName.PROMPT_TOKENS] == computed + found


def test_requests_are_backcast_at_level_2_and_nothing_contradicts(heard: Reported) -> None:
    assert heard.status["level"] == "2"
    assert heard.metrics["kvready_reports"] == 2 * len(heard.spans)
    assert heard.metrics["kvready_backcasts"] == 2 * len(heard.spans)  # TTFT and queue
    assert heard.metrics["kvready_reports_late"] == 0
    assert heard.status["contradictions"] == []
    assert "kvready_forecasts" not in heard.metrics
