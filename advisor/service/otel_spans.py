"""Sampled decisions as spans: a bounded queue, and the thread that empties it.

Whoever decides leaves a few facts in the queue and goes on; when it is full they are dropped and
counted. A question about a request is asked while it waits, and its engine's span comes when it has
ended: the question's own span is held back for a while, so that it can be linked to that trace.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
)

from kvready.advisor.service.otel_counts import ExportCounts, Fate
from kvready.advisor.service.otel_courier import Courier
from kvready.advisor.service.otel_decisions import GATE_VERDICT, READINESS, Decided
from kvready.advisor.service.otel_links import EngineTraces, context_of, span_context
from kvready.advisor.version import VERSION

SCOPE = "kvready"
MAX_QUEUED = 2_048
MAX_HELD = 1_024  # that wait for the engine's span
MAX_REPORTS = 256  # gate reports whose spans transitions are linked to
BATCH_SPANS = 256
FLUSH_SECONDS = 2.0
HOLD_SECONDS = 120.0
LINKED = "kvready.link"


class Sampling:
    """A share of traces, the same everywhere: a trace that its caller sampled keeps its share."""

    def __init__(self, ratio: float) -> None:
        self._sampler = TraceIdRatioBased(ratio)
        self._ids = RandomIdGenerator()

    def keeps(self, traceparent: str = "") -> bool:
        """Whether a decision in this trace, or in one of its own, gets a span."""
        parent = span_context(traceparent) if traceparent else None
        if parent is not None and not parent.trace_flags.sampled:
            return False
        trace_id = parent.trace_id if parent is not None else self._ids.generate_trace_id()
        return self._sampler.should_sample(None, trace_id, "").decision is not Decision.DROP


class _Held(NamedTuple):
    decided: Decided
    until_seconds: float


class _Gathering(SpanProcessor):
    """Keeps ended spans until they are taken."""

    def __init__(self) -> None:
        self.ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class SpanExport:
    """`offer` from any thread; `start`, then `stop` (safe twice, and before `start`)."""

    def __init__(
        self,
        resource: Resource,
        courier: Courier[Sequence[ReadableSpan]],
        counts: ExportCounts,
        traces: EngineTraces | None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """`traces`: of the engine; None where no tap tells of its spans, and nothing is held."""
        self._courier = courier
        self._counts = counts
        self._traces = traces
        self._hold_seconds = hold_seconds
        self._queue: deque[Decided] = deque()
        self._held: deque[_Held] = deque()
        self._reports: OrderedDict[str, SpanContext] = OrderedDict()
        self._gathering = _Gathering()
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._gathering)
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-spans", daemon=True)

    def offer(self, decided: Decided) -> None:
        """Leave a decision, or count it as dropped. Never waits."""
        with self._lock:
            fits = len(self._queue) < MAX_QUEUED and not self._stopping.is_set()
            if fits:
                self._queue.append(decided)
        if not fits:
            self._counts.spans(Fate.DROPPED)
        elif len(self._queue) >= BATCH_SPANS:
            self._full.set()

    def start(self) -> None:
        """Begin to export."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Export what is left, for at most so long."""
        self._stopping.set()
        self._full.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    @property
    def waiting(self) -> int:
        """Decisions that are not exported yet."""
        return len(self._queue) + len(self._held)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._full.wait(FLUSH_SECONDS)
            self._full.clear()
            while self.flush(time.monotonic()) == BATCH_SPANS and not self._stopping.is_set():
                pass
        while self._queue or self._held:
            self.flush(None)
        self._provider.shutdown()

    def flush(self, now_seconds: float | None) -> int:
        """Export a batch of what need not wait any longer; None: all that waits is due."""
        for decided in self._due(now_seconds):
            self._end(decided)
        spans, self._gathering.ended = self._gathering.ended, []
        if spans:
            delivered = self._courier.send(spans)
            self._counts.spans(Fate.DELIVERED if delivered else Fate.FAILED, len(spans))
        return len(spans)

    def _due(self, now_seconds: float | None) -> list[Decided]:
        due: list[Decided] = []
        still: deque[_Held] = deque()
        for held in self._held:
            is_late = now_seconds is None or now_seconds >= held.until_seconds
            if len(due) < BATCH_SPANS and (is_late or self._is_linked(held.decided)):
                due.append(held.decided)
            else:
                still.append(held)
        self._held = still
        while len(due) < BATCH_SPANS:
            with self._lock:
                if not self._queue:
                    break
                decided = self._queue.popleft()
            holds = now_seconds is not None and len(self._held) < MAX_HELD
            if not holds or self._is_linked(decided):
                due.append(decided)
            else:
                self._held.append(_Held(decided, time.monotonic() + self._hold_seconds))
        return due

    def _is_linked(self, decided: Decided) -> bool:
        """Whether every engine span that it can be linked to is known."""
        traces = self._traces
        return traces is None or all(traces.knows(one) for one in decided.request_ids)

    def _end(self, decided: Decided) -> None:
        span = self._tracer.start_span(
            decided.name,
            context_of(decided.traceparent, decided.tracestate),
            SpanKind.SERVER if decided.name == READINESS else SpanKind.INTERNAL,
            decided.attributes,
            self._links(decided),
            decided.began_nanoseconds,
        )
        for name, attributes in decided.events:
            span.add_event(name, attributes, decided.ended_nanoseconds)
        span.end(decided.ended_nanoseconds)
        if decided.name == GATE_VERDICT:
            self._reports[decided.report_id] = span.get_span_context()
            if len(self._reports) > MAX_REPORTS:
                self._reports.popitem(last=False)

    def _links(self, decided: Decided) -> list[Link]:
        links: list[Link] = []
        if self._traces is not None:
            for request_id in decided.request_ids:
                found = self._traces.span_of(request_id)
                if found is not None:
                    links.append(Link(found, {LINKED: "engine_request"}))
        report = self._reports.get(decided.report_id)
        if report is not None:
            links.append(Link(report, {LINKED: "gate_report"}))
        return links
