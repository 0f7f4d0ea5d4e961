"""Policies under any sequence of commands, verdicts, crashes and clock steps.

The control plane, the audit and the store are real; what may act is worked out again here, from
what was commanded and reported alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from gate_reports import gate_report
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvready.advisor.control import ControlPlane
from kvready.advisor.modes import (
    REPORT_SECONDS,
    TABLE,
    Kind,
    Refusal,
    Transition,
    Trigger,
    cooldown_seconds,
)
from kvready.advisor.policies import (
    MODES,
    ORDER,
    Finding,
    Hazard,
    Mode,
    Overlay,
    Policy,
    PolicyState,
    Scope,
)
from kvready.advisor.scopes import effective
from kvready.advisor.service.audit import verify
from kvready.advisor.service.keeping import Keeper
from kvready.advisor.verdicts import Gate, GateReport, Verdict
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.records import KeepingChanged, KillSwitched, PolicyCommanded

SCOPES = [Scope(), Scope(pool="a"), Scope(pool="a", request_class="chat")]
POLICIES = strategies.sampled_from([*ORDER, Policy.DEDUP, Policy.DEDUP])
ANY_SCOPE = strategies.sampled_from([Scope(), Scope(), *SCOPES])
ANY_MODE = strategies.sampled_from([*reversed(MODES), Mode.CANARY, Mode.ENFORCE])
HAZARDS = strategies.sampled_from([*Hazard, Hazard.HARM, Hazard.STALL, Hazard.BAD_PREDICTIONS])
MEMORY = Path("/dev/shm")  # no disk is waited for
SELDOM = strategies.sampled_from([False, False, False, True])
OTHER_ACTIONS = strategies.sampled_from([a for a in PolicyAction if a is not PolicyAction.SET])
PLACES = strategies.sampled_from(["before", "between", "after"])
AUTO = strategies.sampled_from([frozenset(), frozenset(), frozenset(ORDER), {Policy.DEDUP}])
OFTEN = strategies.sampled_from([True, True, True, False])


class Crash(BaseException):
    """The process dies here; nothing catches it."""


class PolicyMachine(RuleBasedStateMachine):
    """One sidecar's policies, over many lives of the sidecar."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kv", dir=MEMORY if MEMORY.is_dir() else None))
        self.ingest = 0
        self.clock_seconds = 1_000.0
        self.latest_seconds = 0.0  # that anybody was told
        self.auto: frozenset[Policy] = frozenset()
        self.killed = self.failing = False
        self.reports: list[GateReport] = []  # since the engine last restarted
        self.moved: dict[tuple[Policy, Scope], int] = {}
        self.cool_seconds: dict[tuple[Policy, Scope], float] = {}
        self.in_flight: Transition | None = None

    @initialize(auto=AUTO)
    def start(self, auto: frozenset[Policy]) -> None:
        self._open(auto)
        for policy in ORDER:
            self._command(PolicyAction.SET, policy, Scope(), Mode.ADVISE)

    def teardown(self) -> None:
        self._die()
        shutil.rmtree(self.folder)

    @rule(policy=POLICIES, scope=ANY_SCOPE, mode=ANY_MODE,
          forced=OFTEN, reason=OFTEN)  # fmt: skip
    def set_mode(self, policy, scope, mode, forced, reason) -> None:
        self._command(PolicyAction.SET, policy, scope, mode=mode, forced=forced, reason=reason)

    @rule(policy=POLICIES, scope=ANY_SCOPE, forced=OFTEN, reason=OFTEN, action=OTHER_ACTIONS)
    def command(self, policy, scope, action, forced, reason) -> None:
        self._command(action, policy, scope, forced=forced, reason=reason)

    @rule(policy=POLICIES, scope=ANY_SCOPE, passes=OFTEN, current=OFTEN,
          verdict=strategies.sampled_from(Verdict), gate=strategies.sampled_from(Gate),
          finding=strategies.none() | strategies.sampled_from(Finding))  # fmt: skip
    def report(self, policy, scope, passes, current, verdict, gate, finding) -> None:
        state = next(
            (s for s in self._underlying() if (s.policy, s.scope) == (policy, scope)), None
        )
        if state is None:
            return
        version = state.version if current else (state.next_version or "9")
        moment = self._moment()
        report = gate_report(policy, state.mode, moment, Verdict.PASS if passes else verdict,
                             gate, scope, version, None if passes else finding)  # fmt: skip
        self.reports.append(report)
        self.control.judge(report, moment)

    @rule(hazard=HAZARDS, policy=strategies.none() | POLICIES)
    def hazard(self, hazard, policy) -> None:
        if hazard in (Hazard.ENGINE_RESTARTED, Hazard.ENGINE_UPGRADED):
            self.reports.clear()
        self.control.hazard(hazard, self._moment(), policy)

    @rule(clean=OFTEN, windows=strategies.integers(1, 9))
    def serve(self, clean: bool, windows: int) -> None:
        for _ in range(windows):
            self.control.window(clean, self._moment())

    @rule(policy=POLICIES, scope=ANY_SCOPE, times=strategies.integers(1, 4), forced=SELDOM)
    def climb(self, policy, scope, times, forced) -> None:
        """As a careful person would: a good report, then the next mode."""
        for _ in range(times):
            state = self._state(policy, scope)
            if state is None or state.mode is Mode.ENFORCE:
                return
            self._report(policy, scope, state.mode)
            self._command(PolicyAction.SET, policy, scope, MODES[state.mode.rank + 1], forced)

    @rule(killed=SELDOM)
    def switch(self, killed: bool) -> None:
        self.killed = killed
        self.control.take(KillSwitched(held_by=("api",) if killed else ()), self._moment())

    @rule(failing=SELDOM)
    def disk(self, failing: bool) -> None:
        self.failing = failing
        self.control.take(KeepingChanged(failing=("audit",) if failing else ()), self._moment())

    @rule(step_seconds=strategies.sampled_from([-1e6, -10.0, 1.0, 300.0, 1e5]))
    def step_clock(self, step_seconds: float) -> None:
        self.clock_seconds += step_seconds

    @rule(auto=AUTO, clean=strategies.booleans())
    def restart(self, auto: frozenset[Policy], clean: bool) -> None:
        if clean:
            self.keeper.close()
        self._revive(auto)

    @precondition(lambda self: not self.failing)
    @rule(policy=POLICIES, mode=ANY_MODE, place=PLACES,
          auto=AUTO, harm=strategies.booleans())  # fmt: skip
    def crash(self, policy, mode, auto, place, harm) -> None:
        """Die before the audit, between audit and store, or after the store's write."""
        append, keep = self.keeper.audit.append, self.keeper.store.keep_states

        def dying_append(*arguments, **fields):
            if place == "before":
                raise Crash
            return append(*arguments, **fields)

        def dying_keep(*arguments):
            if place == "after":
                keep(*arguments)
            raise Crash

        self.keeper.audit.append = dying_append  # type: ignore[method-assign]
        self.keeper.store.keep_states = dying_keep  # type: ignore[method-assign]
        try:
            if harm:
                self.control.hazard(Hazard.HARM, self._moment())
            else:
                self._command(PolicyAction.SET, policy, Scope(), mode=mode, forced=True)
        except Crash:
            pass
        else:
            self.in_flight = None
        self._revive(auto)

    @invariant()
    def every_state_is_legal(self) -> None:
        for state in self._underlying():
            assert state.overlay is not Overlay.PAUSED or state.mode.acts
            assert state.overlay is not Overlay.ROLLED_BACK or not state.mode.acts
            assert state.overlay is not Overlay.KILLED

    @invariant()
    def a_kill_or_a_disk_that_refuses_means_off(self) -> None:
        for policy in ORDER:
            for scope in SCOPES:
                state = effective(self._states(), policy, scope)
                assert state is not None
                says_on = state.mode.acts and state.overlay is Overlay.NONE
                assert not (says_on and (self.killed or self.failing))
                if self.killed:
                    assert state.overlay is Overlay.KILLED
                    assert not state.mode.acts

    def _report(self, policy, scope, mode, verdict=Verdict.PASS, gate=Gate.BENEFIT, version="1",
                finding=None) -> None:  # fmt: skip
        moment = self._moment()
        report = gate_report(policy, mode, moment, verdict, gate, scope, version, finding)
        self.reports.append(report)
        self.control.judge(report, moment)

    def _state(self, policy: Policy, scope: Scope) -> PolicyState | None:
        of_it = (s for s in self._underlying() if (s.policy, s.scope) == (policy, scope))
        return next(of_it, None)

    def _states(self):
        return self.control.states if hasattr(self, "control") else []

    def _underlying(self):
        return self.control.underlying if hasattr(self, "control") else []

    def _open(self, auto: frozenset[Policy]) -> None:
        self.auto = auto
        self.keeper = Keeper(self.folder)
        restored = self.keeper.open({}, auto)
        self.control = ControlPlane(self._heard, self.keeper.reported)
        self.keeper.follow(self.control)
        assert self.keeper.problems == {}
        self.moved.clear()
        self.reports.clear()
        self.latest_seconds = 0.0
        self.control.take(restored, self._moment())
        self.moved = {(s.policy, s.scope): self.ingest for s in self.control.underlying}
        self.cool_seconds = {}
        self.killed = self.failing = False

    def _die(self) -> None:
        """What a kernel does for a killed process."""
        keeper = self.keeper
        if keeper._lock is not None:
            os.close(keeper._lock)
        if keeper.audit._descriptor is not None:
            os.close(keeper.audit._descriptor)
        keeper.audit._aside.shutdown()
        keeper.store.close()
        keeper._lock = keeper.audit._descriptor = None

    def _revive(self, auto: frozenset[Policy]) -> None:
        before = {(s.policy, s.scope): s for s in self.control.underlying}
        flight, self.in_flight = self.in_flight, None
        self._die()
        self._open(auto)
        assert verify(self.folder).problem == ""
        for state in self.control.underlying:
            key = (state.policy, state.scope)
            known = before.get(key)
            reached = known.mode.rank if known else Mode.SHADOW.rank
            if flight is not None and key == (flight.policy, flight.scope):
                reached = max(reached, flight.before.mode.rank, flight.after.mode.rank)
            assert state.mode.rank <= reached, "never more enforcing than it was"
            assert not (state.mode.acts and state.overlay is Overlay.NONE), "says OFF at first"
            is_torn = flight is not None and key == (flight.policy, flight.scope)
            if known and known.overlay is Overlay.ROLLED_BACK and not is_torn:
                assert state.overlay is Overlay.ROLLED_BACK, "a latch outlives the process"

    def _moment(self) -> tuple[int, float]:
        self.ingest += 1
        self.clock_seconds += 1.0
        self.latest_seconds = max(self.latest_seconds, self.clock_seconds)
        return self.ingest, self.clock_seconds

    def _command(self, action, policy, scope, mode="", forced=False, reason=True) -> None:
        said = PolicyCommanded(
            action=action, policy=policy, actor="ann", reason="because" if reason else " ",
            mode=mode, version="2", forced=forced, pool=scope.pool,
            request_class=scope.request_class,
        )  # fmt: skip
        before = self.control.underlying
        outcome = self.control.command(said, self._moment())
        if isinstance(outcome, Refusal):
            assert self.control.underlying == before
            assert outcome.says
        else:
            assert reason, "nobody moves a policy without a reason"

    def _heard(self, move: Transition) -> None:
        self.in_flight = move
        self._judge(move)
        self.keeper.heard(move)
        self.in_flight = None

    def _judge(self, move: Transition) -> None:
        """Whether this may have happened at all."""
        key = (move.policy, move.scope)
        assert any(
            row.trigger is move.trigger
            and move.before.mode in row.sources
            and move.before.overlay in row.overlays
            for row in TABLE
        )
        assert move.after.revision == move.before.revision + 1
        rises = move.after.mode.acts and move.after.mode.rank > move.before.mode.rank
        comes_on = move.after.mode.acts and move.after.overlay is Overlay.NONE
        if rises:
            assert move.kind is Kind.PERSON or move.policy in self.auto
            assert move.after.mode.rank == move.before.mode.rank + 1
            assert move.before.overlay is Overlay.NONE
            if not move.forced:
                assert self._has_passing_report(move)
                assert self.latest_seconds >= self.cool_seconds.get(key, 0.0)
        if rises or move.trigger in (Trigger.RESUME, Trigger.LIFTED, Trigger.ADOPT):
            assert not (comes_on and (self.killed or self.failing))
        if move.before.overlay is Overlay.ROLLED_BACK and move.after.overlay is Overlay.NONE:
            assert move.trigger is Trigger.CLEAR
            assert move.kind is Kind.PERSON
        if move.after.rollbacks > move.before.rollbacks:
            self.cool_seconds[key] = self.latest_seconds + cooldown_seconds(move.after.rollbacks)
        if move.trigger not in (Trigger.FOUND, Trigger.TRY, Trigger.SETTLED, Trigger.FORGIVEN):
            self.moved[key] = self.ingest

    def _has_passing_report(self, move: Transition) -> bool:
        mine = [
            r
            for r in self.reports
            if (r.policy, r.scope, r.policy_version)
            == (move.policy, move.scope, move.before.version)
        ]
        return bool(
            mine
            and mine[-1].verdict is Verdict.PASS
            and mine[-1].mode is move.before.mode
            and mine[-1].made_ingest > self.moved.get((move.policy, move.scope), -1)
            and self.latest_seconds - mine[-1].made_seconds <= REPORT_SECONDS
        )


TestPolicies = PolicyMachine.TestCase
TestPolicies.settings = settings(max_examples=120, stateful_step_count=40)
