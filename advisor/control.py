"""The control plane: holds where each policy stands and moves it by the table in `modes`. Pure.

Fed in ingest order by the pipeline with commands, gate reports, hazards and windows, so that a
replay makes the same moves. Each move is handed to one listener, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from kvready.advisor.forecast_writer import Moment
from kvready.advisor.modes import (
    ASIDE,
    CLEAN_WINDOWS,
    MAX_CANARY_SECONDS,
    MAX_ERRORS,
    MAX_STATES,
    SETTLED_WINDOWS,
    Change,
    Kind,
    Need,
    Refusal,
    Row,
    Transition,
    Trigger,
    moved,
    row_for,
)
from kvready.advisor.policies import ORDER, Hazard, Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.policy_commands import refusal, wanted
from kvready.advisor.restoring import restored_state
from kvready.advisor.standing import Ask, Facts, Reports, current_report, unmet
from kvready.advisor.verdicts import Gate, GateReport, Verdict
from kvready.collectors.records import (
    KeepingChanged,
    KillSwitched,
    PoliciesRestored,
    PolicyCommanded,
)

SIDECAR = "kvready"  # the actor of what nobody commanded
ANONYMOUS = "somebody"  # who gave no name
FINDING_AGAIN_SECONDS = 86_400.0  # the same finding is noted anew

Key = tuple[Policy, Scope]
Outcome = Transition | Refusal
Control = PolicyCommanded | KillSwitched | KeepingChanged | PoliciesRestored

# What a failing gate means for a policy that acts, the gravest first.
FAILED = (
    (Gate.BITWISE, Hazard.MISMATCH),
    (Gate.HARM, Hazard.HARM),
    (Gate.ACCURACY, Hazard.BAD_PREDICTIONS),
    (Gate.BENEFIT, Hazard.NO_BENEFIT),
    (Gate.DATA, Hazard.TELEMETRY_LOST),
)
# After these, what was judged before says nothing of what runs now.
FORGETS_REPORTS = (Hazard.ENGINE_RESTARTED, Hazard.ENGINE_UPGRADED)
LIFTED_BY_PERSONS = ("", Hazard.INCONCLUSIVE)
NEXT = {
    Mode.SHADOW: Trigger.RAISE,
    Mode.ADVISE: Trigger.CANARY,
    Mode.CANARY: Trigger.ENFORCE,
}


class ControlPlane:
    """Every policy in every scope. Each call returns what moved, after the listener heard it."""

    def __init__(
        self,
        on_transition: Callable[[Transition], None] | None = None,
        on_report: Callable[[GateReport], None] | None = None,
    ) -> None:
        self.killed_by: tuple[str, ...] = ()
        self.failing: tuple[str, ...] = ()  # audit, store: what cannot be kept
        self.auto_promote: frozenset[Policy] = frozenset()
        self.moves: Counter[tuple[Policy, Trigger]] = Counter()
        self.refused: Counter[Need] = Counter()
        self.latest: Outcome | None = None  # of the last command
        self.reports = Reports()
        self._on_transition = on_transition or _ignore
        self._on_report = on_report or _ignore
        self._states: dict[Key, PolicyState] = {
            (policy, Scope()): PolicyState(policy=policy) for policy in ORDER
        }
        self._moved_ingest: dict[Key, int] = {}
        self._errors: Counter[Key] = Counter()
        self._now = 0.0

    @property
    def states(self) -> list[PolicyState]:
        """Where everything stands, the kill switch on top."""
        states = self._states.values()
        return [_killed(state) for state in states] if self.killed_by else list(states)

    @property
    def underlying(self) -> list[PolicyState]:
        """The same without the kill switch: what is kept."""
        return list(self._states.values())

    @property
    def now_seconds(self) -> float:
        """Event time of the latest thing heard; never goes back."""
        return self._now

    def take(self, said: Control, moment: Moment) -> None:
        """What was said to policies, in its place in ingest order."""
        match said:
            case PolicyCommanded():
                self.latest = self.command(said, moment)
            case KillSwitched():
                self.kill(said, moment)
            case KeepingChanged():
                self.failing = said.failing
                if said.failing:
                    self.hazard(Hazard.KEEPING_FAILED, moment, note=", ".join(said.failing))
            case PoliciesRestored():
                self.restore(said, moment)

    def command(self, said: PolicyCommanded, moment: Moment, dry_run: bool = False) -> Outcome:
        """Do what a person wants, or say what it lacks. `dry_run`: nothing changes."""
        heard_seconds = self._now
        try:
            return self._commanded(said, moment, dry_run)
        finally:
            if dry_run:  # no recording holds it, so that not even time may pass
                self._now = heard_seconds

    def _commanded(self, said: PolicyCommanded, moment: Moment, dry_run: bool) -> Outcome:
        asked = wanted(said, self._states)
        if isinstance(asked, Refusal):
            return self._refuse(asked, dry_run)
        row, state, change = asked
        ask = Ask(Kind.PERSON, said.reason, said.forced, said.revision)
        facts = self._facts(state, moment)
        lacks = unmet(row, state, ask, facts)
        if lacks:
            return self._refuse(refusal(state, row.trigger, lacks, row), dry_run)
        version = state.next_version if row.trigger is Trigger.ADOPT else state.version
        report = current_report(state, version, facts) if row.forcible else None
        report_id = report.report_id if report and not said.forced else ""
        actor = said.actor or ANONYMOUS
        return self._move(row, state, moment, change, actor, report_id, dry_run)

    def judge(self, report: GateReport, moment: Moment) -> tuple[Transition, ...]:
        """What follows from a gate report, if anything."""
        self._tell_time(moment)
        key = (report.policy, report.scope)
        state = self._states.get(key)
        if state is None:
            return ()
        self.reports.keep(report)
        self._on_report(report)
        if report.policy_version != state.version or report.mode is not state.mode:
            return ()
        moves = self._found(report, state, moment)
        self._errors[key] = self._errors[key] + 1 if report.verdict is Verdict.ERROR else 0
        hazard = _hazard_of(report) or self._doubt(report, key)
        if hazard is not None:
            why = f"gate report {report.report_id}"
            return moves + self.hazard(hazard, moment, report.policy, report.scope, why)
        return moves + self._upwards(report, key, moment)

    def hazard(
        self,
        hazard: Hazard,
        moment: Moment,
        policy: Policy | None = None,
        scope: Scope | None = None,
        note: str = "",
    ) -> tuple[Transition, ...]:
        """Something went wrong: for one policy or scope, or for all that are not named."""
        self._tell_time(moment)
        if hazard in FORGETS_REPORTS:
            self.reports.forget()
        moves = []
        for state in list(self._states.values()):
            if policy in (None, state.policy) and scope in (None, state.scope):
                row = row_for(Trigger(hazard), state)
                if row is not None:
                    reason = f"{hazard}: {note}" if note else str(hazard)
                    moves.append(self._move(row, state, moment, Change(reason)))
        return tuple(moves)

    def window(
        self, clean: bool, moment: Moment, policy: Policy | None = None, scope: Scope | None = None
    ) -> tuple[Transition, ...]:
        """A window of serving ended, with or without harm, stall, gap or bad predictions."""
        self._tell_time(moment)
        moves = []
        for key, state in list(self._states.items()):
            if policy not in (None, state.policy) or scope not in (None, state.scope):
                continue
            counted = state.clean_windows + 1 if clean and state.overlay is Overlay.NONE else 0
            state = msgspec.structs.replace(state, clean_windows=counted)
            self._states[key] = state
            trigger = None
            if state.held_by == Hazard.BAD_PREDICTIONS and counted >= CLEAN_WINDOWS:
                trigger = Trigger.FORGIVEN
            elif state.mode is Mode.ENFORCE and counted == SETTLED_WINDOWS:
                trigger = Trigger.SETTLED
            row = row_for(trigger, state) if trigger else None
            if row is not None:
                moves.append(self._move(row, state, moment, Change(f"{counted} clean windows")))
        return tuple(moves)

    def kill(self, said: KillSwitched, moment: Moment) -> tuple[Transition, ...]:
        """The kill switch changed. What acts falls to advise, whatever else holds."""
        self._tell_time(moment)
        was_killed, self.killed_by = bool(self.killed_by), said.held_by
        if was_killed == bool(said.held_by):
            return ()
        trigger = Trigger.KILLED if said.held_by else Trigger.REVIVED
        reason = said.reason or f"kill switch: {', '.join(said.held_by) or 'let go'}"
        moves = []
        for state in list(self._states.values()):
            row = row_for(trigger, state if said.held_by else _killed(state))
            if row is not None:
                moves.append(self._move(row, state, moment, Change(reason), said.actor or SIDECAR))
        return tuple(moves)

    def restore(self, said: PoliciesRestored, moment: Moment) -> None:
        """Where policies stood when the sidecar last ran: what acted comes back, and says OFF."""
        self._tell_time(moment)
        self.auto_promote = frozenset(p for p in ORDER if p in said.auto_promote)
        for one in said.policies[:MAX_STATES]:
            state = restored_state(one, self._now)
            if state is None:
                continue  # of a later version: it cannot act here
            key = (state.policy, state.scope)
            self._states[key] = state
            self._moved_ingest[key] = moment[0]
            row = row_for(Trigger.SIDECAR_RESTARTED, state)
            if row is not None:
                self._move(row, state, moment, Change("the sidecar restarted"))

    def _found(
        self, report: GateReport, state: PolicyState, moment: Moment
    ) -> tuple[Transition, ...]:
        """Note why a policy has nothing to do, or that it has by now."""
        is_conclusive = report.verdict in (Verdict.PASS, Verdict.FAIL)
        if report.finding is None and not (state.finding and is_conclusive):
            return ()
        age_seconds = self._now - state.finding_seconds
        if report.finding == state.finding and age_seconds < FINDING_AGAIN_SECONDS:
            return ()
        row = row_for(Trigger.FOUND, state)
        assert row is not None  # whatever the mode
        finding = str(report.finding or "")
        change = Change(finding or "has something to do again", finding=finding)
        return (self._move(row, state, moment, change, report_id=report.report_id),)

    def _doubt(self, report: GateReport, key: Key) -> Hazard | None:
        """A hazard where gates have not told for too long."""
        state = self._states[key]
        if self._errors[key] >= MAX_ERRORS:
            return Hazard.TELEMETRY_LOST
        lasted_seconds = self._now - state.since_seconds
        is_open = state.mode is Mode.CANARY and report.verdict is Verdict.INCONCLUSIVE
        return Hazard.INCONCLUSIVE if is_open and lasted_seconds > MAX_CANARY_SECONDS else None

    def _upwards(self, report: GateReport, key: Key, moment: Moment) -> tuple[Transition, ...]:
        """End a pause that no person made; go on where the policy may promote itself."""
        state = self._states[key]
        trigger = None
        if state.overlay is Overlay.PAUSED and state.held_by not in LIFTED_BY_PERSONS:
            trigger = Trigger.LIFTED
        elif report.verdict is Verdict.PASS and state.policy in self.auto_promote:
            trigger = NEXT.get(state.mode)
        row = row_for(trigger, state) if trigger else None
        if row is None or self._lacks(row, state, Ask(Kind.AUTO), moment):
            return ()
        change = Change(f"gate report {report.report_id}")
        return (self._move(row, state, moment, change, report_id=report.report_id),)

    def _lacks(self, row: Row, state: PolicyState, ask: Ask, moment: Moment) -> tuple[Need, ...]:
        return unmet(row, state, ask, self._facts(state, moment))

    def _facts(self, state: PolicyState, moment: Moment) -> Facts:
        self._tell_time(moment)
        return Facts(
            now_seconds=self._now,
            moved_ingest=self._moved_ingest.get((state.policy, state.scope), -1),
            states=self._states.values(),
            reports=self.reports,
            is_killed=bool(self.killed_by),
            is_failing=bool(self.failing),
        )

    def _move(
        self,
        row: Row,
        state: PolicyState,
        moment: Moment,
        change: Change,
        actor: str = SIDECAR,
        report_id: str = "",
        dry_run: bool = False,
    ) -> Transition:
        self._tell_time(moment)
        after = moved(row, state, change, report_id, self._now)
        transition = Transition(
            policy=state.policy,
            scope=state.scope,
            before=state if row.trigger is not Trigger.REVIVED else _killed(state),
            after=after if row.trigger is not Trigger.KILLED else _killed(after),
            actor=actor,
            kind=Kind.AUTO if actor == SIDECAR else Kind.PERSON,
            trigger=row.trigger,
            reason=change.reason,
            ingest=moment[0],
            seconds=self._now,
            forced=change.forced,
            report_id=report_id,
        )
        if not dry_run:
            key = (state.policy, state.scope)
            self._states[key] = after
            if row.trigger not in ASIDE:
                self._moved_ingest[key] = moment[0]
            self.moves[state.policy, row.trigger] += 1
            self._on_transition(transition)
        return transition

    def _refuse(self, refusal: Refusal, dry_run: bool) -> Refusal:
        if not dry_run:
            self.refused.update(refusal.lacks)
        return refusal

    def _tell_time(self, moment: Moment) -> None:
        self._now = max(self._now, moment[1])  # a clock that went back must not end a cool-down


def _hazard_of(report: GateReport) -> Hazard | None:
    """The gravest thing that a report says against a policy that acts."""
    failed = {check.gate for check in report.checks if check.verdict is Verdict.FAIL}
    for gate, hazard in FAILED:
        if gate in failed and report.verdict is Verdict.FAIL:
            return hazard
    return Hazard.NO_BENEFIT if report.finding is not None else None


def _killed(state: PolicyState) -> PolicyState:
    return msgspec.structs.replace(state, overlay=Overlay.KILLED)


def _ignore(news: Transition | GateReport) -> None:
    """Nobody listens."""
