"""Request spans as vLLM exports them: `llm_request`, made once when a request has ended well."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from kvready.advisor.whatif.sim_engine.accounts import Served
from kvready.collectors.otlp_exchange import Export
from kvready.collectors.otlp_forward import Forwarder
from kvready.collectors.spans import REQUEST_ID, SPAN_NAME, load_messages

SCOPE = "vllm.tracing.otel"
SERVICE_NAME = "kvready sim-engine (SIMULATED)"
EXPORT_EVERY_SECONDS = 1.0
MAX_SPANS_PER_EXPORT = 512
MAX_WAITING_SPANS = 8_192
KIND_SERVER = 2
NANOSECONDS = 1e9


class SpanExporter:
    """Gathers what ended and exports it now and then; a slow collector costs spans, never time."""

    def __init__(self, endpoint: str, monotonic_to_wall_seconds: float) -> None:
        self.dropped = 0
        self._message = load_messages()
        self._forwarder = Forwarder(endpoint)
        self._offset = monotonic_to_wall_seconds
        self._waiting: list[Served] = []
        self._exported_seconds = time.monotonic()

    @property
    def problem(self) -> str:
        """Why the last export failed; empty if none did."""
        return self._forwarder.last_problem

    def add(self, served: Served) -> None:
        """A request ended."""
        if len(self._waiting) >= MAX_WAITING_SPANS:
            self.dropped += 1
            return
        self._waiting.append(served)
        now = time.monotonic()
        if now - self._exported_seconds >= EXPORT_EVERY_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand over what waits."""
        self._exported_seconds = time.monotonic()
        waiting, self._waiting = self._waiting, []
        for begin in range(0, len(waiting), MAX_SPANS_PER_EXPORT):
            payload = self._encode(waiting[begin : begin + MAX_SPANS_PER_EXPORT])
            self._forwarder.put(Export(payload, "", payload))

    def close(self) -> None:
        """Export the rest and stop."""
        self.flush()
        self._forwarder.close()

    def _encode(self, served: Sequence[Served]) -> bytes:
        request = self._message()
        resource = request.resource_spans.add()
        named = resource.resource.attributes.add()
        named.key, named.value.string_value = "service.name", SERVICE_NAME
        scope = resource.scope_spans.add()
        scope.scope.name = SCOPE
        for one in served:
            digest = hashlib.blake2b(one.request_id.encode(), digest_size=24).digest()
            span = scope.spans.add()
            span.trace_id, span.span_id = digest[:16], digest[16:]
            span.name, span.kind = SPAN_NAME, KIND_SERVER
            span.start_time_unix_nano = round((one.arrived_seconds + self._offset) * NANOSECONDS)
            span.end_time_unix_nano = round((one.finished_seconds + self._offset) * NANOSECONDS)
            for key, value in _attributes(one).items():
                attribute = span.attributes.add()
                attribute.key = key
                if isinstance(value, str):
                    attribute.value.string_value = value
                elif isinstance(value, int):
                    attribute.value.int_value = value
                else:
                    attribute.value.double_value = value
        return bytes(request.SerializeToString())


def _attributes(one: Served) -> dict[str, str | int | float]:
    queue = one.scheduled_seconds - one.arrived_seconds
    prefill = one.first_token_seconds - one.scheduled_seconds
    decode = one.finished_seconds - one.first_token_seconds
    return {
        REQUEST_ID: one.request_id,
        "gen_ai.request.max_tokens": one.output_token_limit,
        "gen_ai.usage.prompt_tokens": one.prompt_tokens,
        "gen_ai.usage.completion_tokens": one.output_tokens,
        "gen_ai.latency.time_in_queue": queue,
        "gen_ai.latency.time_to_first_token": queue + prefill,
        "gen_ai.latency.time_in_model_prefill": prefill,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": prefill + decode,
        "gen_ai.latency.e2e": queue + prefill + decode,
    }
