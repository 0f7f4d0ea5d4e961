"""Policies on the page: where each stands and why, on what evidence, and what may be done."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from kvready.advisor.gate_text import FINDINGS, SAYS, figure
from kvready.advisor.markup import folded, marked, section, table
from kvready.advisor.policies import MODES, Finding, Overlay
from kvready.advisor.service.page_buttons import buttons, key_of, scope_text, switch
from kvready.advisor.service.page_facts import PageFacts
from kvready.advisor.service.policy_desk import KILL_FILE
from kvready.advisor.service.policy_models import PolicyDetail
from kvready.advisor.verdicts import Check, GateReport, Verdict

STYLES = {  # what stands in the way comes first
    Verdict.FAIL: "bad",
    Verdict.ERROR: "bad",
    Verdict.INCONCLUSIVE: "dim",
    Verdict.PASS: "good",
}


def policies_section(facts: PageFacts, may_read: bool, takes_changes: bool) -> str:
    """Every policy in every scope. `may_read`: also what wants a token beyond loopback."""
    control = facts.status.control
    may_change = takes_changes and facts.takes_commands
    acting = sum(one.mode.acts and one.overlay is Overlay.NONE for one in facts.policies)
    head = switch(control.killed_by, acting, f"{control.folder}/{KILL_FILE}") if may_change else ""
    cards = "".join(
        _card(one, gate, facts.now_seconds, may_read, may_change)
        for one, gate in zip(facts.policies, facts.gates, strict=True)
    )
    notes = "".join(f"<p>{note}</p>" for note in _notes(facts, may_read, takes_changes))
    return section("policies", "Policies", f'{notes}<div class="cards">{cards}</div>', "wide", head)


def _notes(facts: PageFacts, may_read: bool, takes_changes: bool) -> Iterator[str]:
    control = facts.status.control
    if control.killed_by:
        holders = ", ".join(control.killed_by)
        yield marked("bad", f"KILLED by {holders}: every policy is off.")
    for part, problem in control.failing.items():
        yield marked("bad", f"The {part} cannot be written ({problem}): what acts says OFF.")
    if not facts.takes_commands:
        yield marked("dim", "Nothing can be commanded here: no engine is attached.")
    elif not takes_changes:
        yield marked(
            "dim",
            "Nothing can be changed here, since no token for it is set: start the sidecar with "
            "--admin-token-file or --operator-token-file.",
        )
    if not may_read:
        yield marked("dim", "Evidence and audit want a token here: give one above.")


def _card(
    one: PolicyDetail, gate: GateReport | None, now: float, may_read: bool, may_change: bool
) -> str:
    if not may_read:
        one = one.model_copy(update={"next_step": None})
    key, where = key_of(one), scope_text(one)
    parts = [
        f'<h3 id="{key}">{escape(one.policy)}'
        + (f" {marked('scope', where)}" if where else "")
        + "</h3>",
        _ladder(one),
        f'<p class="stands">{_stands(one, now)}</p>',
    ]
    if one.reason:
        parts.append(f"<p>{marked('dim', 'because:')} {escape(one.reason)}</p>")
    if one.finding:
        parts.append(f"<p>{escape(f'{one.finding}: {FINDINGS[Finding(one.finding)]}')}</p>")
    if may_read:
        parts += [_next(one), _evidence(key, gate)]
    if may_change:
        parts.append(f'<div class="actions">{buttons(one)}</div>')
    return f'<article class="policy" aria-labelledby="{key}">{"".join(parts)}</article>'


def _ladder(one: PolicyDetail) -> str:
    """All modes in their order; the one of now is named, marked and underlined."""
    steps = "".join(
        f'<li class="{"past" if mode.rank < one.mode.rank else ""}"'
        + (' aria-current="step"' if mode is one.mode else "")
        + f">{mode}</li>"
        for mode in MODES
    )
    return f'<ol class="ladder" aria-label="Modes">{steps}</ol>'


def _stands(one: PolicyDetail, now: float) -> str:
    says = "flag ON" if one.mode.acts and one.overlay is Overlay.NONE else "flag OFF"
    parts = [marked("good" if says == "flag ON" else "dim", says)]
    if one.overlay is not Overlay.NONE:
        parts.append(marked("bad", one.overlay.replace("_", " ")))
    if one.forced:
        parts.append(marked("bad", "forced"))
    if one.held_by:
        parts.append(marked("bad", f"gave way to {one.held_by.replace('_', ' ')}"))
    if one.cooldown_seconds > 0.0:
        parts.append(escape(f"no promotion for {_coarse(one.cooldown_seconds)}"))
    if one.since_seconds > 0.0:
        parts.append(marked("dim", f"for {_coarse(max(now - one.since_seconds, 0.0))}"))
    parts.append(marked("dim", f"version {one.version}, revision {one.revision}"))
    return " · ".join(parts)


def _next(one: PolicyDetail) -> str:
    step = one.next_step
    if step is None or one.overlay is Overlay.KILLED:
        return ""
    if not step.lacks:
        return f"<p>Nothing is in the way of {escape(step.action)}.</p>"
    forced = "; may be forced" if step.forcible else ""
    lacks = "".join(f"<li>{escape(lack.says)}</li>" for lack in step.lacks)
    title = f"{step.action} lacks {len(step.lacks)}{forced}"
    return folded(f"{key_of(one)}-next", title, f"<ul>{lacks}</ul>")


def _evidence(key: str, gate: GateReport | None) -> str:
    if gate is None:
        return '<p class="dim">No gate report yet.</p>'
    passed = sum(check.verdict is Verdict.PASS for check in gate.checks)
    title = f"Evidence: {gate.verdict}, {passed} of {len(gate.checks)} checks pass"
    order = list(STYLES)
    rows = [_check(one) for one in sorted(gate.checks, key=lambda one: order.index(one.verdict))]
    heads = ["check", "says", "figure, limit"]
    told = f"{SAYS[gate.verdict]}. Report {gate.report_id}"
    body = f"<p>{escape(told)}</p>" + table(f"checks of {gate.policy}", heads, rows, text_columns=2)
    if gate.bad_cells:
        body += f"<p>{escape('Out of scope: ' + ', '.join(gate.bad_cells))}</p>"
    return folded(f"{key}-evidence", title, body)


def _check(check: Check) -> list[str]:
    limits = []
    if check.at_least is not None:
        limits.append(f"≥ {figure(check.at_least, check.unit)}")
    if check.at_most is not None:
        limits.append(f"≤ {figure(check.at_most, check.unit)}")
    value = "unknown" if check.value is None else figure(check.value, check.unit)
    name = escape(f"{check.gate}: {check.name.replace('_', ' ')}")
    return [
        name + (f" {marked('dim note', check.note)}" if check.note else ""),
        marked(STYLES[check.verdict], check.verdict),
        escape(value) + (f" {marked('dim note', ' and '.join(limits))}" if limits else ""),
    ]


def _coarse(seconds: float) -> str:
    """A time that is not renewed at every look."""
    if seconds < 60.0:
        return "under a minute"
    if seconds < 7_200.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3_600.0:.0f} h" if seconds < 172_800.0 else f"{seconds / 86_400.0:.0f} days"
