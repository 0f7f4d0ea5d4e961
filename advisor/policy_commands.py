"""What a person's command comes to: a row of the table, for which state, and what goes with it.

Pure. A scope that is new starts in shadow, whatever holds around it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvready.advisor.modes import (
    MAX_STATES,
    NEEDS,
    Change,
    Need,
    Refusal,
    Row,
    Trigger,
    row_for,
)
from kvready.advisor.policies import ORDER, Mode, Policy, PolicyState, Scope
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.records import PolicyCommanded

TRIGGERS = {
    PolicyAction.PAUSE: Trigger.PAUSE,
    PolicyAction.RESUME: Trigger.RESUME,
    PolicyAction.CLEAR: Trigger.CLEAR,
    PolicyAction.TRY: Trigger.TRY,
    PolicyAction.ADOPT: Trigger.ADOPT,
}


def wanted(
    said: PolicyCommanded, states: Mapping[tuple[Policy, Scope], PolicyState]
) -> tuple[Row, PolicyState, Change] | Refusal:
    """What is wanted of which state, or why it can never be done as it was said."""
    scope = Scope(engine=said.engine, pool=said.pool, request_class=said.request_class)
    policy = next((one for one in ORDER if one == said.policy), None)
    if policy is None:
        return _never(said, scope, f"policy {said.policy!r} is not known: {', '.join(ORDER)}")
    known = states.get((policy, scope))
    state = known or PolicyState(policy=policy, scope=scope)
    if known is None and len(states) >= MAX_STATES:
        return refusal(state, Trigger.RAISE, (Need.ROOM,), None)
    if said.action is not PolicyAction.SET:
        return _row(said, state, TRIGGERS[said.action], None)
    mode = next((one for one in Mode if one == said.mode), None)
    if mode is None:
        return _never(said, scope, f"mode {said.mode!r} is not known: {', '.join(Mode)}")
    if mode is state.mode and known is not None:
        return _never(said, scope, f"{policy} is in {mode} already", state)
    return _row(said, state, _way(state.mode, mode), mode)


def refusal(
    state: PolicyState, trigger: Trigger, lacks: tuple[Need, ...], row: Row | None
) -> Refusal:
    """A refusal in words."""
    says = f"{state.policy} stays in {state.mode}"
    says += f" ({state.overlay})" if state.overlay != "none" else ""
    says += ": it lacks " + "; and ".join(NEEDS[need] for need in lacks)
    if row is not None and set(lacks) <= set(row.forcible):
        says += ". A person may force it, with a reason"
    return Refusal(
        policy=state.policy, scope=state.scope, trigger=trigger, lacks=lacks, says=says, state=state
    )


def _row(
    said: PolicyCommanded, state: PolicyState, trigger: Trigger, to: Mode | None
) -> tuple[Row, PolicyState, Change] | Refusal:
    row = row_for(trigger, state)
    if row is None:
        return refusal(state, trigger, (Need.ROW,), None)
    if trigger is Trigger.TRY and said.version in ("", state.version):
        says = f"name a version other than {state.version!r}, which is in force"
        return _never(said, state.scope, says, state)
    if trigger is Trigger.ADOPT and not state.next_version:
        return _never(said, state.scope, "no other version shadows; try one first", state)
    change = Change(said.reason, to=to, version=said.version, forced=said.forced)
    return row, state, change


def _way(now: Mode, mode: Mode) -> Trigger:
    if mode.rank <= now.rank:
        return Trigger.LOWER
    if mode.acts:
        return Trigger.CANARY if mode is Mode.CANARY else Trigger.ENFORCE
    return Trigger.RAISE


def _never(
    said: PolicyCommanded, scope: Scope, says: str, state: PolicyState | None = None
) -> Refusal:
    return Refusal(
        policy=said.policy,
        scope=scope,
        trigger=said.action,
        lacks=(Need.ROW,),
        says=says,
        state=state,
    )
