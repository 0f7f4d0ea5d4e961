"""A policy's state as a recording and the store keep it over a restart, there and back. Pure.

Clocks of two runs have nothing in common, so that what is left of a cool-down travels as seconds.
"""

from __future__ import annotations

from kvready.advisor.policies import Mode, Overlay, Policy, PolicyState, Scope
from kvready.collectors.commanded import RestoredPolicy


def kept_state(state: PolicyState, now_seconds: float) -> RestoredPolicy:
    """A state for another run."""
    return RestoredPolicy(
        policy=state.policy,
        mode=state.mode,
        overlay=state.overlay,
        engine=state.scope.engine,
        pool=state.scope.pool,
        request_class=state.scope.request_class,
        held_by=state.held_by,
        reason=state.reason,
        revision=state.revision,
        version=state.version,
        next_version=state.next_version,
        report_id=state.report_id,
        forced=state.forced,
        rollbacks=state.rollbacks,
        cooldown_seconds=max(state.cooldown_until_seconds - now_seconds, 0.0),
        finding=state.finding,
        finding_age_seconds=max(now_seconds - state.finding_seconds, 0.0) if state.finding else 0.0,
    )


def restored_state(kept: RestoredPolicy, now_seconds: float) -> PolicyState | None:
    """The state in this run; None for a policy, mode or overlay that this version does not know."""
    try:
        policy, mode, overlay = Policy(kept.policy), Mode(kept.mode), Overlay(kept.overlay)
    except ValueError:
        return None
    if overlay is Overlay.KILLED or (overlay is Overlay.PAUSED and not mode.acts):
        overlay = Overlay.NONE  # the switch speaks for itself
    if overlay is Overlay.ROLLED_BACK and mode.acts:
        mode = Mode.ADVISE
    return PolicyState(
        policy=policy,
        scope=Scope(engine=kept.engine, pool=kept.pool, request_class=kept.request_class),
        mode=mode,
        overlay=overlay,
        held_by=kept.held_by,
        reason=kept.reason,
        since_seconds=now_seconds,
        revision=kept.revision,
        version=kept.version,
        next_version=kept.next_version,
        report_id=kept.report_id,
        forced=kept.forced,
        rollbacks=kept.rollbacks,
        cooldown_until_seconds=now_seconds + kept.cooldown_seconds,
        finding=kept.finding,
        finding_seconds=now_seconds - kept.finding_age_seconds,
    )
