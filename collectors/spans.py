"""vLLM's `llm_request` spans as records: one per request, told when it ended.

The messages are OpenTelemetry's own (`opentelemetry-proto`, in the `sidecar` extra), imported where
they are needed so that the base install loads this module without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kvready.collectors.records import RequestReported, Surface

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

SPAN_NAME = "llm_request"
REQUEST_ID = "gen_ai.request.id"
MAX_ID_CHARACTERS = 256
MAX_SPANS = 16_384  # in one export; exporters send hundreds
MAX_TOKENS = 1 << 31
MAX_DURATION_SECONDS = 7 * 86_400.0
NANOSECONDS = 1e-9
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8

SECONDS = {
    "gen_ai.latency.time_in_queue": "queue_seconds",
    "gen_ai.latency.time_to_first_token": "ttft_seconds",
    "gen_ai.latency.e2e": "whole_seconds",
    "gen_ai.latency.time_in_model_prefill": "prefill_seconds",
    "gen_ai.latency.time_in_model_decode": "decode_seconds",
}
TOKENS = {
    "gen_ai.usage.prompt_tokens": "prompt_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.usage.cached_tokens": "cached_tokens",  # not yet sent by any version read so far
}


class Decoded(NamedTuple):
    """What one export held. `spans` counts all; `malformed`, requests that could not be read."""

    reports: list[RequestReported]
    spans: int
    malformed: int


class MalformedExport(ValueError):
    """The bytes are no export request."""


def load_messages() -> type[Any]:
    """The export request's message class. Raises ImportError without the `sidecar` extra."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    return trace_service_pb2.ExportTraceServiceRequest


def decode_export(payload: bytes, same_host: bool) -> Decoded:
    """The requests that an ExportTraceServiceRequest tells of. Raises MalformedExport."""
    from google.protobuf.message import DecodeError

    try:
        request = load_messages().FromString(payload)
    except DecodeError as error:
        raise MalformedExport(f"the body is no ExportTraceServiceRequest: {error}") from None
    reports: list[RequestReported] = []
    spans = malformed = 0
    for span in _spans(request):
        spans += 1
        if span.name != SPAN_NAME:
            continue
        report = _report(span, same_host) if spans <= MAX_SPANS else None
        if report is None:
            malformed += 1
        else:
            reports.append(report)
    return Decoded(reports, spans, malformed)


def _spans(request: Any) -> Iterable[Span]:
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            yield from scope_spans.spans


def _report(span: Span, same_host: bool) -> RequestReported | None:
    told: dict[str, Any] = {}
    request_id = ""
    for attribute in span.attributes:
        key, value = attribute.key, attribute.value
        if key == REQUEST_ID:
            request_id = value.string_value[:MAX_ID_CHARACTERS]
        elif key in SECONDS:
            told[SECONDS[key]] = _seconds(value)
        elif key in TOKENS:
            told[TOKENS[key]] = _tokens(value)
    if not request_id:
        return None
    begin, end = span.start_time_unix_nano, span.end_time_unix_nano
    return RequestReported(
        request_id=request_id,
        surface=Surface.FRONTEND,
        arrived_wall_seconds=begin * NANOSECONDS if begin else None,
        ended_wall_seconds=end * NANOSECONDS if end and end >= begin else None,
        same_host=same_host,
        traceparent=_traceparent(span.trace_id, span.span_id),
        **told,
    )


def _traceparent(trace_id: bytes, span_id: bytes) -> str:
    """The span's own context; empty where it has none that is valid. It was exported: sampled."""
    whole = len(trace_id) == TRACE_ID_BYTES and len(span_id) == SPAN_ID_BYTES
    if not (whole and any(trace_id) and any(span_id)):
        return ""
    return f"00-{trace_id.hex()}-{span_id.hex()}-01"


def _seconds(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind not in ("double_value", "int_value"):
        return None
    seconds = float(getattr(value, kind))
    return seconds if math.isfinite(seconds) and 0 <= seconds <= MAX_DURATION_SECONDS else None


def _tokens(value: Any) -> int | None:
    if value.WhichOneof("value") != "int_value":
        return None
    tokens = int(value.int_value)
    return tokens if 0 <= tokens < MAX_TOKENS else None
