"""What the sidecar decides, as spans would tell it: names, times and attributes. Pure.

Attributes of GenAI's conventions where there are any, our own names for the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from kvready.advisor.contract import Answer, Answers, Question
from kvready.advisor.modes import Transition
from kvready.advisor.policies import Scope
from kvready.advisor.verdicts import Check, GateReport
from kvready.advisor.window_tracker import Key
from kvready.advisor.windows import WindowSummary
from kvready.collectors.records import EngineDescribed

READINESS = "kvready.readiness"
TRANSITION = "kvready.policy.transition"
GATE_VERDICT = "kvready.gate.verdict"
CANARY_WINDOW = "kvready.canary.window"
CANDIDATE = "kvready.candidate"
CHECK = "kvready.check"
MAX_EVENTS = 32  # candidates of one question that are told one by one; all are counted
MAX_CHARACTERS = 256  # of what callers and people wrote

Value = str | bool | int | float
Attributes = dict[str, Value]


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. Nanoseconds of the wall clock."""

    name: str
    began_nanoseconds: int
    ended_nanoseconds: int
    attributes: Attributes
    events: tuple[tuple[str, Attributes], ...] = ()
    traceparent: str = ""  # of whoever asked
    tracestate: str = ""
    request_ids: tuple[str, ...] = ()  # of the engine; their traces are linked
    report_id: str = ""  # of the gate report that it is, or rests on


def answered(
    question: Question,
    answers: Answers,
    engine: EngineDescribed | None,
    times_nanoseconds: tuple[int, int],
    trace: tuple[str, str],
) -> Decided:
    """A readiness answer. `trace`: the caller's traceparent and tracestate, empty for none."""
    decisions = Counter(str(one.decision) for one in answers.answers)
    attributes: Attributes = {
        "kvready.candidates": len(answers.answers),
        "kvready.ingest": answers.ingest,
        **{f"kvready.decisions.{name}": count for name, count in decisions.items()},
    }
    if engine is not None:
        attributes["gen_ai.provider.name"] = engine.engine
        attributes["gen_ai.request.model"] = engine.model[:MAX_CHARACTERS]
    ids = [one.request_id for one in question.candidates if one.request_id]
    told = zip(question.candidates, answers.answers, strict=True)
    events = tuple(
        (CANDIDATE, dict(_candidate(asked.request_id or "", answer)))
        for asked, answer in list(told)[:MAX_EVENTS]
    )
    return Decided(
        name=READINESS,
        began_nanoseconds=times_nanoseconds[0],
        ended_nanoseconds=times_nanoseconds[1],
        attributes=attributes,
        events=events,
        traceparent=trace[0],
        tracestate=trace[1],
        request_ids=tuple(ids[:MAX_EVENTS]),
    )


def _candidate(request_id: str, answer: Answer) -> Iterator[tuple[str, Value]]:
    if answer.id:
        yield "kvready.candidate.id", answer.id[:MAX_CHARACTERS]
    if request_id:
        yield "gen_ai.request.id", request_id[:MAX_CHARACTERS]  # as vLLM's own spans call it
    yield "kvready.decision", str(answer.decision)
    yield "kvready.reason", str(answer.reason)
    yield "kvready.evidence", str(answer.evidence)
    yield "kvready.model_version", answer.model_version
    yield "kvready.degraded", answer.degraded
    if answer.ready_seconds is not None:
        yield "kvready.ready.p50_seconds", answer.ready_seconds.p50
        yield "kvready.ready.low_seconds", answer.ready_seconds.low
        yield "kvready.ready.high_seconds", answer.ready_seconds.high
    if answer.in_time is not None:
        yield "kvready.in_time", str(answer.in_time)


def moved(transition: Transition, now_nanoseconds: int) -> Decided:
    """A policy moved."""
    before, after = transition.before, transition.after
    return Decided(
        name=TRANSITION,
        began_nanoseconds=now_nanoseconds,
        ended_nanoseconds=now_nanoseconds,
        attributes={
            **_subject(transition.policy, transition.scope),
            "kvready.trigger": str(transition.trigger),
            "kvready.by": str(transition.kind),
            "kvready.mode.before": str(before.mode),
            "kvready.mode": str(after.mode),
            "kvready.overlay.before": str(before.overlay),
            "kvready.overlay": str(after.overlay),
            "kvready.reason": transition.reason[:MAX_CHARACTERS],
            "kvready.forced": transition.forced,
            "kvready.revision": after.revision,
            "kvready.report_id": transition.report_id,
            "kvready.ingest": transition.ingest,
        },
        report_id=transition.report_id,
    )


def judged(report: GateReport, now_nanoseconds: int) -> Decided:
    """Gates gave their verdict."""
    checks = tuple((CHECK, dict(_check(check))) for check in report.checks[:MAX_EVENTS])
    return Decided(
        name=GATE_VERDICT,
        began_nanoseconds=now_nanoseconds,
        ended_nanoseconds=now_nanoseconds,
        attributes={
            **_subject(report.policy, report.scope),
            "kvready.policy.version": report.policy_version,
            "kvready.mode": str(report.mode),
            "kvready.verdict": str(report.verdict),
            "kvready.finding": str(report.finding or ""),
            "kvready.report_id": report.report_id,
            "kvready.ingest": report.made_ingest,
        },
        events=checks,
        report_id=report.report_id,
    )


def _check(check: Check) -> Iterator[tuple[str, Value]]:
    yield "kvready.gate", str(check.gate)
    yield "kvready.check", check.name
    yield "kvready.verdict", str(check.verdict)
    if check.value is not None:
        yield "kvready.value", float(check.value)
    if check.unit:
        yield "kvready.unit", check.unit


def windowed(key: Key, window: WindowSummary, now_nanoseconds: int) -> Decided:
    """A window of a canary is over: what was measured with the policy, or without it."""
    length_nanoseconds = round((window.end_seconds - window.begin_seconds) * 1e9)
    measured = {
        "kvready.over_target_ratio": window.over_target_ratio,
        "kvready.mean_ttft_seconds": window.mean_ttft_seconds,
    }
    return Decided(
        name=CANARY_WINDOW,
        began_nanoseconds=now_nanoseconds - max(length_nanoseconds, 0),
        ended_nanoseconds=now_nanoseconds,
        attributes={
            **_subject(*key),
            "kvready.arm": str(window.arm),
            "kvready.pair": window.pair,
            "kvready.requests": window.requests,
            "kvready.clean": window.is_clean,
            **{name: value for name, value in measured.items() if value is not None},
        },
    )


def _subject(policy: str, scope: Scope) -> Attributes:
    return {
        "kvready.policy": str(policy),
        "kvready.scope.engine": scope.engine[:MAX_CHARACTERS],
        "kvready.scope.pool": scope.pool[:MAX_CHARACTERS],
        "kvready.scope.request_class": scope.request_class[:MAX_CHARACTERS],
    }
