"""What gates look at: everything that is known of one policy at one moment, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvready.advisor.ledger import Target
from kvready.advisor.policies import Mode, Policy
from kvready.advisor.savings import Bounded
from kvready.advisor.savings import Verdict as Saved
from kvready.advisor.verdicts import Check

# What each policy decides by; design: gates judge the targets that their policy uses.
TARGETS = {
    Policy.DEDUP: (Target.INFLIGHT_READY,),
    Policy.BALANCE: (Target.LOAD, Target.BATCH_COMPUTE),
    Policy.GPU_COPY: (Target.LOAD,),  # per mover; what loads do to batches is no target of its own
}


class CellEvidence(msgspec.Struct, frozen=True):
    """Forecasts of one target and shape beside what happened, the latest first lost.

    An error is the logarithm of actual over predicted, after grace; positive: reality took longer.
    An outcome that is overdue counts as not covered, and as wrong as it is by now.
    """

    target: Target
    shape_cell: str
    covered: int
    errors: tuple[float, ...]
    told_seconds: tuple[float, ...] = ()  # when each was; empty: each at a moment of its own
    covered_moments: float | None = None  # of those, each by the share of its outcomes

    @property
    def scored(self) -> int:
        """How many were judged."""
        return len(self.errors)

    @property
    def moments(self) -> int:
        """At how many they were told: who waits for one leader is right or wrong with all others.

        What is beyond doubt is so by moments, not by outcomes.
        """
        return len(set(self.told_seconds)) or self.scored

    def moments_with(self, flags: Sequence[bool]) -> float:
        """Of these, each by the share of its outcomes that have a flag."""
        if not self.told_seconds:
            return float(sum(flags))
        return by_moment(zip(self.told_seconds, flags, strict=True))


def by_moment(outcomes: Iterable[tuple[float, bool]]) -> float:
    """Sum over moments of the share of what was told then that has a flag."""
    counts: dict[float, list[int]] = {}
    for seconds, flag in outcomes:
        count = counts.setdefault(seconds, [0, 0])
        count[0] += flag
        count[1] += 1
    return sum(hits / told for hits, told in counts.values())


class TapEvidence(msgspec.Struct, frozen=True):
    """What the taps delivered in the last hour, and how they stand."""

    records: int
    lost: int
    doubtful: tuple[str, ...] = ()  # streams that are not whole now
    contradictions: tuple[str, ...] = ()


class EngineEvidence(msgspec.Struct, frozen=True):
    """What stands behind the figures."""

    version: str  # empty: nothing described it
    supported_kv_state: bool = True
    stale_calibrations: tuple[str, ...] = ()
    gathers_itself: bool = False  # its loads are gathered without us
    has_lower_tier: bool = True  # from which it loads
    is_stalled: bool = False  # requests wait, and no batch runs


class SavingEvidence(msgspec.Struct, frozen=True):
    """What the policy would have saved, beside the placebo, in the same machinery."""

    verdict: Saved
    ttft: Bounded
    busy: Bounded
    placebo: Saved
    placebo_ttft: Bounded
    batches: int  # compared with the intended ones
    note: str = ""


class ConstraintEvidence(msgspec.Struct, frozen=True):
    """Minutes of the last hours in which batches ran, by what they were bound by."""

    minutes: int
    bound_minutes: int  # by what this policy relieves
    relieves: str  # link or compute


class SlowdownEvidence(msgspec.Struct, frozen=True):
    """How much longer batches take beside loads, with bounds of 95 %."""

    factor: float
    low: float
    high: float


class CopyChecks(msgspec.Struct, frozen=True):
    """Gathered copies that were compared byte for byte, since what acts now began to."""

    checked: int
    mismatched: int


class GateEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    policy: Policy
    mode: Mode
    cells: tuple[CellEvidence, ...]  # of the policy's targets, bad cells left out
    bad_cells: tuple[str, ...]  # that are
    left_out: dict[Target, int]  # scored in those
    taps: TapEvidence
    engine: EngineEvidence
    saving: SavingEvidence | None  # None: nothing was compared yet
    constraint: ConstraintEvidence
    slowdown: SlowdownEvidence | None = None  # of decode batches
    copies: CopyChecks = CopyChecks(0, 0)
    burn: tuple[Check, ...] = ()  # of bad predictions, by pairs of windows
    harm: tuple[Check, ...] = ()  # of windows with and without it
    benefit: tuple[Check, ...] = ()  # likewise

    def scored(self, target: Target) -> int:
        """Outcomes of one target inside the policy's scope."""
        return sum(cell.scored for cell in self.cells if cell.target is target)
