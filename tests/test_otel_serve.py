"""The sidecar as it runs: figures and spans reach a collector; a dead one is in nobody's way."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from otel_collector import Collector, attributes, metrics_of
from publisher import Publisher
from served import Served, free_port, serving

from kvready.advisor.service.otel_counts import ExportCounts
from kvready.advisor.service.runner import telemetry_of
from kvready.advisor.settings import Settings
from kvready.advisor.tap_settings import TapSettings
from kvready.advisor.telemetry_settings import TelemetrySettings
from kvready.collectors.errors import SettingsError

TRACE, SPAN = bytes.fromhex("0af7651916cd43dd8448eb211c80319c"), bytes.fromhex("b7ad6b7169203331")
SCHEDULED, REPORTED = "cmpl-a-0-b673a854", "cmpl-a-0"  # one request's names
CALLER = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kv"))
    yield path
    shutil.rmtree(path)


def command(folder: Path, engine: Publisher, *more: object) -> tuple[object, ...]:
    return (
        *("serve", "--kv-events", engine.events, "--state-dir", folder / "state"),
        *("--export-seconds", 1, "--span-ratio", 1, *more),
    )


def engine_span() -> bytes:
    """What vLLM exports when that request has ended."""
    named = KeyValue(key="gen_ai.request.id", value=AnyValue(string_value=REPORTED))
    span = Span(name="llm_request", trace_id=TRACE, span_id=SPAN, attributes=[named])
    scope = ScopeSpans(spans=[span])
    request = ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[scope])])
    return request.SerializeToString()


def sums(collector: Collector, name: str) -> dict[str, float]:
    """A counter in the latest export, by its label values."""
    if not collector.exports():
        return {}
    return {
        "/".join(map(str, attributes(point.attributes).values())): point.as_double
        for metric in metrics_of(collector.exports()[-1])
        if metric.name == name
        for point in metric.sum.data_points
    }


def asked(served: Served) -> None:
    question = {"candidates": [{"request_id": SCHEDULED}]}
    response = served.client.post("/v1/readiness", json=question, headers={"traceparent": CALLER})
    assert response.status_code == 200


def test_figures_and_linked_spans_reach_the_collector_and_the_last_ones_too(folder: Path) -> None:
    spans_port = free_port()
    with Collector() as collector, Publisher(folder) as engine:
        started = command(
            folder, engine, "--export-endpoint", collector.url, "--otlp-http-port", spans_port
        )
        with serving(*started, port=free_port()) as served:

            def heard() -> bool:
                engine.store(1)
                return sums(collector, "kvready.tap_messages").get("kv-events", 0) > 0

            served.wait_for(heard)
            asked(served)
            httpx.post(
                f"http://127.0.0.1:{spans_port}/v1/traces",
                content=engine_span(),
                headers={"Content-Type": "application/x-protobuf"},
            ).raise_for_status()
            served.wait_for(lambda: bool(collector.spans()))
            (span,) = collector.spans()
            assert span.trace_id.hex() == CALLER.split("-")[1]
            (link,) = span.links
            assert (link.trace_id, link.span_id) == (TRACE, SPAN)
            status = served.get("/v1/status").json()["telemetry"]
            assert status["endpoint"] == collector.url
            assert status["exports"]["metrics"]["delivered"] > 0
            assert status["problems"] == {"metrics": "", "traces": ""}
            before = len(collector.exports())
            asked(served)  # waits for a link that never comes, and leaves when the sidecar ends
            code, errors = served.end()
        assert code == 0, errors
        assert len(collector.exports()) > before
        assert len(collector.spans()) == 2
        assert f"go to {collector.url}" in errors


def test_a_collector_that_is_away_is_seen_in_the_status_and_slows_no_end(
    folder: Path, monkeypatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # seconds for which one export is tried
    nowhere = f"http://127.0.0.1:{free_port()}"
    with Publisher(folder) as engine:
        started = command(folder, engine, "--export-endpoint", nowhere)
        with serving(*started, port=free_port()) as served:

            def failed() -> bool:
                told = served.get("/v1/status").json()["telemetry"]
                return bool(told["exports"]["metrics"]["failed"])

            served.wait_for(failed)
            engine.store(1)
            asked(served)
            problem = served.get("/v1/status").json()["telemetry"]["problems"]["metrics"]
            assert "not reached" in problem
            name = 'kvready_otel_exports_total{result="failed",signal="metrics"}'
            assert name in served.get("/metrics").text
            code, errors = served.end()
        assert code == 0
        assert errors.count("not reached") <= 4, "said once, not each time"


def test_whoever_exports_nothing_loads_nothing_for_it() -> None:
    check = (
        "import sys, kvready.advisor.service.runner\n"
        "heavy = {'requests', 'opentelemetry.sdk', 'opentelemetry.exporter'} & sys.modules.keys()\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_variable_of_opentelemetry_switches_exports_on_and_one_switches_them_off(
    monkeypatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert telemetry_of(Settings(), ExportCounts()) is None
    named = Settings(telemetry=TelemetrySettings(export_endpoint="http://127.0.0.1:4318"))
    made = telemetry_of(named, ExportCounts())
    assert made is not None
    made.stop()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert telemetry_of(named, ExportCounts()) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_exports_into_ones_own_receiver_are_refused(host: str) -> None:
    settings = Settings(
        taps=TapSettings(otlp_http_port=4318),
        telemetry=TelemetrySettings(export_endpoint=f"http://{host}:4318"),
    )
    with pytest.raises(SettingsError, match="--export-endpoint"):
        telemetry_of(settings, ExportCounts())
    elsewhere = TelemetrySettings(export_endpoint=f"http://{host}")
    other = telemetry_of(Settings(telemetry=elsewhere), ExportCounts())
    assert other is not None
    other.stop()
