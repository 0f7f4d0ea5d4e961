"""What an engine may do now, policy by policy: OFF, unless everything says ON. Pure.

The kill switch is asked first, then what lies over the mode, then the mode, then whom the policy
treats at this moment. Whatever is missing or unknown on the way is OFF.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from hashlib import sha256

import msgspec

from kvready.advisor.policies import Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.scopes import covers, effective
from kvready.advisor.windows import Arm
from kvready.collectors.commanded import EVERYWHERE


class FlagReason(StrEnum):
    """Why a flag is as it is, in the words of the OpenFeature Remote Evaluation Protocol."""

    STATIC = "STATIC"  # the mode everywhere
    TARGETING_MATCH = "TARGETING_MATCH"  # the mode of a scope that names the subject
    SPLIT = "SPLIT"  # whom it treats is drawn
    DISABLED = "DISABLED"  # killed, rolled back, paused or off
    UNKNOWN = "UNKNOWN"


class Split(msgspec.Struct, frozen=True):
    """Which prefix groups are treated: those that a seed draws."""

    seed: str
    treated_ratio: float

    def treats(self, prefix_group: int) -> bool:
        """Whether requests that begin with this block are treated: leader and followers alike."""
        digest = sha256(f"{self.seed}:{prefix_group}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.treated_ratio * 2.0**64


class Assignment(msgspec.Struct, frozen=True):
    """Whom a policy that acts treats now: nobody, all, or some prefix groups."""

    arm: Arm  # of the window that runs; its controls are controls in every group
    split: Split | None = None


class Subject(msgspec.Struct, frozen=True):
    """Who asks: an engine, or a part of it; and for which prefix group, if for one."""

    scope: Scope = Scope()
    prefix_group: int | None = None  # the hash of its first block


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `split`: who asked for no prefix group can draw for each by itself."""

    policy: Policy
    is_on: bool = False
    reason: FlagReason = FlagReason.UNKNOWN
    says: str = ""  # for a person
    split: Split | None = None
    state: PolicyState | None = None  # that speaks for the subject


Assigned = Callable[[PolicyState], Assignment | None]


def evaluate(
    policy: Policy,
    states: Collection[PolicyState],
    killed_by: Iterable[str],
    subject: Subject,
    assigned: Assigned,
) -> Flag:
    """The flag of one policy for one subject. `assigned`: whom a state treats, if that is known."""
    killed = ", ".join(killed_by)
    if killed:
        return Flag(
            policy=policy, reason=FlagReason.DISABLED, says=f"the kill switch is held by {killed}"
        )
    state = effective(states, policy, subject.scope)
    if state is None:
        return Flag(policy=policy, says="no state of this policy covers who asks")
    if state.overlay is not Overlay.NONE or state.mode is Mode.OFF:
        lies = state.overlay if state.overlay is not Overlay.NONE else state.mode
        reason = FlagReason.DISABLED
        return Flag(policy=policy, reason=reason, says=f"it is {lies}", state=state)
    if not state.mode.acts:
        reason = FlagReason.STATIC if state.scope == Scope() else FlagReason.TARGETING_MATCH
        return Flag(policy=policy, reason=reason, says=f"{state.mode} does not act", state=state)
    if not all(_acts(other) for other in _within(states, policy, subject.scope)):
        reason = FlagReason.TARGETING_MATCH
        says = "it is off in a part of what was asked for; ask for the part"
        return Flag(policy=policy, reason=reason, says=says, state=state)
    return _drawn(state, subject, assigned(state))


def _drawn(state: PolicyState, subject: Subject, assignment: Assignment | None) -> Flag:
    policy = state.policy
    if assignment is None:
        return Flag(policy=policy, says="whom it treats is not known", state=state)
    flag = Flag(policy=policy, reason=FlagReason.SPLIT, state=state)
    if assignment.arm is not Arm.TREATED:
        return msgspec.structs.replace(flag, says="this window is a control")
    split = assignment.split
    if split is None:
        return msgspec.structs.replace(flag, is_on=True, says="this window is treated")
    if subject.prefix_group is None:
        says = "prefix groups are drawn; ask for one, or draw"
        return msgspec.structs.replace(flag, says=says, split=split)
    is_on = split.treats(subject.prefix_group)
    says = f"its prefix group is {'treated' if is_on else 'a control'}"
    return msgspec.structs.replace(flag, is_on=is_on, says=says)


def _within(states: Collection[PolicyState], policy: Policy, asked: Scope) -> Iterable[PolicyState]:
    """States of parts of what was asked for, where it was asked for more than one of them."""
    if EVERYWHERE not in msgspec.structs.astuple(asked):
        return ()
    return (s for s in states if s.policy is policy and s.scope != asked and _meets(s.scope, asked))


def _meets(one: Scope, other: Scope) -> bool:
    """Whether some subject lies in both, and `one` does not hold for all of `other`."""
    parts = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return not covers(one, other) and all(a == b or EVERYWHERE in (a, b) for a, b in parts)


def _acts(state: PolicyState) -> bool:
    return state.mode.acts and state.overlay is Overlay.NONE
