"""The page for a person on call: one document, and the part of it that is renewed while it shows.

Rendered here alone: the script in the browser puts a new rendering in place of the old one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

import msgspec

from kvready.advisor.audit_chain import AuditEntry
from kvready.advisor.contract import Evidence
from kvready.advisor.markup import marked, section
from kvready.advisor.policies import Overlay
from kvready.advisor.service.page_audit import audit_section
from kvready.advisor.service.page_buttons import switch
from kvready.advisor.service.page_facts import PageFacts
from kvready.advisor.service.page_figures import (
    WELL,
    hits_section,
    more_section,
    taps_section,
    waits_section,
)
from kvready.advisor.service.page_files import ASSETS, ICON, SCRIPT, STYLE
from kvready.advisor.service.page_policies import policies_section
from kvready.advisor.service.page_predictions import predictions_section


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What is rendered, and for whom."""

    facts: PageFacts
    audit: Sequence[AuditEntry]  # oldest first
    audit_problem: str
    may_read: bool  # evidence and audit
    takes_changes: bool
    wall_seconds: float


@cache
def _template() -> Template:
    return Template((files(__package__) / "page.html").read_text(encoding="utf-8"))


def render_page(looked: Looked) -> str:
    """The whole document."""
    return _document(_title(looked.facts), render_live(looked))


def render_without(problem: str, kill_file: str | None) -> str:
    """The document where nothing can be looked at now: what can be done all the same is there.

    `kill_file`: None where nobody can switch anything off.
    """
    kill = "" if kill_file is None else switch((), None, kill_file)
    told = f"<p>{marked('bad', f'{problem}.')} What was asked for is not known.</p>"
    live = (
        f'<div id="live" data-title="kvready" data-assets="{ASSETS}" data-reads="no"><header>'
        f"<h1>kvready</h1></header><main>{section('policies', 'Policies', told, 'wide', kill)}"
        "</main></div>"
    )
    return _document("kvready", live)


def _document(title: str, live: str) -> str:
    return _template().substitute(
        title=escape(title), icon=ICON.path, style=STYLE.path, script=SCRIPT.path, live=live
    )


def render_live(looked: Looked) -> str:
    """The part that is renewed."""
    facts = looked.facts
    status, report = facts.status, facts.report
    at = time.strftime("%H:%M:%S", time.gmtime(looked.wall_seconds))
    sections = [
        policies_section(facts, looked.may_read, looked.takes_changes),
        predictions_section(facts),
        waits_section(report),
        taps_section(status),
        audit_section(status, looked.audit, looked.audit_problem) if looked.may_read else "",
        hits_section(report.hits),
        more_section(report),
    ]
    return (
        f'<div id="live" data-title="{escape(_title(facts))}" data-assets="{ASSETS}"'
        f' data-reads="{"yes" if looked.may_read else "no"}"><header><h1>kvready '
        f'<span class="dim">{escape(_subject(facts))}</span></h1>'
        f'<p id="standing" role="status">{"; ".join(_standing(facts))}</p>'
        f'<p class="badges">{_badges(facts)} <span class="dim">as of {at} UTC</span></p></header>'
        f"<main>{''.join(sections)}</main></div>"
    )


def _subject(facts: PageFacts) -> str:
    engine = facts.status.engine or {}
    return f"{engine['engine']} · {engine['model']}" if engine else "no engine described yet"


def _title(facts: PageFacts) -> str:
    return "KILLED · kvready" if facts.status.control.killed_by else "kvready"


def _standing(facts: PageFacts) -> Iterator[str]:
    """What a screen reader is told when it changes, and only then."""
    status = facts.status
    killed_by = status.control.killed_by
    if killed_by:
        yield marked("bad", f"KILLED by {', '.join(killed_by)}")
    else:
        yield "kill switch off"
    bad = [f"{tap.tap} is {tap.state}" for tap in status.taps if tap.state not in WELL]
    if status.replayed:
        yield "a replay, no engine attached"
    elif bad:
        yield marked("bad", ", ".join(bad))
    else:
        yield f"all {len(status.taps)} taps deliver"
    acting = [
        f"{one.policy} in {one.mode}"
        for one in facts.policies
        if one.mode.acts and one.overlay is Overlay.NONE
    ]
    yield escape(f"acting: {', '.join(acting)}") if acting else "no policy acts"
    held = [
        f"{one.policy} is {one.overlay.replace('_', ' ')}"
        for one in facts.policies
        if one.overlay in (Overlay.PAUSED, Overlay.ROLLED_BACK)
    ]
    if held:
        yield marked("bad", ", ".join(held))


def _badges(facts: PageFacts) -> str:
    status, report = facts.status, facts.report
    plain = [f"evidence: {report.evidence}", f"level {status.level}", f"v{status.version}"]
    if status.replayed:
        plain.insert(0, f"replay of {status.replayed}")
    bad = []
    if report.evidence == Evidence.SIMULATED:
        bad.append("SIMULATED: no engine stands behind this")
    if active := [one for one in report.contradictions if one.active]:
        bad.append(f"{len(active)} contradictions")
    if drifting := dict.fromkeys(one.target for one in report.drifts if one.active):
        bad.append(f"drift: {', '.join(drifting)}")
    if status.recording.problem:
        bad.append(status.recording.problem)
    if status.ingest.dropped:
        bad.append(f"{status.ingest.dropped:,} records dropped")
    return " ".join(
        [marked("badge bad", text) for text in bad] + [marked("badge", text) for text in plain]
    )
