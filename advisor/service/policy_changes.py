"""Commands to policies from outside: each done once, in the ingest thread, and its answer kept."""

from __future__ import annotations

import time
from collections import OrderedDict
from hashlib import sha256

import msgspec

from kvready.advisor.control import Control, Outcome
from kvready.advisor.modes import NEEDS, Need, Refusal, Transition
from kvready.advisor.policies import MODES, Mode, Overlay, PolicyState
from kvready.advisor.service.policy_desk import PolicyDesk
from kvready.advisor.service.policy_models import Changed, Lack, NextStep, PolicyDetail
from kvready.advisor.service.policy_view import PolicyModel
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.store import Answer
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.errors import ServiceError
from kvready.collectors.records import PolicyCommanded

MAX_REMEMBERED = 1_000  # answers, beside what the store holds


class KeyReused(Exception):
    """One idempotency key for two commands."""


class PolicyChanges:
    """All but `digest_of` in the ingest thread."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        # A store that fails must not make a command happen twice within one life.
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    def kept(self, key: str, asked: str) -> bytes | None:
        """What the same command was answered before. Raises `KeyReused` for another one."""
        if not key:
            return None
        desk = self._sidecar.desk
        found = self._answers.get(key) or (desk.keeper.answer(key) if desk else None)
        if found is None:
            return None
        if found.asked != asked:
            raise KeyReused
        return found.body

    def keep(self, key: str, asked: str, body: bytes) -> None:
        """Remember what a command was answered."""
        if not key:
            return
        self._answers[key] = Answer(asked, body)
        while len(self._answers) > MAX_REMEMBERED:
            self._answers.popitem(last=False)
        if self._sidecar.desk is not None:
            self._sidecar.desk.keeper.keep_answer(key, asked, body)

    def command(self, said: PolicyCommanded, dry_run: bool) -> Outcome:
        """Do it, or say what would come of it. Raises `ServiceError` where nothing can be done."""
        sidecar = self._sidecar
        control, desk = sidecar.pipeline.control, sidecar.desk
        if dry_run:
            return control.command(said, sidecar.pipeline.moment, dry_run=True)
        if desk is None:
            raise ServiceError("nothing can be commanded here: no engine is attached")
        return desk.command(said, control, self._say)

    def revive(self, desk: PolicyDesk, actor: str, reason: str) -> list[str]:
        """Let go of the kill switch; what still holds it."""
        control = self._sidecar.pipeline.control
        return [str(holder) for holder in desk.revive(control, self._say, actor, reason)]

    def details(self) -> list[PolicyDetail]:
        """Every policy in every scope, with its evidence and the way on."""
        control = self._sidecar.pipeline.control
        return [self._detail(state, control.now_seconds) for state in control.states]

    def _say(self, said: Control) -> None:
        self._sidecar.recorder.said(said, time.monotonic())

    def _detail(self, state: PolicyState, now_seconds: float) -> PolicyDetail:
        report = self._sidecar.pipeline.control.reports.of(state, state.version)
        return PolicyDetail(
            **PolicyModel.of(state, now_seconds).model_dump(),
            next_step=self._next_step(state),
            evidence=None if report is None else msgspec.to_builtins(report),
        )

    def _next_step(self, state: PolicyState) -> NextStep | None:
        if state.overlay is Overlay.KILLED:
            alive = Lack(need=Need.ALIVE, says=NEEDS[Need.ALIVE])
            return NextStep(action="revive", lacks=[alive], forcible=False)
        action, mode = _onwards(state)
        if action is None:
            return None
        said = PolicyCommanded(
            action=action,
            policy=state.policy,
            actor="",
            reason="asked",
            mode=mode,
            **msgspec.structs.asdict(state.scope),
        )
        outcome = self.command(said, dry_run=True)
        lacks = list(outcome.lacks) if isinstance(outcome, Refusal) else []
        forced = msgspec.structs.replace(said, forced=True)
        is_forcible = isinstance(self.command(forced, dry_run=True), Transition)
        return NextStep(
            action=mode or action.value,
            lacks=[Lack(need=need, says=NEEDS[need]) for need in lacks],
            forcible=bool(lacks) and is_forcible,
        )


def changed(move: Transition, now_seconds: float, dry_run: bool) -> Changed:
    """A move, as it is told."""
    return Changed(
        dry_run=dry_run,
        trigger=move.trigger,
        actor=move.actor,
        reason=move.reason,
        before=PolicyModel.of(move.before, now_seconds),
        after=PolicyModel.of(move.after, now_seconds),
    )


def digest_of(*parts: bytes) -> str:
    """Names what was asked, so that one key serves one command."""
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _onwards(state: PolicyState) -> tuple[PolicyAction | None, str]:
    if state.overlay is Overlay.PAUSED:
        return PolicyAction.RESUME, ""
    if state.overlay is Overlay.ROLLED_BACK:
        return PolicyAction.CLEAR, ""
    if state.mode is Mode.ENFORCE:
        return None, ""
    return PolicyAction.SET, MODES[state.mode.rank + 1].value
