"""Taps outside the engine, from settings to what is shown; never mixed with what forecasts say."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from metrics_server import MetricsServer, page
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from served import AppClient, free_port, serving
from story import WALL_OFFSET, Story

from kvready.advisor.backcasts import BackcastState
from kvready.advisor.ledger import Pair
from kvready.advisor.outside import METRICS_TAP, SPANS_TAP, is_event_tap, leans_on
from kvready.advisor.outside_model import BackcastTarget
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.report import build_report
from kvready.advisor.report_text import print_report
from kvready.advisor.service.app import create_app
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.taps import build_taps
from kvready.advisor.settings import Settings, load_settings
from kvready.advisor.tap_settings import TapSettings
from kvready.collectors.collector import Level
from kvready.collectors.errors import SettingsError
from kvready.collectors.recorder import Recorder
from kvready.collectors.recording import read_recording
from kvready.collectors.records import (
    AnyRecord,
    CounterName,
    CountersScraped,
    Ingested,
    RequestReported,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
)
from kvready.collectors.salting import Salter


def reported(number: int, arrived: float) -> RequestReported:
    return RequestReported(
        request_id=f"cmpl-outside-{number}-0",
        surface=Surface.FRONTEND,
        arrived_wall_seconds=WALL_OFFSET + arrived,
        ended_wall_seconds=WALL_OFFSET + arrived + 0.5,
        same_host=True,
        queue_seconds=0.01,
        ttft_seconds=0.2,
        prompt_tokens=500,
    )


def scraped(seconds: float, tokens: float) -> CountersScraped:
    """Counters that say more tokens came from each source than there were."""
    values: dict[str, float] = {
        CounterName.PROMPT_TOKENS: tokens,
        CounterName.COMPUTED_TOKENS: tokens,
        CounterName.HBM_HIT_TOKENS: tokens / 2,
    }
    return CountersScraped(seconds, "vllm", "0.32.0", values)


def outside_records() -> list[tuple[float, AnyRecord, str]]:
    """A minute's ticks, reports and scrapes."""
    told: list[tuple[float, AnyRecord, str]] = []
    for second in range(90):
        now = float(second)
        told.append((now, Tick(now, WALL_OFFSET + now), "recorder"))
        if second < 60:
            told.append((now + 0.6, reported(second, now), SPANS_TAP))
        if second % 10 == 0:
            told.append((now + 0.7, scraped(now + 0.7, second * 1_000.0), METRICS_TAP))
    return told


@pytest.fixture
def outside_story() -> Story:
    story = Story()
    for seconds, record, tap in outside_records():
        story.tell(seconds, record, tap)
    return story


def test_reports_become_backcasts_and_no_forecast(outside_story: Story) -> None:
    pipeline = outside_story.pipeline
    counts = pipeline.outside.backcaster.counts
    assert counts[BackcastTarget.TTFT, BackcastState.SCORED] > 40
    assert outside_story.pairs == []
    assert sum(pipeline.ledger.counts.values()) == 0


def test_what_is_told_from_outside_changes_no_forecast_and_no_pair(told_story: Story) -> None:
    """The observed story again, with reports and scrapes in between."""
    woven = sorted(
        [(item.received_seconds, 0, item.record, item.tap) for item in told_story.told]
        + [
            (seconds, 1, record, tap)
            for seconds, record, tap in outside_records()
            if not isinstance(record, Tick)
        ],
        key=lambda told: told[:2],
    )
    pairs: list[Pair] = []
    pipeline = Pipeline(pairs.append)
    for ingest, (seconds, _, record, tap) in enumerate(woven):
        pipeline.ingest(Ingested(ingest, seconds, tap, record))
    assert [essence(pair) for pair in pairs] == [essence(pair) for pair in told_story.pairs]
    assert not any(pair.forecast.leans_on_degraded for pair in pairs)


def essence(pair: Pair) -> tuple[object, ...]:
    """All of a pair but its place in ingest order."""
    forecast = pair.forecast
    return (
        forecast.target,
        forecast.subject,
        forecast.p50_seconds,
        forecast.low_seconds,
        forecast.high_seconds,
        pair.state,
        pair.actual_seconds,
    )


def test_a_scraper_that_fails_makes_no_forecast_doubtful() -> None:
    story = Story()
    story.stored(0.1, range(1, 5))
    assert not story.pipeline.degraded
    for tap in (METRICS_TAP, SPANS_TAP, "observer-frontend-0"):
        story.tell(0.2, TapStatus(tap, 0, TapEvent.GAP, TapState.DEGRADED), tap)
        assert not leans_on(tap)
        assert not is_event_tap(tap)
    assert not story.pipeline.degraded
    assert not story.pipeline.rank_degraded(0)
    assert not is_event_tap("observer")
    assert is_event_tap("kv-events-3")


def test_the_report_shows_backcasts_and_contradictions_only_where_there_are_any(
    outside_story: Story, told_story: Story
) -> None:
    def text_of(story: Story) -> str:
        out = StringIO()
        print_report(build_report(story.pipeline), Console(file=out, width=100))
        return out.getvalue()

    shown = text_of(outside_story)
    assert "Backcasts" in shown
    assert "never forecasts" in shown
    assert "tokens do not sum" in shown
    plain = text_of(told_story)
    assert "Backcasts" not in plain
    assert "Contradictions" not in plain


@pytest.fixture
def client(outside_story: Story) -> Iterator[AppClient]:
    sidecar = Sidecar(Settings(), outside_story.pipeline, PairTally())
    sidecar.start()
    yield AppClient(create_app(sidecar))
    sidecar.stop()


def test_status_and_page_show_a_contradiction_with_its_evidence(client: AppClient) -> None:
    [found] = client.get("/v1/status").json()["contradictions"]
    assert found["kind"] == "tokens_do_not_sum"
    assert found["active"]
    assert "too many" in found["evidence"]
    text = client.get("/").text
    assert "tokens do not sum" in text
    assert "1 contradictions" in text
    assert "Backcasts, from reports alone" in text


def test_a_served_sidecar_hears_spans_and_counters(short_dir: Path) -> None:
    engine = MetricsServer()
    engine.always = page(1_000.0)
    spans_port, port = free_port(), free_port()
    recording = short_dir / "run.kvr"
    command = ("serve", "--metrics-url", engine.url, "--otlp-http-port", spans_port)
    try:
        with serving(*command, "--recording", recording, port=port) as served:
            connection = http.client.HTTPConnection("127.0.0.1", spans_port, timeout=10)
            connection.request("POST", "/v1/traces", one_span(), {"Content-Type": PROTOBUF})
            assert connection.getresponse().status == 200
            connection.close()
            served.wait_for(lambda: served.get("/readyz").status_code == 200)
            served.wait_for(lambda: sample(served.get("/metrics").text, "reports") == 1.0)
            served.wait_for(lambda: sample(served.get("/metrics").text, "scrapes") == 1.0)
            status = served.get("/v1/status").json()
            assert [(tap["tap"], tap["level"]) for tap in status["taps"]] == [
                ("metrics", "0"),
                ("spans", "2"),
            ]
            metrics = served.get("/metrics").text
            assert sample(metrics, "contradictions") == 0.0
            # no tap of these levels: unknown is not zero
            assert "kvready_inventory_blocks" not in metrics
            assert "kvready_arrivals" not in metrics
            assert served.end()[0] == 0
    finally:
        engine.end()
    kinds = {type(item.record) for item in read_recording(recording)}
    assert {RequestReported, CountersScraped, Tick} <= kinds


PROTOBUF = "application/x-protobuf"


def one_span() -> bytes:
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    span.name = "llm_request"
    span.end_time_unix_nano = time.time_ns()
    span.start_time_unix_nano = span.end_time_unix_nano - 10**9
    attribute = span.attributes.add()
    attribute.key = "gen_ai.request.id"
    attribute.value.string_value = "cmpl-a-0"
    return message.SerializeToString()


def sample(text: str, name: str) -> float | None:
    """The sum over one metric's samples, None where it is absent."""
    for family in text_string_to_metric_families(text):
        if family.name == f"kvready_{name}":
            return sum(one.value for one in family.samples)
    return None


def test_an_idle_engine_that_is_scraped_leaves_no_other_tap_silent() -> None:
    seen: list[Ingested] = []
    recorder = Recorder(seen.append, taps={"kv-events": "", METRICS_TAP: ""}, silence_seconds=30)
    recorder.take(reported(0, 0.0), 0.0, "kv-events")
    for second in range(2_000):
        if second % 10 == 0:
            recorder.take(scraped(float(second), 0.0), float(second), METRICS_TAP)
        recorder.advance(float(second), float(second))
    assert recorder.silent_taps() == {}


def test_shared_recordings_hide_who_asked() -> None:
    salted = Salter()(reported(1, 2.0))
    assert isinstance(salted, RequestReported)
    assert "outside" not in salted.request_id
    assert salted.ttft_seconds == 0.2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"taps.metrics_url": "ipc:///x"}, "http://host:port"),
        ({"taps.otlp_forward": "ftp://x", "taps.otlp_http_port": 1}, "grpc://host:4317"),
        ({"taps.otlp_forward": "grpc://x"}, "set otlp_grpc_port"),
        ({"taps.metrics_seconds": 1.0}, "greater than or equal to 10"),
        ({"taps.metrics_url": "h:1", "taps.silence_seconds": 5.0}, "make it at least 20"),
        ({"taps.publisher": "metrics"}, "name of another tap"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_fix(
    given: dict[str, object], named: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(None, given)
    assert named in str(refused.value)


def test_outside_taps_are_off_unless_they_are_asked_for() -> None:
    assert build_taps(TapSettings()) == []
    assert not TapSettings().names_a_tap
    taps = build_taps(
        TapSettings(metrics_url="http://h:1", otlp_grpc_port=4317, otlp_http_port=4318)
    )
    assert [tap.collector.name for tap in taps] == [METRICS_TAP, SPANS_TAP]
    assert [tap.collector.coverage().level for tap in taps] == [Level.METRICS, Level.REQUESTS]
    assert "--otlp-traces-endpoint grpc://127.0.0.1:4317" in taps[1].advice
    [over_http] = build_taps(TapSettings(otlp_http_port=4318))
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" in over_http.advice
