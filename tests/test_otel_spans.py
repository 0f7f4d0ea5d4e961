"""Spans of decisions: which get one, what it says, and whose trace it is linked to."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from otel_collector import wait_for

from kvready.advisor.service import otel_spans
from kvready.advisor.service.otel_counts import ExportCounts, Fate, Signal
from kvready.advisor.service.otel_courier import Courier
from kvready.advisor.service.otel_decisions import GATE_VERDICT, READINESS, TRANSITION, Decided
from kvready.advisor.service.otel_links import (
    MAX_TRACES,
    EngineTraces,
    context_of,
    span_context,
)
from kvready.advisor.service.otel_spans import (
    BATCH_SPANS,
    LINKED,
    MAX_QUEUED,
    Sampling,
    SpanExport,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{SPAN}-01"
ENGINE = "00-11111111111111111111111111111111-2222222222222222-01"


class Exporter:
    """Keeps what is exported, or fails."""

    def __init__(self) -> None:
        self.batches: list[list[ReadableSpan]] = []
        self.works = True

    def __call__(self, spans: Sequence[ReadableSpan]) -> bool:
        self.batches.append(list(spans))
        return self.works

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for batch in list(self.batches) for span in batch]


def decided(name: str = READINESS, **more: object) -> Decided:
    fields = {
        "name": name,
        "began_nanoseconds": 1_000,
        "ended_nanoseconds": 3_000,
        "attributes": {"kvready.candidates": 1},
    } | more
    return Decided(**fields)  # type: ignore[arg-type]


class Bench:
    """A span export that is flushed by hand."""

    def __init__(self, traces: EngineTraces | None = None, hold_seconds: float = 1e6) -> None:
        self.exporter = Exporter()
        self.counts = ExportCounts()
        courier = Courier(Signal.TRACES, self.exporter, lambda: "", self.counts)
        self.export = SpanExport(Resource({}), courier, self.counts, traces, hold_seconds)

    def flush(self) -> list[ReadableSpan]:
        self.exporter.batches.clear()
        self.export.flush(time.monotonic())
        return self.exporter.spans


def links(span: ReadableSpan) -> dict[str, str]:
    """Trace ids by what they are."""
    return {
        str((link.attributes or {})[LINKED]): f"{link.context.trace_id:032x}" for link in span.links
    }


def test_a_decision_becomes_a_span_with_its_own_times_and_events() -> None:
    bench = Bench()
    bench.export.offer(decided(events=(("kvready.candidate", {"kvready.reason": "hit"}),)))
    (span,) = bench.flush()
    assert (span.name, span.start_time, span.end_time) == (READINESS, 1_000, 3_000)
    assert dict(span.attributes or {}) == {"kvready.candidates": 1}
    assert span.parent is None
    (event,) = span.events
    assert (event.name, event.timestamp) == ("kvready.candidate", 3_000)
    assert bench.counts.fates()[Fate.DELIVERED] == 1


def test_a_span_belongs_to_the_trace_of_whoever_asked() -> None:
    bench = Bench()
    bench.export.offer(decided(traceparent=CALLER, tracestate="vendor=1"))
    (span,) = bench.flush()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == SPAN
    assert f"{span.get_span_context().trace_id:032x}" == TRACE
    assert span.get_span_context().trace_state.get("vendor") == "1"


@pytest.mark.parametrize(
    "nonsense",
    ["", "00", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", CALLER + "x", "\x00"],
)
def test_a_caller_who_sends_nonsense_gets_a_trace_of_its_own(nonsense: str) -> None:
    assert span_context(nonsense) is None
    bench = Bench()
    bench.export.offer(decided(traceparent=nonsense))
    (span,) = bench.flush()
    assert span.parent is None
    assert span.get_span_context().is_valid


@settings(max_examples=50)
@given(st.text(max_size=200), st.text(max_size=200))
def test_no_header_makes_reading_it_fail(traceparent: str, tracestate: str) -> None:
    context_of(traceparent, tracestate)


def test_a_question_about_a_request_waits_for_its_engines_span_and_is_linked_to_it() -> None:
    traces = EngineTraces()
    bench = Bench(traces)
    bench.export.offer(decided(request_ids=("cmpl-a-0-b673a854",)))
    bench.export.offer(decided())
    assert len(bench.flush()) == 1, "that of the other question"
    assert bench.export.waiting == 1
    traces.told("cmpl-a-0", ENGINE)  # as spans call the same request
    (span,) = bench.flush()
    assert links(span) == {"engine_request": "1" * 32}
    assert bench.export.waiting == 0


def test_a_span_waits_no_longer_than_its_bound_for_a_link() -> None:
    bench = Bench(EngineTraces(), hold_seconds=0.0)
    bench.export.offer(decided(request_ids=("a",)))
    bench.flush()
    (span,) = bench.flush() or bench.exporter.spans
    assert not span.links


def test_nothing_waits_where_no_tap_tells_of_the_engines_spans() -> None:
    bench = Bench(traces=None)
    bench.export.offer(decided(request_ids=("a",)))
    assert len(bench.flush()) == 1


def test_no_more_spans_wait_than_the_bound(monkeypatch) -> None:
    monkeypatch.setattr(otel_spans, "MAX_HELD", 3)
    bench = Bench(EngineTraces())
    for number in range(5):
        bench.export.offer(decided(request_ids=(f"request-{number}",)))
    assert len(bench.flush()) == 2
    assert bench.export.waiting == 3


def test_a_transition_is_linked_to_the_gate_report_that_it_rests_on() -> None:
    bench = Bench()
    bench.export.offer(decided(GATE_VERDICT, report_id="r1"))
    bench.export.offer(decided(TRANSITION, report_id="r1"))
    bench.export.offer(decided(TRANSITION, report_id="r2"))
    verdict, moved, other = bench.flush()
    assert links(moved) == {"gate_report": f"{verdict.get_span_context().trace_id:032x}"}
    assert not verdict.links
    assert not other.links


def test_the_latest_traces_are_known_in_bounded_number() -> None:
    traces = EngineTraces()
    for number in range(MAX_TRACES + 1):
        traces.told(f"r{number}", ENGINE)
    assert not traces.knows("r0")
    assert traces.span_of(f"r{MAX_TRACES}") == span_context(ENGINE)


def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    bench = Bench()
    for _ in range(MAX_QUEUED + 7):
        bench.export.offer(decided())
    assert bench.counts.fates()[Fate.DROPPED] == 7
    assert bench.export.waiting == MAX_QUEUED
    assert len(bench.flush()) == BATCH_SPANS


def test_spans_that_did_not_arrive_are_counted() -> None:
    bench = Bench()
    bench.exporter.works = False
    bench.export.offer(decided())
    bench.flush()
    assert bench.counts.fates() == {Fate.DELIVERED: 0, Fate.FAILED: 1, Fate.DROPPED: 0}


def test_stopping_exports_what_waits_and_takes_no_more() -> None:
    bench = Bench(EngineTraces())
    bench.export.start()
    for number in range(BATCH_SPANS + 1):
        bench.export.offer(decided(request_ids=(f"request-{number}",)))
    bench.export.stop(30.0)
    bench.export.stop(30.0)
    assert len(bench.exporter.spans) == BATCH_SPANS + 1
    bench.export.offer(decided())
    assert bench.counts.fates()[Fate.DROPPED] == 1


def test_a_running_export_sends_by_itself() -> None:
    bench = Bench()
    bench.export.start()
    for _ in range(2 * BATCH_SPANS):
        bench.export.offer(decided())
    wait_for(lambda: len(bench.exporter.spans) == 2 * BATCH_SPANS)
    bench.export.stop(30.0)


def test_what_was_never_started_can_be_stopped() -> None:
    Bench().export.stop(30.0)


@pytest.mark.parametrize("ratio", [0.01, 0.25, 1.0])
def test_the_share_of_traces_that_are_kept_is_the_one_that_was_set(ratio: float) -> None:
    sampling = Sampling(ratio)
    count = 20_000
    kept = sum(sampling.keeps() for _ in range(count))
    spread = (ratio * (1 - ratio) / count) ** 0.5
    assert abs(kept / count - ratio) <= 6 * spread


@given(st.integers(1, 2**128 - 1), st.floats(0.0, 1.0))
def test_a_callers_trace_is_kept_whole_or_not_at_all(trace_id: int, ratio: float) -> None:
    """By the same rule as everybody who samples by the trace's id; never against the caller."""
    sampled = f"00-{trace_id:032x}-{SPAN}-01"
    expected = trace_id % 2**64 < round(ratio * 2**64)
    assert [Sampling(ratio).keeps(sampled) for _ in range(2)] == [expected] * 2
    assert not Sampling(1.0).keeps(f"00-{trace_id:032x}-{SPAN}-00")
