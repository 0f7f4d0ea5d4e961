"""Whose trace something belongs to: what callers' headers say, and what the engine's spans told."""

from __future__ import annotations

import threading
from collections import OrderedDict

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvready.collectors.request_ids import reported_id

MAX_TRACES = 16_384  # at 1,000 requests a second, those of a quarter of a minute

_propagator = TraceContextTextMapPropagator()


def context_of(traceparent: str, tracestate: str = "") -> Context:
    """What a caller's headers say; an empty context where they say nothing, or nonsense."""
    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    return _propagator.extract(carrier, Context())


def span_context(traceparent: str) -> SpanContext | None:
    """The span that a traceparent names; None for nonsense."""
    found = get_current_span(context_of(traceparent)).get_span_context()
    return found if found.is_valid else None


class EngineTraces:
    """The spans of the engine's latest requests. Told in the ingest thread, asked in others."""

    def __init__(self) -> None:
        self._traces: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def told(self, request_id: str, traceparent: str) -> None:
        """A request ended, and its span had this context."""
        with self._lock:
            self._traces[request_id] = traceparent
            if len(self._traces) > MAX_TRACES:
                self._traces.popitem(last=False)

    def knows(self, request_id: str) -> bool:
        """Whether its span was told of, under any of its names, and not too long ago."""
        return bool(self._of(request_id))

    def span_of(self, request_id: str) -> SpanContext | None:
        """That span; None where it is not known."""
        return span_context(self._of(request_id))

    def _of(self, request_id: str) -> str:
        with self._lock:
            return self._traces.get(request_id) or self._traces.get(reported_id(request_id), "")
