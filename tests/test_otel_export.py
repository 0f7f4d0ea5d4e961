"""Exports over OTLP: whatever a collector does costs exports, which are counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from otel_collector import Collector, Handler, attributes, metrics_of, wait_for
from served import free_port
from story import Story

from kvready.advisor.service import otel, otel_post
from kvready.advisor.service.otel import Telemetry
from kvready.advisor.service.otel_counts import ExportCounts, Fate, Result, Signal
from kvready.advisor.service.otel_courier import Courier
from kvready.advisor.service.otel_headers import read_headers
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.snapshot import Snapshot
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import Settings, load_settings
from kvready.advisor.telemetry_settings import TelemetrySettings
from kvready.collectors.collector import Level
from kvready.collectors.errors import ServiceError, SettingsError

SNAPSHOT = Snapshot(levels=frozenset({Level.METRICS}), taps=("a",), values={})
SECRET = "hunter2hunter2"


@pytest.fixture(autouse=True)
def quick_and_alone(monkeypatch) -> None:
    """No variable of this machine decides, and what is given up is given up soon."""
    for name in ("ENDPOINT", "HEADERS", "COMPRESSION", "TIMEOUT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


@contextmanager
def exporting(
    url: str,
    take: Callable[[], Snapshot] = lambda: SNAPSHOT,
    headers_file: Path | None = None,
) -> Iterator[ExportCounts]:
    counts = ExportCounts()
    settings = TelemetrySettings(
        export_endpoint=url, export_seconds=1, export_headers_file=headers_file
    )
    telemetry = Telemetry(settings, counts, sees_engine_spans=False)
    telemetry.start(take)
    try:
        yield counts
    finally:
        telemetry.stop()


def results(counts: ExportCounts) -> dict[Result, int]:
    return {result: counts.exports()[Signal.METRICS, result] for result in Result}


def test_metrics_arrive_with_who_sends_them(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "kvready-west")
    with Collector() as collector, exporting(collector.url) as counts:
        wait_for(lambda: results(counts)[Result.DELIVERED] > 0)
    (resource,) = collector.exports()[0].resource_metrics
    who = attributes(resource.resource.attributes)
    assert who["service.name"] == "kvready-west"
    assert who["deployment.environment.name"] == "test"
    assert who["service.instance.id"]
    assert len(metrics_of(collector.exports()[0])) > 30


def test_one_export_takes_one_snapshot() -> None:
    taken: list[int] = []

    def take() -> Snapshot:
        taken.append(1)
        return SNAPSHOT

    with Collector() as collector, exporting(collector.url, take) as counts:
        wait_for(lambda: results(counts)[Result.DELIVERED] > 1)
    assert len(collector.exports()) == len(taken)


def test_stopping_exports_once_more() -> None:
    with Collector() as collector:
        counts = ExportCounts()
        settings = TelemetrySettings(export_endpoint=collector.url, export_seconds=3_600)
        telemetry = Telemetry(settings, counts, sees_engine_spans=False)
        telemetry.start(lambda: SNAPSHOT)
        telemetry.stop()
        telemetry.stop()
        wait_for(lambda: results(counts)[Result.DELIVERED] == 1)
        assert len(collector.exports()) == 1


def test_what_was_never_started_can_be_stopped() -> None:
    settings = TelemetrySettings(export_endpoint="http://127.0.0.1:1")
    Telemetry(settings, ExportCounts(), sees_engine_spans=False).stop()


def test_nothing_is_exported_without_a_snapshot_and_that_is_counted() -> None:
    def take() -> Snapshot:
        raise ServiceError("no answer within 5 s")

    with Collector() as collector, exporting(collector.url, take) as counts:
        wait_for(lambda: results(counts)[Result.UNREAD] > 0)
        assert "no answer" in counts.problem(Signal.METRICS)
    assert not collector.sent


def test_a_collector_that_is_away_costs_exports_alone_until_it_is_there() -> None:
    port = free_port()
    with exporting(f"http://127.0.0.1:{port}") as counts:
        wait_for(lambda: results(counts)[Result.FAILED] > 0)
        assert "not reached" in counts.problem(Signal.METRICS)
        assert Signal.METRICS not in counts.quiet_seconds()


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_a_refusal_is_a_failure_and_says_its_status(status: int) -> None:
    collector = Collector(lambda handler: handler.say(status))
    with collector, exporting(collector.url) as counts:
        wait_for(lambda: results(counts)[Result.FAILED] > 0)
        assert str(status) in counts.problem(Signal.METRICS)
        assert not results(counts)[Result.DELIVERED]


def test_a_redirect_is_a_failure_and_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text(f"x-api-key: {SECRET}\n")
    file.chmod(0o600)
    with Collector() as elsewhere:
        collector = Collector(lambda handler: handler.say(307, Location=elsewhere.url))
        with collector, exporting(collector.url, headers_file=file) as counts:
            wait_for(lambda: results(counts)[Result.FAILED] > 0)
            assert "307" in counts.problem(Signal.METRICS)
        assert not elsewhere.sent
        assert not results(counts)[Result.DELIVERED]


def test_an_endless_answer_is_read_to_a_bound() -> None:

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not handler.server.over.is_set():
            handler.wfile.write(b"x" * 65_536)  # breaks once nobody reads any more

    with Collector(answer) as collector, exporting(collector.url) as counts:
        wait_for(lambda: results(counts)[Result.DELIVERED] > 0)
        assert "says over" in counts.problem(Signal.METRICS)


def test_an_answer_that_comes_a_byte_at_a_time_holds_up_no_more_than_one_export() -> None:
    """The exporter's own timeout starts anew with each byte."""

    def answer(handler: Handler) -> None:
        while not handler.server.over.wait(0.1):
            handler.wfile.write(b"H")

    counts = ExportCounts()
    with Collector(answer) as collector:
        post = otel_post.Post(Signal.METRICS, counts)

        def export(data: bytes) -> bool:
            return post.post(collector.url, data, timeout=5.0).ok

        courier = Courier(Signal.METRICS, export, lambda: post.problem, counts, 0.5)
        assert not courier.send(b"one")
        assert "no end" in counts.problem(Signal.METRICS)
        assert not courier.send(b"two")
        assert results(counts) == {
            Result.DELIVERED: 0,
            Result.FAILED: 1,
            Result.BUSY: 1,
            Result.UNREAD: 0,
        }
        post.close()
    assert len(collector.sent) == 1, "the second export was left out"


def waits(handler: Handler) -> None:
    """Takes an export and answers when the test is over."""
    handler.server.over.wait()


def test_a_collector_that_never_answers_is_in_nobodys_way(told_story: Story, monkeypatch) -> None:
    monkeypatch.setattr(otel, "STOP_SECONDS", 0.2)
    counts = ExportCounts()
    sidecar = Sidecar(Settings(), told_story.pipeline, PairTally(), exports=counts)
    with Collector(waits) as collector:
        settings = TelemetrySettings(export_endpoint=collector.url, export_seconds=1)
        telemetry = Telemetry(settings, counts, sees_engine_spans=False)
        sidecar.start()
        telemetry.start(sidecar.take_snapshot)
        wait_for(lambda: bool(collector.sent))
        assert sidecar.ask(lambda: "answered") == "answered"
        assert sidecar.take_snapshot().values
        telemetry.stop()
        sidecar.stop()
        assert not collector.over.is_set(), "all of it while the export still hung"


@pytest.mark.parametrize(
    ("signal", "answer"),
    [
        (Signal.METRICS, ExportMetricsServiceResponse(
            partial_success=ExportMetricsPartialSuccess(rejected_data_points=2))),
        (Signal.TRACES, ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(rejected_spans=2))),
    ],
)  # fmt: skip
def test_each_signals_refusals_are_read_in_its_own_words(signal: Signal, answer: Message) -> None:
    counts = ExportCounts()
    body = answer.SerializeToString()
    with Collector(lambda handler: handler.say(200, body)) as collector:
        post = otel_post.Post(signal, counts)
        assert post.post(collector.url, b"").ok
        assert post.problem == "refused 2: "
        collector.answer = lambda handler: handler.say(200)
        assert post.post(collector.url, b"").ok
        assert post.problem == ""
        post.close()
    assert counts.rejections() == {one: 2 * (one is signal) for one in Signal}


def test_what_a_collector_took_and_refused_is_counted() -> None:
    partial = ExportMetricsPartialSuccess(rejected_data_points=3, error_message="too\nold\x1b[2J")
    body = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
    collector = Collector(lambda handler: handler.say(200, body))
    with collector, exporting(collector.url) as counts:
        wait_for(lambda: counts.rejections()[Signal.METRICS] >= 3)
        wait_for(lambda: "refused 3" in counts.problem(Signal.METRICS))
        assert counts.problem(Signal.METRICS).isprintable()


def test_a_web_server_that_says_yes_to_everything_is_told_of() -> None:
    collector = Collector(lambda handler: handler.say(200, b"<html>Welcome!</html>"))
    with collector, exporting(collector.url) as counts:
        wait_for(lambda: "as a collector does" in counts.problem(Signal.METRICS))


def test_headers_come_from_a_file_and_from_the_standard_variable(
    tmp_path: Path, monkeypatch
) -> None:
    file = tmp_path / "headers"
    file.write_text(f"# for the west\nX-Api-Key: {SECRET}\n\nx-team : serving \n")
    file.chmod(0o600)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue,x-team=other")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with Collector() as collector, exporting(collector.url, headers_file=file) as counts:
        wait_for(lambda: results(counts)[Result.DELIVERED] > 0)
    sent = collector.sent[0].headers
    assert sent["x-api-key"] == SECRET
    assert sent["x-tenant"] == "blue"
    assert sent["x-team"] == "serving", "the file is nearer than the variable"
    assert sent["content-encoding"] == "gzip"
    assert sent["content-type"] == "application/x-protobuf"


def test_no_log_shows_a_header_whatever_goes_wrong(tmp_path: Path, monkeypatch, caplog) -> None:
    file = tmp_path / "headers"
    file.write_text(f"x-api-key: {SECRET}\n")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"no header {SECRET},x-bad={SECRET}%0Ax: y")
    with caplog.at_level(logging.DEBUG):
        collector = Collector(lambda handler: handler.say(503))
        with collector, exporting(collector.url, headers_file=file) as counts:
            wait_for(lambda: results(counts)[Result.FAILED] > 0)
        with exporting(f"http://127.0.0.1:{free_port()}", headers_file=file) as counts:
            wait_for(lambda: results(counts)[Result.FAILED] > 0)
    assert caplog.records
    assert SECRET not in caplog.text
    assert "others may read" in caplog.text


def test_credentials_of_the_user_do_not_replace_the_headers(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    file = tmp_path / "headers"
    file.write_text(f"Authorization: Bearer {SECRET}\n")
    with Collector() as collector, exporting(collector.url, headers_file=file) as counts:
        wait_for(lambda: results(counts)[Result.DELIVERED] > 0)
    assert collector.sent[0].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("text", "line"),
    [(f"x-api-key {SECRET}", 1), (f"ok: yes\nbad name: {SECRET}", 2), (f"x: {SECRET}\x00", 1),
     (f"é: {SECRET}", 1), ("x:", 1)],
)  # fmt: skip
def test_a_line_that_is_no_header_is_named_and_not_shown(
    tmp_path: Path, text: str, line: int
) -> None:
    file = tmp_path / "headers"
    file.write_text(text)
    with pytest.raises(SettingsError, match=f"line {line} of ") as refused:
        read_headers(file)
    assert SECRET not in str(refused.value)


def test_a_headers_file_that_cannot_be_read_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="export_headers_file"):
        read_headers(tmp_path / "none")
    large = tmp_path / "large"
    large.write_bytes(b"#" * 70_000)
    with pytest.raises(SettingsError, match="over"):
        read_headers(large)


@pytest.mark.parametrize(
    "address",
    ["collector:4318", "grpc://host:4317", "http://", "http://host:99999", "http://u:p@host:4318",
     "http://host/?key=1", "http://host:4318/v1/metrics", "http://[::1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_with_its_setting(address: str) -> None:
    with pytest.raises(SettingsError, match=r"telemetry\.export_endpoint"):
        load_settings(None, {"telemetry.export_endpoint": address})


def test_nothing_is_exported_unless_asked_for(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert load_settings(None, {}).settings.telemetry.export_endpoint is None
    base = load_settings(None, {"telemetry.export_endpoint": "https://host:1/otlp/"})
    assert base.settings.telemetry.export_endpoint == "https://host:1/otlp"


def test_counts_know_how_long_nothing_was_delivered() -> None:
    counts = ExportCounts()
    assert counts.quiet_seconds() == {}
    assert not counts.exported(Signal.TRACES, Result.DELIVERED)
    assert counts.exported(Signal.TRACES, Result.FAILED, "away"), "news"
    assert not counts.exported(Signal.TRACES, Result.FAILED, "away"), "no news"
    before = counts.quiet_seconds()[Signal.TRACES]
    time.sleep(0.01)
    assert counts.quiet_seconds()[Signal.TRACES] > before
    counts.spans(Fate.DROPPED, 2)
    assert counts.fates()[Fate.DROPPED] == 2
