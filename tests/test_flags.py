"""Flags of policies: OFF unless kill switch, overlay, mode and draw all say ON."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.flags import Assignment, Flag, FlagReason, Split, Subject, evaluate
from kvready.advisor.policies import Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.windows import Arm

TREATED, CONTROL = Assignment(Arm.TREATED), Assignment(Arm.CONTROL)
NAMES = st.sampled_from(["*", "a", "b"])
SCOPES = st.builds(Scope, NAMES, NAMES, NAMES)


def state(mode: Mode, overlay: Overlay = Overlay.NONE, scope: Scope = Scope()) -> PolicyState:  # noqa: B008
    return PolicyState(policy=Policy.DEDUP, mode=mode, overlay=overlay, scope=scope)


def flag(
    *states: PolicyState,
    killed: tuple[str, ...] = (),
    subject: Subject = Subject(),  # noqa: B008
    assigned: Assignment | None = TREATED,
) -> Flag:
    return evaluate(Policy.DEDUP, states, killed, subject, lambda one: assigned)


@pytest.mark.parametrize(
    ("mode", "overlay", "reason"),
    [
        (mode, overlay, reason)
        for mode in Mode
        for overlay in Overlay
        for reason in [
            FlagReason.DISABLED
            if overlay is not Overlay.NONE or mode is Mode.OFF
            else FlagReason.SPLIT
            if mode.acts
            else FlagReason.STATIC
        ]
    ],
)
def test_only_an_acting_mode_with_nothing_over_it_is_on(
    mode: Mode, overlay: Overlay, reason: FlagReason
) -> None:
    found = flag(state(mode, overlay))
    assert found.is_on is (mode.acts and overlay is Overlay.NONE)
    assert found.reason is reason
    assert found.says


def test_the_kill_switch_is_asked_before_anything_else() -> None:
    found = flag(state(Mode.ENFORCE), killed=("file",))
    assert (found.is_on, found.reason) == (False, FlagReason.DISABLED)
    assert "file" in found.says


def test_controls_and_the_unknown_are_off() -> None:
    assert flag(state(Mode.ENFORCE), assigned=CONTROL).is_on is False
    unknown = flag(state(Mode.ENFORCE), assigned=None)
    assert (unknown.is_on, unknown.reason) == (False, FlagReason.UNKNOWN)
    assert flag().reason is FlagReason.UNKNOWN


def test_a_split_is_drawn_for_who_names_a_group_and_told_to_who_does_not() -> None:
    split = Split("seed", 0.5)
    assigned = Assignment(Arm.TREATED, split)
    whole = flag(state(Mode.CANARY), assigned=assigned)
    assert (whole.is_on, whole.split, whole.reason) == (False, split, FlagReason.SPLIT)
    for group in range(50):
        found = flag(state(Mode.CANARY), assigned=assigned, subject=Subject(prefix_group=group))
        assert found.is_on is split.treats(group)
        assert found.split is None
    control = flag(state(Mode.CANARY), assigned=Assignment(Arm.CONTROL, split))
    assert control.split is None, "in a control window no group is drawn"


def test_a_narrower_scope_speaks_for_its_own_and_silences_who_asks_for_more() -> None:
    everywhere = state(Mode.ENFORCE)
    batch = state(Mode.SHADOW, scope=Scope(request_class="batch"))
    asked = Subject(Scope("vllm", "pool", "batch"))
    other = Subject(Scope("vllm", "pool", "chat"))
    assert flag(everywhere, batch, subject=asked).reason is FlagReason.TARGETING_MATCH
    assert flag(everywhere, batch, subject=asked).is_on is False
    assert flag(everywhere, batch, subject=other).is_on is True
    assert flag(everywhere, batch).is_on is False, "it would act on the class that is in shadow"
    acting = state(Mode.CANARY, scope=Scope(request_class="batch"))
    assert flag(everywhere, acting).is_on is True


@given(
    st.lists(st.builds(state, st.sampled_from(Mode), st.sampled_from(Overlay), SCOPES), max_size=6),
    SCOPES,
    st.sampled_from([None, TREATED, CONTROL]),
    st.booleans(),
)
def test_on_for_a_subject_means_on_for_every_part_of_it(
    states: list[PolicyState], scope: Scope, assigned: Assignment | None, killed: bool
) -> None:
    states = list({one.scope: one for one in states}.values())
    held = ("api",) if killed else ()
    found = flag(*states, killed=held, subject=Subject(scope), assigned=assigned)
    if not found.is_on:
        return
    assert not killed
    assert assigned is TREATED
    names = ("a", "b", "*")
    for part in map(Scope, *zip(*itertools.product(names, repeat=3), strict=True)):
        if not within(part, scope):
            continue
        covering = [one for one in states if within(part, one.scope)]
        assert covering
        assert not any(one.overlay is not Overlay.NONE for one in covering)
        assert flag(*states, subject=Subject(part), assigned=TREATED).is_on


def within(part: Scope, wide: Scope) -> bool:
    return all(
        getattr(wide, name) in ("*", getattr(part, name))
        for name in ("engine", "pool", "request_class")
    )
