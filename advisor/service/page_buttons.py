"""What a person may do to policies from the page: buttons that say which command they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape

import msgspec

from kvready.advisor.modes import Trigger, row_for
from kvready.advisor.policies import MODES, Mode, Overlay, PolicyState, Scope
from kvready.advisor.service.page_audit import place_text
from kvready.advisor.service.policy_models import PolicyDetail
from kvready.collectors.commanded import PolicyAction

KEY_CHARACTERS = 8


def key_of(one: PolicyDetail) -> str:
    """Names one policy in one scope in the document, whatever characters the scope has."""
    scope = "\0".join((one.engine, one.pool, one.request_class))
    return f"{one.policy}-{sha256(scope.encode()).hexdigest()[:KEY_CHARACTERS]}"


def scope_text(one: PolicyDetail) -> str:
    """Where it holds; nothing where that is everywhere."""
    parts = (("engine", one.engine), ("pool", one.pool), ("class", one.request_class))
    return ", ".join(f"{label} {part}" for label, part in parts if part != "*")


def buttons(one: PolicyDetail) -> str:
    """Those that there is a move for, in the mode and under the overlay of now."""
    state = _state(one)
    rank = one.mode.rank
    found = []
    upward = MODES[rank + 1 : rank + 2]
    if upward and row_for(_raising(upward[0]), state) is not None:
        found.append(_button(one, PolicyAction.SET, f"Raise to {upward[0]}", upward))
    if row_for(Trigger.PAUSE, state) is not None and one.overlay is not Overlay.PAUSED:
        found.append(_button(one, PolicyAction.PAUSE, "Pause"))
    if row_for(Trigger.RESUME, state) is not None:
        found.append(_button(one, PolicyAction.RESUME, "Resume", acts=True))
    if row_for(Trigger.CLEAR, state) is not None:
        found.append(_button(one, PolicyAction.CLEAR, "Clear the roll-back"))
    if one.next_version and row_for(Trigger.ADOPT, state) is not None:
        label = f"Adopt version {one.next_version}"
        found.append(_button(one, PolicyAction.ADOPT, label, acts=one.mode.acts))
    if rank and row_for(Trigger.LOWER, state) is not None:
        found.append(_button(one, PolicyAction.SET, "Lower", MODES[:rank][::-1]))
    return "".join(found)


def switch(killed_by: Sequence[str], acting: int | None, kill_file: str) -> str:
    """Over all policies: kill, or revive once they are killed. `acting`: how many may act now."""
    if killed_by:
        title = "Let go of the kill switch"
        says = "What acted before is in advise, and starts by nothing but a person."
        given = {"do": "revive", "title": title, "says": says, "word": "revive"}
        return _tag("do-revive", "Revive", given, "")
    now = "" if acting is None else f" ({acting} of them may act)"
    says = (
        f"Every policy is off at once, whatever it does now{now}. Hooks hear of it within two "
        f"seconds. Where the sidecar does not answer: touch {kill_file} on its host."
    )
    given = {"do": "kill", "title": "Switch every policy off", "says": says}
    return _tag("do-kill", "Kill: all policies off", given, "danger")


def _raising(mode: Mode) -> Trigger:
    return Trigger(mode.value) if mode.acts else Trigger.RAISE


def _state(one: PolicyDetail) -> PolicyState:
    return PolicyState(
        policy=one.policy,
        scope=Scope(one.engine, one.pool, one.request_class),
        mode=one.mode,
        overlay=one.overlay,
    )


def _button(
    one: PolicyDetail,
    action: PolicyAction,
    label: str,
    modes: Sequence[Mode] = (),
    acts: bool = False,
) -> str:
    step = one.next_step
    wanted = modes[0].value if modes else action.value
    where = scope_text(one)
    given = {
        "do": action.value,
        "title": f"{label}: {one.policy}" + (f" ({where})" if where else ""),
        "says": f"It is in {place_text(one.mode, one.overlay)} now, revision {one.revision}.",
        "policy": one.policy.value,
        "revision": str(one.revision),
        "modes": " ".join(modes),
        # Typed before anything that lets it say ON, or go on saying so.
        "acting": " ".join(mode for mode in modes if mode.acts),
        "word": one.policy.value if acts or any(mode.acts for mode in modes) else "",
        "forcible": "yes" if step and step.action == wanted and step.forcible else "",
        "scope": msgspec.json.encode(msgspec.structs.asdict(_state(one).scope)).decode(),
    }
    style = "lower" if label == "Lower" else wanted
    return _tag(f"do-{key_of(one)}-{style}", label, given, "")


def _tag(name: str, label: str, given: Mapping[str, str], style: str) -> str:
    data = "".join(f' data-{key}="{escape(value)}"' for key, value in given.items() if value)
    kind = f' class="{style}"' if style else ""
    return (
        f'<button type="button" id="{name}"{kind} aria-haspopup="dialog"'
        f' aria-label="{escape(given["title"])}"{data}>{escape(label)}</button>'
    )
