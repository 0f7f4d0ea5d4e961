"""The audit's tail on the page: what happened to policies, who did it, and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from kvready.advisor.audit_chain import AuditEntry
from kvready.advisor.markup import marked, section, table
from kvready.advisor.policies import Overlay, PolicyState
from kvready.advisor.service.models import Status

SHOWN_ENTRIES = 12
HEAD_CHARACTERS = 16


def audit_section(status: Status, entries: Sequence[AuditEntry], problem: str) -> str:
    """The latest entries, newest first; or why none is shown."""
    control = status.control
    if problem:
        body = f"<p>{marked('bad', problem)}</p>"
    elif not entries:
        body = '<p class="dim">Nothing has happened to policies yet.</p>'
    else:
        rows = [_row(entry) for entry in reversed(entries)]
        body = table("audit", ["when (UTC)", "policy", "what", "who", "why"], rows, text_columns=5)
        body += (
            f'<p class="dim">{control.audit_sequence:,} entries; head '
            f"<code>{escape(control.audit_head[:HEAD_CHARACTERS])}…</code></p>"
        )
    if control.waiting:
        body += f"<p>{marked('bad', f'{control.waiting} entries wait for the disk')}</p>"
    return section("audit", "Audit, newest first", body, "broad")


def place_text(mode: str, overlay: str) -> str:
    """Where a policy stands, in a word or two."""
    return mode + (f" ({overlay.replace('_', ' ')})" if overlay != Overlay.NONE else "")


def _row(entry: AuditEntry) -> list[str]:
    moment = time.gmtime(entry.wall_seconds)
    return [
        f'<time datetime="{time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)}">'
        f"{time.strftime('%m-%d %H:%M:%S', moment)}</time>",
        escape(entry.policy or "all"),
        escape(_what(entry)),
        escape(entry.actor or "kvready"),
        escape(entry.reason),
    ]


def _what(entry: AuditEntry) -> str:
    before, after = entry.before, entry.after
    if before is None or after is None:
        return entry.event
    forced = ", forced" if entry.forced else ""
    what = (entry.trigger or entry.event).replace("_", " ")
    if _place(before) == _place(after):
        return f"{what}: stays in {_place(after)}{forced}"
    return f"{what}: {_place(before)} → {_place(after)}{forced}"


def _place(state: PolicyState) -> str:
    return place_text(state.mode, state.overlay)
