"""What a sidecar says of policies, as text for a terminal."""

from __future__ import annotations

import time
from typing import Any

MODE_CHARACTERS, NAME_CHARACTERS = 8, 9


def policies_text(document: dict[str, Any]) -> str:
    """One line a policy and scope, then what it lacks to go on."""
    lines = []
    control = document["control"]
    if control["killed_by"]:
        lines.append(f"KILLED by {', '.join(control['killed_by'])}: every policy is off")
    for part, problem in control["failing"].items():
        lines.append(f"the {part} cannot be written ({problem}): what acts says OFF")
    for one in document["policies"]:
        lines.append(_line(one))
        lines += _next(one)
    return "\n".join(lines)


def shown_text(found: list[dict[str, Any]]) -> str:
    """One policy in its scopes, with its gate report."""
    lines = []
    for one in found:
        lines += [_line(one), *_next(one)]
        for name in ("held_by", "finding", "next_version"):
            if one[name]:
                lines.append(f"  {name.replace('_', ' ')}: {one[name]}")
        if one["cooldown_seconds"] > 0.0:
            lines.append(f"  no promotion for {one['cooldown_seconds'] / 60:.0f} min")
        lines += _report(one["evidence"])
    return "\n".join(lines)


def history_text(document: dict[str, Any]) -> str:
    """One line an entry, newest first."""
    lines = [_entry(entry) for entry in document["entries"]]
    return "\n".join([*lines, f"head {document['head']}"])


def moved_text(document: dict[str, Any]) -> str:
    """What became of a command."""
    if "held_by" in document:
        return str(document["says"])
    if "after" not in document:
        return str(document["detail"])
    before, after = document["before"], document["after"]
    would = "would go" if document["dry_run"] else "goes"
    return f"{after['policy']} {would} from {_place(before)} to {_place(after)}"


def _line(one: dict[str, Any]) -> str:
    forced = ", forced" if one["forced"] else ""
    reason = f": {one['reason']}" if one["reason"] else ""
    return (
        f"{one['policy']:{NAME_CHARACTERS}} {_place(one):{MODE_CHARACTERS}} "
        f"r{one['revision']}{_scope(one)}{forced}{reason}"
    )


def _place(one: dict[str, Any]) -> str:
    return str(one["mode"]) + (f" ({one['overlay']})" if one["overlay"] != "none" else "")


def _scope(one: dict[str, Any]) -> str:
    named = [
        f"{label} {one[part]}"
        for part, label in (("engine", "engine"), ("pool", "pool"), ("request_class", "class"))
        if one[part] != "*"
    ]
    return f" [{', '.join(named)}]" if named else ""


def _next(one: dict[str, Any]) -> list[str]:
    step = one["next_step"]
    if step is None:
        return []
    if not step["lacks"]:
        return [f"  nothing is in the way of {step['action']}"]
    forced = "; may be forced" if step["forcible"] else ""
    return [
        f"  {step['action']} lacks{forced}:",
        *(f"    - {lack['says']}" for lack in step["lacks"]),
    ]


def _report(report: dict[str, Any] | None) -> list[str]:
    if report is None:
        return ["  no gate report yet"]
    lines = [f"  gate report {report['report_id']}: {report['verdict']}"]
    for check in report["checks"]:
        value = "unknown" if check["value"] is None else f"{check['value']:.4g}"
        limits = [
            f"{word} {check[name]:.4g}"
            for name, word in (("at_least", ">="), ("at_most", "<="))
            if check[name] is not None
        ]
        note = f" ({check['note']})" if check["note"] else ""
        wants = f", wants {' and '.join(limits)}" if limits else ""
        unit = f" {check['unit']}" if check["unit"] else ""
        lines.append(
            f"    {check['verdict']:12} {check['gate']}.{check['name']}: {value}{unit}{wants}{note}"
        )
    return lines


def _entry(entry: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["wall_seconds"]))
    before, after = entry.get("before"), entry.get("after")
    moved = f" {after['policy']} {_place(before)} -> {_place(after)}" if before and after else ""
    who = f" by {entry['actor']}" if entry.get("actor") else ""
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    return f"{when}Z {entry['sequence']:6} {entry['event']}{moved}{who}{reason}"
