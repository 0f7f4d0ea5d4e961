"""A policy's state as a recording and the store keep it over a restart, there and back. Pure.

Clocks of two runs have nothing in common, so that what is left of a cool-down travels as seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kvready.advisor.audit_chain import AuditEntry
from kvready.advisor.policies import MODES, Mode, Overlay, Policy, PolicyState, Scope
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


def with_audit(
    known: Iterable[RestoredPolicy],
    told: Iterable[AuditEntry],
    sequence: int,
    wall_seconds: float,
) -> list[RestoredPolicy]:
    """What the store knows, lowered by what only the audit tells: entries after `sequence`.

    The store comes second, so that a crash may leave it behind. What it does not know at all comes
    back in advise at most: an audit is evidence, not a place to act from.
    """
    last: dict[tuple[str, str, str, str], RestoredPolicy] = {}
    for entry in told:
        if entry.after is None or entry.sequence <= sequence:
            continue
        passed_seconds = max(wall_seconds - entry.wall_seconds, 0.0)
        after = kept_state(entry.after, entry.seconds + passed_seconds)
        before = last.get(_key(after))
        if after.overlay == Overlay.KILLED and before is not None:
            after = msgspec.structs.replace(after, overlay=before.overlay)  # what lay under it
        last[_key(after)] = after
    states = {_key(one): one for one in known}
    for key, after in last.items():
        before = states.get(key)
        states[key] = _lower(before, after) if before else _capped(after, Mode.ADVISE)
    return list(states.values())


def at_most(
    kept: Iterable[RestoredPolicy], starts: Mapping[Policy, Mode | None]
) -> list[RestoredPolicy]:
    """No higher than the modes that the settings start with, where they say; those where new."""
    limits = {policy.value: mode for policy, mode in starts.items() if mode is not None}
    states = {_key(one): _capped(one, limits.get(one.policy)) for one in kept}
    for policy, mode in limits.items():
        fresh = RestoredPolicy(policy=policy, mode=mode)
        states.setdefault(_key(fresh), fresh)
    return list(states.values())


def _key(one: RestoredPolicy) -> tuple[str, str, str, str]:
    return one.policy, one.engine, one.pool, one.request_class


def _capped(one: RestoredPolicy, mode: Mode | None) -> RestoredPolicy:
    if mode is None or one.mode not in MODES:
        return one
    lower = min(Mode(one.mode), mode, key=MODES.index)
    return msgspec.structs.replace(one, mode=lower) if lower != one.mode else one


def _lower(store: RestoredPolicy, audit: RestoredPolicy) -> RestoredPolicy:
    """The less enforcing of two, part by part."""
    one = _capped(audit, Mode(store.mode)) if store.mode in MODES else audit
    latched = Overlay.ROLLED_BACK in (store.overlay, audit.overlay)
    return msgspec.structs.replace(
        one,
        overlay=Overlay.ROLLED_BACK if latched else audit.overlay,
        revision=max(store.revision, audit.revision),
        rollbacks=max(store.rollbacks, audit.rollbacks),
        cooldown_seconds=max(store.cooldown_seconds, audit.cooldown_seconds),
    )
