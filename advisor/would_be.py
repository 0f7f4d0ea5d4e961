"""Shadow batches and would-be savings as they are told: report, status and metrics read this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvready.advisor.intervals import OTHER_SHAPES
from kvready.advisor.ledger import Target
from kvready.advisor.savings import Bounded, Candidate, Saving, Verdict
from kvready.advisor.shadow import Compared, Voided

if TYPE_CHECKING:
    from kvready.advisor.pipeline import Pipeline


class WouldBe(msgspec.Struct, frozen=True):
    """What Strata would have done beside what the engine did. Savings are of the latest episodes.

    Bounds are of 90 %. A saving counts only where its verdict is `shown`; the first is the placebo.
    """

    batches: dict[Compared, int]
    voided: dict[Voided, int]
    intended_batches: int
    intended_load_seconds: float
    intended_compute_seconds: float
    intended_stall_seconds: float
    savings: list[Saving]


def would_be(pipeline: Pipeline) -> WouldBe:
    """Of all ranks of an engine."""
    shadow, totals = pipeline.shadow, pipeline.totals
    ranks = pipeline.ranks.values()
    spreads = [
        rank.forecaster.intervals[Target.BATCH_COMPUTE].frame(OTHER_SHAPES).spread for rank in ranks
    ]
    shared = pipeline.gates.signals.shared.sums(totals)
    savings = shadow.savings.savings(max(spreads), shared.delay_hits, shared.duplicate_share)
    return WouldBe(
        batches={one: shadow.compared[one] for one in Compared},
        voided={one: shadow.voided[one] for one in Voided},
        intended_batches=shadow.intended.batches,
        intended_load_seconds=shadow.intended.load_seconds,
        intended_compute_seconds=shadow.intended.compute_seconds,
        intended_stall_seconds=shadow.intended.stall_seconds,
        savings=savings,
    )


def saving_text(saving: Saving) -> str:
    """What is said of one candidate, in words."""
    if saving.verdict is Verdict.NATIVE:
        return "native: the engine does it by itself"
    if saving.verdict is Verdict.NO_EPISODES:
        if saving.candidate is Candidate.PLACEBO:
            return "no episodes yet"
        return "no benefit expected: it never decided otherwise"
    where = f"{saving.episodes} episodes, {saving.requests} requests"
    if saving.verdict is Verdict.TOO_FEW:
        return f"too few episodes to tell ({where})"
    if saving.verdict is Verdict.UNPROVEN and saving.candidate is not Candidate.PLACEBO:
        return f"not shown until the placebo reads zero ({where})"
    told = (
        f"{_bounded(saving.ttft)} of waiting, {_bounded(saving.busy)} of engine time saved; {where}"
    )
    if saving.candidate is Candidate.PLACEBO and saving.verdict is Verdict.UNPROVEN:
        return f"does not read zero: {told}"
    return told


def _bounded(sum_of: Bounded) -> str:
    low, high = sum_of.low_seconds or 0.0, sum_of.high_seconds or 0.0
    return f"{sum_of.seconds:+.2f} s ({low:+.2f} to {high:+.2f})"
