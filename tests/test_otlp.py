"""The OTLP receiver: every span of a real engine over both protocols; nothing hurts it."""

from __future__ import annotations

import gzip
import http.client
import json
import queue
import socket
import threading
import time
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvready.collectors import contract, otlp_forward
from kvready.collectors.contract import Gathered
from kvready.collectors.errors import TapError
from kvready.collectors.otlp import OtlpTap
from kvready.collectors.otlp_exchange import MAX_EXPORT_BYTES, Export, Refusal
from kvready.collectors.otlp_forward import MAX_QUEUED_EXPORTS, Forwarder
from kvready.collectors.otlp_grpc import METHOD, SERVICE, is_local_peer
from kvready.collectors.otlp_http import PROTOBUF, gunzip, is_loopback, status_message
from kvready.collectors.records import RequestReported, TapEvent, TapState
from kvready.collectors.spans import MalformedExport, decode_export

CAPTURE = Path("tests/fixtures/vllm_spans.jsonl.gz")
PATIENCE_SECONDS = 20.0


def captured() -> list[dict[str, Any]]:
    """The export requests of a real engine, as JSON."""
    with gzip.open(CAPTURE, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["req"] for line in lines]


def as_bytes(request: dict[str, Any]) -> bytes:
    return ParseDict(request, ExportTraceServiceRequest()).SerializeToString()


def plainly_parsed(request: dict[str, Any]) -> list[RequestReported]:
    """The same requests read straight from the JSON, sharing nothing with the decoder."""
    found = []
    for resource in request["resourceSpans"]:
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            if span["name"] != "llm_request":
                continue
            value = {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}
            found.append(
                RequestReported(
                    request_id=value["gen_ai.request.id"],
                    surface="frontend",  # type: ignore[arg-type]
                    arrived_wall_seconds=int(span["startTimeUnixNano"]) / 1e9,
                    ended_wall_seconds=int(span["endTimeUnixNano"]) / 1e9,
                    same_host=True,
                    queue_seconds=value["gen_ai.latency.time_in_queue"],
                    prefill_seconds=value["gen_ai.latency.time_in_model_prefill"],
                    decode_seconds=value["gen_ai.latency.time_in_model_decode"],
                    ttft_seconds=value["gen_ai.latency.time_to_first_token"],
                    whole_seconds=value["gen_ai.latency.e2e"],
                    prompt_tokens=int(value["gen_ai.usage.prompt_tokens"]),
                    output_tokens=int(value["gen_ai.usage.completion_tokens"]),
                    traceparent="-".join(
                        ("00", *(b64decode(span[n]).hex() for n in ("traceId", "spanId")), "01")
                    ),
                )
            )
    return found


def close_to(record: RequestReported) -> dict[str, Any]:
    return {
        name: pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
        for name in record.__struct_fields__
        for value in (getattr(record, name),)
    }


def test_every_request_of_a_real_engines_spans_is_decoded() -> None:
    total = 0
    for request in captured():
        decoded = decode_export(as_bytes(request), same_host=True)
        expected = plainly_parsed(request)
        assert [close_to(one) for one in expected] == [
            {name: getattr(one, name) for name in one.__struct_fields__} for one in decoded.reports
        ]
        assert decoded.malformed == 0
        total += len(expected)
    assert total == 303


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_a_refusal(payload: bytes) -> None:
    with suppress(MalformedExport):
        decode_export(payload, same_host=True)


@given(st.data())
def test_damaged_spans_never_raise_and_never_lie(data: st.DataObject) -> None:
    """Attributes of the wrong type, impossible durations, no id: left out, or counted."""
    values = st.one_of(
        st.floats().map(lambda x: {"doubleValue": x}),
        st.integers(-(2**63), 2**63 - 1).map(lambda x: {"intValue": str(x)}),
        st.text(max_size=8).map(lambda x: {"stringValue": x}),
        st.just({}),
    )
    names = ["gen_ai.request.id", "gen_ai.usage.prompt_tokens", "gen_ai.latency.e2e", "other"]
    attributes = data.draw(
        st.lists(st.tuples(st.sampled_from(names), values), max_size=6), "attributes"
    )
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    span.name = "llm_request"
    span.start_time_unix_nano = data.draw(st.integers(0, 2**64 - 1))
    span.end_time_unix_nano = data.draw(st.integers(0, 2**64 - 1))
    for name, value in attributes:
        attribute = span.attributes.add()
        attribute.key = name
        for kind, content in value.items():
            field = {"doubleValue": "double_value", "intValue": "int_value"}.get(
                kind, "string_value"
            )
            setattr(attribute.value, field, int(content) if kind == "intValue" else content)
    decoded = decode_export(message.SerializeToString(), same_host=False)
    assert decoded.spans == 1
    assert len(decoded.reports) + decoded.malformed == 1
    for report in decoded.reports:
        assert report.request_id
        assert report.whole_seconds is None or 0 <= report.whole_seconds < 1e7
        assert report.prompt_tokens is None or report.prompt_tokens >= 0


class Listening:
    """A started tap with both ports, and what it delivered."""

    def __init__(self, forward: str | None = None) -> None:
        self.sink = Gathered()
        self.tap = OtlpTap("spans", http_port=0, grpc_port=0, forward=forward)
        self.tap.start(self.sink)

    def post(self, body: bytes, path: str = "/v1/traces", **headers: str) -> tuple[int, bytes]:
        """POST over HTTP; headers by name with `_` for `-`."""
        assert self.tap.http_port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.tap.http_port, timeout=10)
        given = {"Content-Type": PROTOBUF} | {k.replace("_", "-"): v for k, v in headers.items()}
        try:
            connection.request("POST", path, body, given)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def call(self, payload: bytes, **options: Any) -> bytes:
        """Export over gRPC."""
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{self.tap.grpc_port}") as channel:
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{METHOD}")(
                payload, timeout=10, **options
            )
        return answer

    def gather(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not until():
            assert time.monotonic() < deadline, f"in vain: {self.tap.coverage()}"
            self.tap.poll(0.05)


@pytest.fixture
def listening() -> Iterator[Listening]:
    made = Listening()
    yield made
    made.tap.stop()


@pytest.mark.parametrize("way", ["http", "http gzip", "grpc", "grpc gzip"])
def test_a_real_engines_exports_arrive_whole(listening: Listening, way: str) -> None:
    import grpc

    for request in captured():
        payload = as_bytes(request)
        if way.startswith("grpc"):
            kind = grpc.Compression.Gzip if "gzip" in way else grpc.Compression.NoCompression
            assert listening.call(payload, compression=kind) == b""
        elif "gzip" in way:
            body = gzip.compress(payload)
            assert listening.post(body, Content_Encoding="gzip") == (200, b"")
        else:
            assert listening.post(payload) == (200, b"")
    listening.gather(lambda: len(listening.sink.facts) >= 303)
    assert len(listening.sink.facts) == 303
    assert all(isinstance(fact, RequestReported) for fact in listening.sink.facts)
    assert all(fact.same_host for fact in listening.sink.facts)  # type: ignore[union-attr]
    coverage = listening.tap.coverage()
    assert (coverage.decode_errors, coverage.dropped, coverage.messages) == (0, 0, 5)


BOMB = gzip.compress(bytes(64 * 2**20), mtime=0)


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "reason"),
    [
        (b"\xff", "/v1/traces", {}, 400, "no ExportTraceServiceRequest"),
        (b"no gzip", "/v1/traces", {"Content_Encoding": "gzip"}, 400, "not gzip"),
        (BOMB[:-20], "/v1/traces", {"Content_Encoding": "gzip"}, 413, "once decompressed"),
        (
            gzip.compress(b"", mtime=0)[:-2],
            "/v1/traces",
            {"Content_Encoding": "gzip"},
            400,
            "cut short",
        ),
        (BOMB, "/v1/traces", {"Content_Encoding": "gzip"}, 413, "once decompressed"),
        (b"", "/v1/traces", {"Content_Encoding": "br"}, 415, "use gzip or none"),
        (b"{}", "/v1/traces", {"Content_Type": "application/json"}, 415, "http/protobuf"),
        (b"", "/v1/metrics", {}, 404, "/v1/traces"),
        (b"", "/v1/traces", {"Content_Length": str(2**40)}, 413, "at most"),
        (b"", "/v1/traces", {"Content_Length": "-1"}, 411, "Content-Length"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_a_reason_and_counted(
    listening: Listening,
    body: bytes,
    path: str,
    headers: dict[str, str],
    status: int,
    reason: str,
) -> None:
    answered, said = listening.post(body, path, **headers)
    assert answered == status
    assert reason in said.decode("utf-8", "replace")
    listening.gather(lambda: listening.tap.coverage().decode_errors == 1)
    [news] = listening.sink.news(TapEvent.DECODE_ERROR)
    assert reason in news.detail
    assert listening.post(as_bytes(captured()[0]))[0] == 200


def test_a_grpc_bomb_is_refused_and_the_next_export_taken(listening: Listening) -> None:
    import grpc

    with pytest.raises(grpc.RpcError) as refused:
        listening.call(bytes(8 * MAX_EXPORT_BYTES), compression=grpc.Compression.Gzip)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    with pytest.raises(grpc.RpcError) as refused:
        listening.call(b"\xff")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert listening.call(b"") == b""


@pytest.mark.parametrize(
    "spoken", [b"", b"\x00\xff\n\n", b"POST /v1/traces HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"]
)
def test_a_client_that_leaves_early_harms_nobody(listening: Listening, spoken: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listening.tap.http_port or 0)) as client:
        client.sendall(spoken)
    assert listening.post(as_bytes(captured()[0]))[0] == 200


@given(st.binary(max_size=2_000))
def test_gunzip_returns_what_was_packed_and_never_more_than_allowed(content: bytes) -> None:
    assert gunzip(gzip.compress(content)) == content
    with pytest.raises(Refusal):
        gunzip(gzip.compress(content) + b"more")


@given(st.text(max_size=500))
def test_a_refusal_is_a_status_message_that_protobuf_reads(reason: str) -> None:
    """Checked against protobuf's own reader of unknown fields, through any message."""
    body = status_message(reason)
    assert body[0] == 0x12
    size, width = body[1], 2
    if size & 0x80:
        size, width = (size & 0x7F) | body[2] << 7, 3
    assert body[width:] == reason.encode()[:1_000]
    assert len(body[width:]) == size


class Downstream(HTTPServer):
    """A collector that keeps what it is sent, or refuses, or hangs."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[tuple[bytes, str]] = queue.Queue()
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.hold.wait(PATIENCE_SECONDS)
                outer.bodies.put((body, self.headers.get("Content-Encoding", "")))
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def end(self) -> None:
        self.hold.set()
        self.shutdown()
        self.server_close()


@pytest.fixture
def downstream() -> Iterator[Downstream]:
    made = Downstream()
    yield made
    made.end()


def test_exports_are_passed_on_byte_for_byte(downstream: Downstream) -> None:
    listening = Listening(forward=downstream.url)
    try:
        payload = as_bytes(captured()[0])
        packed = gzip.compress(payload)
        listening.post(payload)
        listening.post(packed, Content_Encoding="gzip")
        listening.call(payload)
        got = [downstream.bodies.get(timeout=PATIENCE_SECONDS) for _ in range(3)]
        assert got == [(payload, ""), (packed, "gzip"), (payload, "")]
        listening.post(b"\xff")  # what we refuse is the exporter's to report, not ours to pass on
    finally:
        listening.tap.stop()
    assert downstream.bodies.empty()


def test_exports_are_passed_on_over_grpc_too(listening: Listening) -> None:
    passing = Listening(forward=f"grpc://127.0.0.1:{listening.tap.grpc_port}")
    try:
        payload = as_bytes(captured()[0])
        passing.post(gzip.compress(payload), Content_Encoding="gzip")
        listening.gather(lambda: listening.tap.coverage().messages == 1)
    finally:
        passing.tap.stop()


def test_a_downstream_that_hangs_never_holds_up_the_exporter(downstream: Downstream) -> None:
    downstream.hold.clear()
    forwarder = Forwarder(downstream.url)
    for _ in range(3 * MAX_QUEUED_EXPORTS):
        forwarder.put(Export(b"x", "", b"x"))
    assert forwarder.dropped >= 2 * MAX_QUEUED_EXPORTS - 1
    assert "full" in forwarder.last_problem
    downstream.hold.set()
    forwarder.close()
    assert forwarder.sent + forwarder.dropped == 3 * MAX_QUEUED_EXPORTS


@pytest.mark.parametrize("kind", ["refuses", "is away"])
def test_a_downstream_that_refuses_or_is_away_is_counted(downstream: Downstream, kind: str) -> None:
    downstream.status = 503
    url = downstream.url if kind == "refuses" else "http://127.0.0.1:1"
    forwarder = Forwarder(url)
    forwarder.put(Export(b"x", "", b"x"))
    forwarder.close()
    assert (forwarder.sent, forwarder.dropped) == (0, 1)
    assert forwarder.last_problem


def test_large_exports_are_bounded_by_bytes_too(downstream: Downstream) -> None:
    downstream.hold.clear()
    forwarder = Forwarder(downstream.url)
    large = bytes(MAX_EXPORT_BYTES)
    for _ in range(2 * otlp_forward.MAX_QUEUED_BYTES // MAX_EXPORT_BYTES):
        forwarder.put(Export(large, "", large))
    assert forwarder.dropped > 0
    downstream.hold.set()
    forwarder.close()


def test_the_tap_lives_waits_and_says_that_it_closed() -> None:
    def make() -> OtlpTap:
        return OtlpTap("spans", http_port=0, grpc_port=0)

    contract.check_lifecycle(make)
    contract.check_no_data_is_not_failure(make)


def test_ports_and_downstreams_that_cannot_work_are_refused_at_start(listening: Listening) -> None:
    taken = listening.tap
    contract.check_impossible_endpoints(
        [
            lambda: OtlpTap("spans", http_port=taken.http_port),
            lambda: OtlpTap("spans", grpc_port=taken.grpc_port),
            lambda: OtlpTap("spans", http_port=0, forward="ftp://host"),
            lambda: OtlpTap("spans", http_port=0, forward="http://host:99999"),
        ]
    )


def test_a_tap_that_could_not_start_left_no_port_open(listening: Listening) -> None:
    tap = OtlpTap("spans", http_port=0, grpc_port=listening.tap.grpc_port)
    with pytest.raises(TapError):
        tap.start(Gathered())
    assert tap.coverage().state is TapState.CLOSED


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_only_loopback_peers_share_our_clock(address: str, local: bool) -> None:
    assert is_loopback(address) is local


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:4", True),
        ("ipv6:%5B::1%5D:4", True),
        ("ipv4:192.0.2.1:4", False),
        ("unix:", True),
        ("unknown", False),
    ],
)
def test_a_grpc_peer_is_recognised_as_local(peer: str, local: bool) -> None:
    assert is_local_peer(peer) is local


def test_deflate_is_no_gzip() -> None:
    with pytest.raises(Refusal):
        gunzip(zlib.compress(b"x"))
