"""What is told of each kind of decision, and which of them get a span."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from gate_reports import gate_report
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otel_collector import Collector, attributes
from served import AppClient
from story import Story

from kvready.advisor.control import ControlPlane
from kvready.advisor.policies import Mode, Policy, Scope
from kvready.advisor.service.app import create_app
from kvready.advisor.service.otel import Telemetry
from kvready.advisor.service.otel_counts import ExportCounts
from kvready.advisor.service.otel_courier import PATIENCE_SECONDS
from kvready.advisor.service.otel_decisions import (
    CANARY_WINDOW,
    GATE_VERDICT,
    MAX_CHARACTERS,
    MAX_EVENTS,
    READINESS,
    TRANSITION,
)
from kvready.advisor.service.otel_spans import HOLD_SECONDS, MAX_QUEUED
from kvready.advisor.service.runner import each
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import Settings
from kvready.advisor.telemetry_settings import TelemetrySettings
from kvready.advisor.verdicts import Verdict
from kvready.advisor.windows import Arm, WindowSummary
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.records import PolicyCommanded

CHAIN = list(range(1_000, 1_006))
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WINDOW = WindowSummary(
    begin_seconds=1.0, end_seconds=61.0, arm=Arm.TREATED, pair=3, requests=7, mean_ttft_seconds=0.5
)


class Told:
    """A telemetry whose spans are read once it has stopped."""

    def __init__(self, ratio: float) -> None:
        self.collector = Collector()
        self.collector.__enter__()
        settings = TelemetrySettings(
            export_endpoint=self.collector.url, export_seconds=3_600, span_ratio=ratio
        )
        self.telemetry = Telemetry(settings, ExportCounts(), sees_engine_spans=False)

    def spans(self) -> list[Span]:
        self.telemetry._spans.start()
        self.telemetry._spans.stop(60.0)
        self.telemetry.stop()
        return self.collector.spans()


@pytest.fixture
def told() -> Iterator[Told]:
    one = Told(ratio=1.0)
    yield one
    one.telemetry.stop()
    one.collector.__exit__()


@pytest.fixture
def seldom() -> Iterator[Told]:
    """Hardly any trace is kept."""
    one = Told(ratio=1e-12)
    yield one
    one.telemetry.stop()
    one.collector.__exit__()


def set_to(mode: Mode, reason: str = "to see") -> PolicyCommanded:
    return PolicyCommanded(
        action=PolicyAction.SET,
        policy=Policy.DEDUP,
        actor="me",
        reason=reason,
        mode=mode,
        forced=True,
    )


def ask(story: Story, telemetry: Telemetry, candidates: list[dict], **headers: str) -> dict:
    sidecar = Sidecar(
        Settings(),
        story.pipeline,
        PairTally(),
        replayed=Replayed("story.kvr", "simulated", {}),
        telemetry=telemetry,
    )
    sidecar.start()
    try:
        question = {"candidates": candidates}
        response = AppClient(create_app(sidecar)).post(
            "/v1/readiness", json=question, headers=headers
        )
        assert response.status_code == 200
        return response.json()
    finally:
        sidecar.stop()


def test_an_answer_about_readiness_is_a_span_in_the_askers_trace(told: Told, told_story) -> None:
    answers = ask(
        told_story,
        told.telemetry,
        [{"block_hashes": CHAIN, "id": "a"}, {"request_id": "nobody"}],
        traceparent=f"00-{TRACE}-{SPAN}-01",
    )["answers"]
    (span,) = told.spans()
    assert span.name == READINESS
    assert span.kind == Span.SPAN_KIND_SERVER
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    said = attributes(span.attributes)
    engine = told_story.pipeline.engine
    assert said["kvready.candidates"] == 2
    assert said["gen_ai.request.model"] == engine.model
    assert said["gen_ai.provider.name"] == engine.engine
    first, second = (attributes(event.attributes) for event in span.events)
    assert first["kvready.candidate.id"] == "a"
    assert second["gen_ai.request.id"] == "nobody"
    for event, answer in zip((first, second), answers, strict=True):
        assert event["kvready.decision"] == answer["decision"]
        assert event["kvready.reason"] == answer["reason"]
        ready = answer["ready_seconds"]
        assert event.get("kvready.ready.p50_seconds") == (ready and ready["p50"])
    assert said[f"kvready.decisions.{answers[0]['decision']}"] >= 1


def test_a_large_question_is_told_of_in_bounded_size(told: Told, told_story) -> None:
    name = "n" * 512
    ask(told_story, told.telemetry, [{"request_id": name, "id": name}] * 100)
    (span,) = told.spans()
    assert len(span.events) == MAX_EVENTS
    assert attributes(span.attributes)["kvready.candidates"] == 100
    values = [attributes(event.attributes)["kvready.candidate.id"] for event in span.events]
    assert {len(str(value)) for value in values} == {MAX_CHARACTERS}


@pytest.mark.parametrize(("flags", "count"), [("00", 0), ("01", 1)])
def test_a_caller_who_samples_nothing_gets_no_span(
    told: Told, told_story, flags: str, count: int
) -> None:
    ask(told_story, told.telemetry, [{"request_id": "a"}], traceparent=f"00-{TRACE}-{SPAN}-{flags}")
    assert len(told.spans()) == count


def test_an_answer_outside_the_share_gets_no_span(seldom: Told, told_story) -> None:
    ask(told_story, seldom.telemetry, [{"request_id": "a"}])
    assert seldom.spans() == []


def test_every_move_of_a_policy_is_told_of_however_small_the_share(seldom: Told) -> None:
    control = ControlPlane(seldom.telemetry.moved)
    reason = "x" * 1_000
    control.command(set_to(Mode.ADVISE, reason), (7, 1.0))
    (span,) = seldom.spans()
    assert span.name == TRANSITION
    said = attributes(span.attributes)
    assert said["kvready.policy"] == "dedup"
    assert (said["kvready.mode.before"], said["kvready.mode"]) == ("shadow", "advise")
    assert said["kvready.trigger"] == "raise"
    assert said["kvready.ingest"] == 7
    assert said["kvready.reason"] == "x" * MAX_CHARACTERS
    assert "me" not in said.values(), "who it was stays in the audit"


def test_a_verdict_is_told_of_when_it_is_another_one(seldom: Told) -> None:
    verdicts = [Verdict.PASS, Verdict.PASS, Verdict.FAIL, Verdict.FAIL, Verdict.PASS]
    for verdict in verdicts:
        seldom.telemetry.judged(gate_report(Policy.DEDUP, Mode.SHADOW, (1, 1.0), verdict))
    spans = seldom.spans()
    assert [span.name for span in spans] == [GATE_VERDICT] * 3
    said = [attributes(span.attributes)["kvready.verdict"] for span in spans]
    assert said == ["pass", "fail", "pass"]
    checks = [attributes(event.attributes) for event in spans[1].events]
    assert [check["kvready.gate"] for check in checks] == ["data", "benefit"]
    assert checks[1]["kvready.verdict"] == "fail"


def test_a_verdict_that_repeats_itself_is_told_of_for_its_share(told: Told) -> None:
    for _ in range(3):
        told.telemetry.judged(gate_report(Policy.DEDUP, Mode.SHADOW, (1, 1.0)))
    assert len(told.spans()) == 3


def test_windows_are_told_of_while_a_policy_acts(seldom: Told) -> None:
    moves = []
    control = ControlPlane(each(seldom.telemetry.moved, moves.append))
    key = (Policy.DEDUP, Scope())
    seldom.telemetry.windowed(key, WINDOW)
    for mode in (Mode.ADVISE, Mode.CANARY):
        control.command(set_to(mode), (7, 1.0))
    assert moves[-1].after.mode is Mode.CANARY
    seldom.telemetry.windowed(key, WINDOW)
    control.command(set_to(Mode.OFF), (8, 2.0))
    seldom.telemetry.windowed(key, WINDOW)
    windows = [span for span in seldom.spans() if span.name == CANARY_WINDOW]
    (window,) = windows
    said = attributes(window.attributes)
    assert said["kvready.arm"] == "treated"
    assert said["kvready.mean_ttft_seconds"] == 0.5
    assert "kvready.over_target_ratio" not in said, "unknown is not zero"
    assert window.end_time_unix_nano - window.start_time_unix_nano == 60 * 10**9


def test_no_spans_at_all_where_the_share_is_none(told_story) -> None:
    off = Told(ratio=0.0)
    ask(told_story, off.telemetry, [{"request_id": "a"}], traceparent=f"00-{TRACE}-{SPAN}-01")
    off.telemetry.judged(gate_report(Policy.DEDUP, Mode.SHADOW, (1, 1.0), Verdict.FAIL))
    assert off.spans() == []
    off.collector.__exit__()


def test_listeners_hear_in_turn_and_nobody_is_nobody() -> None:
    heard: list[str] = []
    assert each(None, None) is None
    only = each(None, heard.append)
    both = each(heard.append, heard.append)
    assert only is not None
    assert both is not None
    only("a")
    both("b")
    assert heard == ["a", "b", "b"]


def test_the_document_names_every_span_attribute_and_setting(told: Told, told_story) -> None:
    ask(told_story, told.telemetry, [{"block_hashes": CHAIN, "id": "a", "deadline_seconds": 9.0}])
    told.telemetry.judged(gate_report(Policy.DEDUP, Mode.SHADOW, (1, 1.0)))
    control = ControlPlane(told.telemetry.moved)
    for mode in (Mode.ADVISE, Mode.CANARY):
        control.command(set_to(mode), (7, 1.0))
    whole = msgspec.structs.replace(WINDOW, over_target_ratio=0.5)
    told.telemetry.windowed((Policy.DEDUP, Scope()), whole)
    text = Path("docs/otel.md").read_text(encoding="utf-8")
    spans = told.spans()
    assert {s.name for s in spans} == {READINESS, TRANSITION, GATE_VERDICT, CANARY_WINDOW}
    for span in spans:
        assert f"`{span.name}`" in text
        names = set(attributes(span.attributes))
        for event in span.events:
            assert f"`{event.name}`" in text
            names |= set(attributes(event.attributes))
        for name in names:
            if not name.startswith("kvready.decisions."):
                assert f"`{name.removeprefix('kvready.')}`" in text, name
    for name in TelemetrySettings.model_fields:
        assert f"`telemetry.{name}`" in text
    for bound in (MAX_EVENTS, f"{HOLD_SECONDS:g} s", f"{PATIENCE_SECONDS:g} s", f"{MAX_QUEUED:,}"):
        assert str(bound) in text
