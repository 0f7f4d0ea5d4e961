"""The control plane: what each move needs, and what takes a policy back."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from gate_reports import gate_report

from kvready.advisor.control import ControlPlane
from kvready.advisor.modes import (
    CLEAN_WINDOWS,
    COOLDOWN_SECONDS,
    FINDING_DAYS,
    MAX_CANARY_SECONDS,
    MAX_COOLDOWN_SECONDS,
    MAX_ERRORS,
    MAX_STATES,
    REPORT_SECONDS,
    SETTLED_WINDOWS,
    Need,
    Refusal,
    Transition,
    cooldown_seconds,
)
from kvready.advisor.policies import (
    MODES,
    Finding,
    Hazard,
    Mode,
    Overlay,
    Policy,
    PolicyState,
    Scope,
)
from kvready.advisor.scopes import effective
from kvready.advisor.verdicts import Gate, Verdict
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.records import KeepingChanged, KillSwitched, PolicyCommanded


class Plane:
    """A control plane and a clock that passes a second with each thing said."""

    def __init__(self) -> None:
        self.control = ControlPlane()
        self.ingest = 0
        self.now_seconds = 0.0

    def moment(self, later_seconds: float = 1.0) -> tuple[int, float]:
        self.ingest += 1
        self.now_seconds += later_seconds
        return self.ingest, self.now_seconds

    def say(self, action: PolicyAction, policy: str = "dedup", **said) -> Transition | Refusal:
        said = {"actor": "ann", "reason": "because"} | said
        return self.control.command(
            PolicyCommanded(action=action, policy=policy, **said), self.moment()
        )

    def set(self, mode: Mode, policy: str = "dedup", **said) -> Transition | Refusal:
        return self.say(PolicyAction.SET, policy, mode=mode, **said)

    def report(self, verdict=Verdict.PASS, gate=Gate.BENEFIT, policy=Policy.DEDUP, **said):
        moment = self.moment()
        report = gate_report(policy, self.state(policy).mode, moment, verdict, gate, **said)
        return self.control.judge(report, moment)

    def state(self, policy: str = "dedup", scope: Scope = Scope()) -> PolicyState:  # noqa: B008
        return next(s for s in self.control.states if s.policy == policy and s.scope == scope)

    def force(self, mode: Mode, policy: str = "dedup") -> None:
        for one in MODES[Mode.ADVISE.rank : mode.rank + 1]:
            assert isinstance(self.set(one, policy, forced=True), Transition)


@pytest.fixture
def plane() -> Iterator[Plane]:
    yield Plane()


def lacks(outcome: Transition | Refusal) -> tuple[Need, ...]:
    assert isinstance(outcome, Refusal)
    return outcome.lacks


def test_a_promotion_needs_a_report_that_passes_in_this_mode_and_is_young(plane: Plane) -> None:
    plane.report()  # in shadow: says nothing of advise
    plane.set(Mode.ADVISE)
    assert lacks(plane.set(Mode.CANARY)) == (Need.GATE,)
    plane.report(Verdict.INCONCLUSIVE)
    assert lacks(plane.set(Mode.CANARY)) == (Need.GATE,)
    plane.report()
    plane.moment(REPORT_SECONDS)
    assert lacks(plane.set(Mode.CANARY)) == (Need.GATE,)
    plane.report()
    assert isinstance(plane.set(Mode.CANARY), Transition)
    assert lacks(plane.set(Mode.ENFORCE)) == (Need.GATE,), "a canary earns its own"
    assert lacks(plane.set(Mode.OFF, reason=" ")) == (Need.REASON,)


def test_force_needs_a_reason_and_never_bypasses_a_kill_or_a_disk(plane: Plane) -> None:
    plane.set(Mode.ADVISE)
    assert Need.REASON in lacks(plane.set(Mode.CANARY, forced=True, reason=""))
    plane.control.take(KillSwitched(held_by=("file",)), plane.moment())
    assert lacks(plane.set(Mode.CANARY, forced=True)) == (Need.ALIVE,)
    plane.control.take(KillSwitched(held_by=()), plane.moment())
    plane.control.take(KeepingChanged(failing=("store",)), plane.moment())
    assert lacks(plane.set(Mode.CANARY, forced=True)) == (Need.KEPT,)
    assert isinstance(plane.set(Mode.OFF), Transition), "a demotion is never refused for it"
    assert lacks(plane.set(Mode.ENFORCE, forced=True)) == (Need.ROW,), "one step at a time"


def test_a_later_policy_waits_until_the_earlier_are_settled(plane: Plane) -> None:
    plane.set(Mode.ADVISE, "balance")
    plane.report(policy=Policy.BALANCE)
    assert lacks(plane.set(Mode.CANARY, "balance")) == (Need.ORDER,)
    plane.force(Mode.ENFORCE)
    for _ in range(SETTLED_WINDOWS):
        assert Need.ORDER in lacks(plane.set(Mode.CANARY, "balance"))
        plane.control.window(True, plane.moment())
    plane.report(policy=Policy.BALANCE)
    assert isinstance(plane.set(Mode.CANARY, "balance"), Transition)


@pytest.mark.parametrize("finding", list(Finding))
def test_a_policy_with_nothing_to_do_settles_for_a_week(plane: Plane, finding: Finding) -> None:
    plane.report(Verdict.INCONCLUSIVE, finding=finding)
    plane.set(Mode.ADVISE, "balance")
    plane.report(policy=Policy.BALANCE)
    assert isinstance(plane.set(Mode.CANARY, "balance", revision=1), Transition)
    plane.set(Mode.ADVISE, "balance")
    plane.moment(FINDING_DAYS * 86_400.0)
    plane.report(policy=Policy.BALANCE)
    assert lacks(plane.set(Mode.CANARY, "balance")) == (Need.ORDER,)


def test_a_finding_takes_back_what_acts(plane: Plane) -> None:
    plane.force(Mode.ENFORCE)
    plane.report(Verdict.INCONCLUSIVE, finding=Finding.NATIVE)
    assert plane.state().mode is Mode.ADVISE


def test_bad_predictions_demote_and_clear_after_clean_windows(plane: Plane) -> None:
    plane.force(Mode.ENFORCE)
    plane.report(Verdict.FAIL, Gate.ACCURACY)
    assert (plane.state().mode, plane.state().overlay) == (Mode.ADVISE, Overlay.NONE)
    plane.moment(COOLDOWN_SECONDS)
    plane.report()
    for _ in range(CLEAN_WINDOWS):
        assert lacks(plane.set(Mode.CANARY)) == (Need.CLEAN,)
        plane.control.window(True, plane.moment())
    assert isinstance(plane.set(Mode.CANARY), Transition)


def test_harm_latches_until_a_person_clears_it_and_cools_down_for_longer_each_time(
    plane: Plane,
) -> None:
    waited_seconds = []
    for _ in range(3):
        plane.force(Mode.CANARY) if plane.state().mode is Mode.SHADOW else plane.set(
            Mode.CANARY, forced=True
        )
        plane.report(Verdict.FAIL, Gate.HARM)
        state = plane.state()
        assert (state.mode, state.overlay) == (Mode.ADVISE, Overlay.ROLLED_BACK)
        assert lacks(plane.set(Mode.CANARY, forced=True)) == (Need.ROW,), "the latch comes first"
        plane.report()
        assert plane.state().overlay is Overlay.ROLLED_BACK, "a pass clears nothing"
        assert isinstance(plane.say(PolicyAction.CLEAR), Transition)
        plane.report()
        assert lacks(plane.set(Mode.CANARY)) == (Need.COOLED,)
        waited_seconds.append(state.cooldown_until_seconds - state.since_seconds)
    assert waited_seconds == [COOLDOWN_SECONDS, 2 * COOLDOWN_SECONDS, 4 * COOLDOWN_SECONDS]
    assert cooldown_seconds(10_000) == MAX_COOLDOWN_SECONDS


def test_a_clock_that_goes_back_ends_no_cool_down(plane: Plane) -> None:
    plane.force(Mode.CANARY)
    plane.report(Verdict.FAIL, Gate.BENEFIT)
    plane.moment(-1e6)
    plane.report()
    assert Need.COOLED in lacks(plane.set(Mode.CANARY))


@pytest.mark.parametrize(
    ("hazard", "mode", "overlay"),
    [
        (Hazard.TELEMETRY_LOST, Mode.ENFORCE, Overlay.PAUSED),
        (Hazard.ENGINE_RESTARTED, Mode.ENFORCE, Overlay.PAUSED),
        (Hazard.STALL, Mode.ENFORCE, Overlay.PAUSED),
        (Hazard.ENGINE_UPGRADED, Mode.ADVISE, Overlay.NONE),
        (Hazard.KNOWN_HAZARD, Mode.ADVISE, Overlay.ROLLED_BACK),
        (Hazard.MISMATCH, Mode.ADVISE, Overlay.ROLLED_BACK),
    ],
)
def test_what_a_hazard_does_to_what_acts(
    plane: Plane, hazard: Hazard, mode: Mode, overlay: Overlay
) -> None:
    plane.force(Mode.ENFORCE)
    plane.control.hazard(hazard, plane.moment())
    assert (plane.state().mode, plane.state().overlay) == (mode, overlay)
    plane.report()
    lifted = overlay is Overlay.PAUSED
    assert plane.state().overlay is (Overlay.NONE if lifted else overlay)


def test_a_pause_by_a_person_ends_by_a_person_alone(plane: Plane) -> None:
    plane.force(Mode.CANARY)
    plane.control.hazard(Hazard.STALL, plane.moment())
    plane.say(PolicyAction.PAUSE)
    plane.report()
    assert plane.state().overlay is Overlay.PAUSED
    assert isinstance(plane.say(PolicyAction.RESUME), Transition)


def test_a_canary_that_does_not_conclude_is_paused_for_a_person(plane: Plane) -> None:
    plane.force(Mode.CANARY)
    plane.report(Verdict.INCONCLUSIVE)
    assert plane.state().overlay is Overlay.NONE, "doubt holds; it neither raises nor lowers"
    plane.moment(MAX_CANARY_SECONDS)
    plane.report(Verdict.INCONCLUSIVE)
    plane.report()
    assert (plane.state().overlay, plane.state().held_by) == (Overlay.PAUSED, "inconclusive")


def test_evidence_that_stays_broken_pauses(plane: Plane) -> None:
    plane.force(Mode.CANARY)
    for number in range(MAX_ERRORS):
        assert plane.state().overlay is Overlay.NONE, number
        plane.report(Verdict.ERROR)
    assert plane.state().overlay is Overlay.PAUSED


def test_two_versions_side_by_side(plane: Plane) -> None:
    plane.force(Mode.ENFORCE)
    assert lacks(plane.say(PolicyAction.ADOPT)) == (Need.ROW,)
    plane.say(PolicyAction.TRY, version="2")
    plane.report(Verdict.FAIL, Gate.HARM, version="2")
    assert plane.state().mode is Mode.ENFORCE, "the shadow's verdict takes nothing back"
    assert lacks(plane.say(PolicyAction.ADOPT)) == (Need.NEXT_GATE,)
    plane.report(version="2")
    assert isinstance(plane.say(PolicyAction.ADOPT), Transition)
    state = plane.state()
    assert (state.version, state.next_version, state.mode) == ("2", "", Mode.CANARY)


def test_a_kill_over_a_latch_gives_the_latch_back(plane: Plane) -> None:
    plane.force(Mode.ENFORCE)
    plane.control.hazard(Hazard.HARM, plane.moment())
    plane.force(Mode.ENFORCE, "balance")
    plane.control.take(KillSwitched(held_by=("api",)), plane.moment())
    assert {state.overlay for state in plane.control.states} == {Overlay.KILLED}
    plane.control.take(KillSwitched(held_by=("api", "file")), plane.moment())
    plane.control.take(KillSwitched(held_by=()), plane.moment())
    assert plane.state().overlay is Overlay.ROLLED_BACK
    assert plane.state("balance").mode is Mode.ADVISE, "reviving starts nothing"


def test_the_most_specific_scope_speaks_and_any_overlay_above_it_holds(plane: Plane) -> None:
    pool, chat = Scope(pool="a"), Scope(pool="a", request_class="chat")
    plane.force(Mode.ENFORCE)
    plane.set(Mode.OBSERVE, pool="a")

    def speaks(subject: Scope) -> tuple[Mode, Overlay]:
        found = effective(plane.control.states, Policy.DEDUP, subject)
        assert found is not None
        return found.mode, found.overlay

    assert speaks(chat) == speaks(pool) == (Mode.OBSERVE, Overlay.NONE)
    assert speaks(Scope(pool="b")) == (Mode.ENFORCE, Overlay.NONE)
    plane.say(PolicyAction.PAUSE)
    assert speaks(chat) == (Mode.OBSERVE, Overlay.PAUSED)


def test_a_stale_revision_an_unknown_name_and_too_many_scopes_are_refused(plane: Plane) -> None:
    assert lacks(plane.set(Mode.OFF, revision=5)) == (Need.REVISION,)
    assert lacks(plane.set("full", "dedup")) == (Need.ROW,)  # type: ignore[arg-type]
    assert lacks(plane.set(Mode.OFF, "unheard of")) == (Need.ROW,)
    for number in range(MAX_STATES):
        plane.set(Mode.OFF, pool=str(number))
    assert len(plane.control.states) == MAX_STATES
    assert lacks(plane.set(Mode.OFF, pool="one more")) == (Need.ROOM,)


def test_a_dry_run_changes_nothing(plane: Plane) -> None:
    heard: list[Transition] = []
    plane.control = ControlPlane(heard.append)  # type: ignore[arg-type]
    said = PolicyCommanded(action=PolicyAction.SET, policy="dedup", actor="a", reason="b",
                           mode="advise")  # fmt: skip
    before = msgspec.json.encode(plane.control.states)
    assert isinstance(plane.control.command(said, (1, 1.0), dry_run=True), Transition)
    assert msgspec.json.encode(plane.control.states) == before
    assert heard == []
