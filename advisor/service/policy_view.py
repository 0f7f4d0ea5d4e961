"""Where policies stand, as metrics and as the API tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from kvready.advisor.modes import Need
from kvready.advisor.policies import MODES, ORDER, Mode, Overlay, Policy, PolicyState
from kvready.advisor.scopes import gravest
from kvready.advisor.service.snapshot import Children, named

if TYPE_CHECKING:
    from kvready.advisor.control import ControlPlane
    from kvready.advisor.service.policy_desk import PolicyDesk

HEAD_CHARACTERS = 12  # of a hash: 48 bits, which a float holds exactly


class PolicyModel(BaseModel):
    """One policy in one scope."""

    policy: Policy
    engine: str
    pool: str
    request_class: str
    mode: Mode
    overlay: Overlay
    held_by: str = Field(description="What it last gave way to, until that is over.")
    reason: str = Field(description="Of the last change.")
    since_seconds: float = Field(description="Event time of the last change.")
    revision: int
    version: str
    next_version: str = Field(description="The version that shadows beside it; empty: none.")
    report_id: str = Field(description="Of the gate report on which it acts.")
    forced: bool
    clean_windows: int
    rollbacks: int
    cooldown_seconds: float = Field(description="Until it may be promoted again.")
    finding: str = Field(description="Why it has nothing to do here, if its gates found so.")

    @classmethod
    def of(cls, state: PolicyState, now_seconds: float) -> PolicyModel:
        """A state as the API shows it."""
        return cls(
            policy=state.policy,
            engine=state.scope.engine,
            pool=state.scope.pool,
            request_class=state.scope.request_class,
            mode=state.mode,
            overlay=state.overlay,
            held_by=state.held_by,
            reason=state.reason,
            since_seconds=state.since_seconds,
            revision=state.revision,
            version=state.version,
            next_version=state.next_version,
            report_id=state.report_id,
            forced=state.forced,
            clean_windows=state.clean_windows,
            rollbacks=state.rollbacks,
            cooldown_seconds=max(state.cooldown_until_seconds - now_seconds, 0.0),
            finding=state.finding,
        )


class ControlStatus(BaseModel):
    """What stands over all policies."""

    killed_by: list[str]
    failing: dict[str, str] = Field(description="Audit or store, with what is wrong.")
    waiting: int = Field(description="Entries and reports that no disk has taken yet.")
    audit_head: str
    audit_sequence: int
    folder: str


def policy_models(control: ControlPlane) -> list[PolicyModel]:
    """Every policy in every scope."""
    return [PolicyModel.of(state, control.now_seconds) for state in control.states]


def control_status(control: ControlPlane, desk: PolicyDesk | None) -> ControlStatus:
    """What stands over them. Without a desk, as for a recording, nothing is kept."""
    if desk is None:
        return ControlStatus(
            killed_by=list(control.killed_by), failing={}, waiting=0, audit_head="",
            audit_sequence=0, folder="",
        )  # fmt: skip
    keeper = desk.keeper
    return ControlStatus(
        killed_by=[str(holder) for holder in desk.kill_switch.held_by],
        failing=dict(keeper.problems),
        waiting=keeper.waiting,
        audit_head=keeper.audit.chain.head,
        audit_sequence=keeper.audit.chain.last_sequence,
        folder=str(desk.folder),
    )


def policy_values(control: ControlPlane, desk: PolicyDesk | None) -> dict[str, Children]:
    """The metrics of policies."""
    states = control.states
    values: dict[str, Children] = {
        "policy_mode": {
            (policy, max((s.mode for s in states if s.policy is policy), key=MODES.index)): 1
            for policy in ORDER
        },
        "policy_overlay": {
            (policy, gravest(s.overlay for s in states if s.policy is policy)): 1
            for policy in ORDER
        },
        "policy_transitions_total": {
            (policy, trigger): count for (policy, trigger), count in control.moves.items()
        },
        "policy_refusals_total": {(need,): control.refused[need] for need in Need},
        "kill_switch_active": {(holder,): 1 for holder in control.killed_by},
        "kill_switch_failures_total": {},
        "policy_keeping_failing": {(part,): 1 for part in control.failing},
        "policy_keeping_failures_total": {},
        "policy_keeping_waiting": {},
        "policy_keeping_lost_total": {},
        "audit_entries_total": {},
        "audit_head": {},
    }
    if desk is not None:
        keeper = desk.keeper
        chain = keeper.audit.chain
        values |= {
            "kill_switch_active": {(holder,): 1 for holder in desk.kill_switch.held_by},
            "kill_switch_failures_total": {(): desk.kill_switch.failures},
            "policy_keeping_failing": {(part,): 1 for part in keeper.problems},
            "policy_keeping_failures_total": {(p,): n for p, n in keeper.failures.items()},
            "policy_keeping_waiting": {(): keeper.waiting},
            "policy_keeping_lost_total": {(): keeper.lost_entries},
            "audit_entries_total": {(): chain.last_sequence},
            "audit_head": {(): int(chain.head[:HEAD_CHARACTERS], 16)},
        }
    return named(values)
