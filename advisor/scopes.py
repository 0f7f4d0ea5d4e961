"""Which of a policy's scopes speaks for a request: the most specific; what lies over any holds.

More named parts are more specific; of as many, a request class beats a pool, a pool an engine.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvready.advisor.policies import Overlay, Policy, PolicyState, Scope
from kvready.collectors.commanded import EVERYWHERE

# Of several overlays the one that takes most to lift.
_WEIGHT = {Overlay.NONE: 0, Overlay.PAUSED: 1, Overlay.ROLLED_BACK: 2, Overlay.KILLED: 3}


def covers(scope: Scope, subject: Scope) -> bool:
    """Whether what holds in `scope` holds for `subject`."""
    parts = zip(msgspec.structs.astuple(scope), msgspec.structs.astuple(subject), strict=True)
    return all(wide in (EVERYWHERE, narrow) for wide, narrow in parts)


def specificity(scope: Scope) -> tuple[int, bool, bool, bool]:
    """Greater is more specific; never equal for two scopes that cover one subject."""
    named = tuple(part != EVERYWHERE for part in (scope.request_class, scope.pool, scope.engine))
    return sum(named), named[0], named[1], named[2]


def gravest(overlays: Iterable[Overlay]) -> Overlay:
    """The one that takes most to lift."""
    return max(overlays, key=_WEIGHT.__getitem__, default=Overlay.NONE)


def effective(states: Iterable[PolicyState], policy: Policy, subject: Scope) -> PolicyState | None:
    """The state that speaks for a subject; under the gravest overlay of all that cover it."""
    covering = [s for s in states if s.policy is policy and covers(s.scope, subject)]
    if not covering:
        return None
    speaks = max(covering, key=lambda state: specificity(state.scope))
    return msgspec.structs.replace(speaks, overlay=gravest(s.overlay for s in covering))
