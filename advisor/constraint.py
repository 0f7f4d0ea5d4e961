"""What serving is bound by, minute by minute: the link, compute, or neither. Bounded, pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from kvready.advisor.gate_evidence import ConstraintEvidence
from kvready.advisor.link_sharing import Span
from kvready.advisor.policies import Policy

LINK_SHARE = 0.50  # of a window, in which copies are active
COMPUTE_SHARE = 0.90  # of a window, in which a batch runs
KEPT_MINUTES = 120


class Constraint(StrEnum):
    """The resource that more of would help."""

    LINK = "link"
    COMPUTE = "compute"
    NONE = "none"


# What more of each policy gives: dedup spares computing twice, the others hide or shorten copies.
RELIEVES = {
    Policy.DEDUP: Constraint.COMPUTE,
    Policy.BALANCE: Constraint.LINK,
    Policy.GPU_COPY: Constraint.LINK,
}


class Minute(msgspec.Struct, frozen=True):
    """Shares of one minute in which batches ran."""

    copy_share: float
    exposed_seconds: float
    batch_share: float

    @property
    def bound_by(self) -> frozenset[Constraint]:
        """Both may hold at once."""
        found = set()
        if self.copy_share >= LINK_SHARE and self.exposed_seconds > 0.0:
            found.add(Constraint.LINK)
        if self.batch_share >= COMPUTE_SHARE:
            found.add(Constraint.COMPUTE)
        return frozenset(found)

    @property
    def constraint(self) -> Constraint:
        """The one that is named: the link before compute."""
        bound = self.bound_by
        return next((one for one in Constraint if one in bound), Constraint.NONE)


class Constraints:
    """The latest minutes of serving; idle ones say nothing."""

    def __init__(self) -> None:
        self._minutes: deque[Minute] = deque(maxlen=KEPT_MINUTES)

    def add(self, minute: Minute) -> None:
        """One more minute."""
        if minute.batch_share > 0.0:
            self._minutes.append(minute)

    def forget(self) -> None:
        """Another engine runs now."""
        self._minutes.clear()

    @property
    def latest(self) -> Constraint:
        """Of the last minute of serving."""
        return self._minutes[-1].constraint if self._minutes else Constraint.NONE

    def evidence(self, policy: Policy) -> ConstraintEvidence:
        """How often what a policy relieves was the constraint."""
        relieved = RELIEVES[policy]
        bound = sum(relieved in minute.bound_by for minute in self._minutes)
        return ConstraintEvidence(len(self._minutes), bound, str(relieved))


def covered_seconds(spans: Iterable[Span]) -> float:
    """How long at least one of them was under way."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total
