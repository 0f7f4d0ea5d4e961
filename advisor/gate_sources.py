"""Where gates' evidence comes from: the pipeline's parts, read at one moment. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvready.advisor.conditions import describe_engine
from kvready.advisor.gate_evidence import (
    EngineEvidence,
    SavingEvidence,
    SlowdownEvidence,
    TapEvidence,
)
from kvready.advisor.gates import Basis
from kvready.advisor.interference import BatchKind
from kvready.advisor.intervals import OTHER_SHAPES
from kvready.advisor.ledger import Target
from kvready.advisor.outside import leans_on
from kvready.advisor.policies import Policy, Scope
from kvready.advisor.savings import MIN_EPISODES, NORMAL_90, Bounded, Candidate, Saving
from kvready.advisor.savings import Verdict as Saved
from kvready.advisor.shadow import Compared
from kvready.advisor.would_be import WouldBe
from kvready.collectors.records import CopyMethod, EngineDescribed, TapEvent, TapState, Tier

if TYPE_CHECKING:
    from kvready.advisor.pipeline import Pipeline
    from kvready.collectors.records import TapStatus

HOUR_MINUTES = 60
MIN_COPIES = 16  # of each mover, before their times are compared
SAVINGS = {Policy.DEDUP: Candidate.DEDUP, Policy.BALANCE: Candidate.BALANCE}
COMPARED = (Compared.SAME, Compared.DIFFERENT, Compared.NO_CHOICE, Compared.IN_EPISODE)
NOTHING = Bounded(0.0)
# Predictions and savings are the engine's: what is bad of a part of it is bad enough for the part.
PART_OF_ENGINE = "predictions and would-be savings of the whole engine; windows of this scope alone"


class Deliveries:
    """What the taps that forecasts lean on delivered and lost, by minutes of the last hour."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, int]] = deque(maxlen=HOUR_MINUTES)
        self._records: Counter[str] = Counter()  # of this minute, by tap
        self._lost = 0

    def take(self, tap: str) -> None:
        """One more record, from a tap."""
        self._records[tap] += 1

    def status(self, status: TapStatus, is_final: bool) -> None:
        """News of a tap. `is_final`: what is missing is not asked for again."""
        is_lost = status.event is TapEvent.DROPPED or (status.event is TapEvent.GAP and is_final)
        if is_lost and leans_on(status.tap):
            self._lost += max(1, status.count)

    def minute(self) -> None:
        """A minute is over."""
        self._minutes.append((self._told, self._lost))
        self._records.clear()
        self._lost = 0

    @property
    def sums(self) -> tuple[int, int]:
        """Records and losses of the last hour."""
        return (
            self._told + sum(records for records, _ in self._minutes),
            self._lost + sum(lost for _, lost in self._minutes),
        )

    @property
    def _told(self) -> int:
        return sum(count for tap, count in self._records.items() if leans_on(tap))


def tap_evidence(pipeline: Pipeline, deliveries: Deliveries) -> TapEvidence:
    """What arrived, what did not, and what contradicts itself."""
    records, lost = deliveries.sums
    doubtful = {
        tap
        for tap, state in pipeline.tap_states.items()
        if leans_on(tap) and state is not TapState.LIVE
    }
    if pipeline.inventory.degraded and not doubtful:
        doubtful.add("KV events")
    contradicted = pipeline.outside.contradictions.active
    return TapEvidence(
        records=records,
        lost=lost,
        doubtful=tuple(sorted(doubtful)),
        contradictions=tuple(sorted(str(one.kind) for one in contradicted)),
    )


def engine_evidence(pipeline: Pipeline, is_stalled: bool) -> EngineEvidence:
    """What the engine says that it is, and whether profiles still speak of it."""
    engine = pipeline.engine
    if engine is None:
        return EngineEvidence("", is_stalled=is_stalled)
    stale = [
        f"{one.source} to {one.destination} by {one.method or 'untold'}"
        for one in pipeline.calibrations
        if one.stale
    ]
    return EngineEvidence(
        version=f"{engine.engine} {engine.engine_version}",
        supported_kv_state=engine.supported_kv_state,
        stale_calibrations=tuple(sorted(stale)),
        gathers_itself=engine.load_method is CopyMethod.GATHER,
        has_lower_tier=_loads(pipeline, engine),
        is_stalled=is_stalled,
    )


def slowdown_evidence(pipeline: Pipeline) -> SlowdownEvidence | None:
    """What loads cost decode batches."""
    for one in pipeline.slowdowns:
        if one.kind is BatchKind.DECODE:
            return SlowdownEvidence(one.factor, one.low, one.high)
    return None


def saving_evidence(pipeline: Pipeline, told: WouldBe, policy: Policy) -> SavingEvidence | None:
    """What the policy would have saved, beside the placebo."""
    batches = sum(told.batches[one] for one in COMPARED)
    if not batches:
        return None
    placebo = told.savings[0]
    if policy is Policy.GPU_COPY:
        saving, note = _gather_saving(pipeline)
    else:
        found = [one for one in told.savings if one.candidate is SAVINGS[policy]]
        saving, note = found[0], ""
    return SavingEvidence(
        verdict=_proved(saving.verdict, placebo),
        ttft=saving.ttft,
        busy=saving.busy,
        placebo=placebo.verdict,
        placebo_ttft=placebo.ttft,
        batches=batches,
        note=note,
    )


def basis(pipeline: Pipeline, versions: Iterable[str], scope: Scope) -> Basis:
    """Under which conditions figures hold."""
    engine = pipeline.engine
    of_a_part = {} if scope == Scope() else {"judged on": PART_OF_ENGINE}
    return Basis(
        conditions={
            "evidence": str(pipeline.evidence),
            **describe_engine(engine),
            "link profile": pipeline.priors.described,
            "compute starts from": pipeline.compute_prior.described,
            **pipeline.traffic.described(),
            **of_a_part,
        },
        model_versions=tuple(versions),
        calibration_id=pipeline.priors.calibration_id,
        engine_version=f"{engine.engine} {engine.engine_version}" if engine else "",
    )


def _loads(pipeline: Pipeline, engine: EngineDescribed) -> bool:
    """Whether anything is below HBM, by what the engine says or by what it did."""
    seen = any(destination is Tier.HBM for _, destination in pipeline.totals.copies)
    return seen or bool(engine.host_bytes or engine.disk_bytes)


def _proved(verdict: Saved, placebo: Saving) -> Saved:
    """No saving is shown until the placebo reads zero, whoever worked it out."""
    if verdict is Saved.SHOWN and placebo.verdict is not Saved.SHOWN:
        return Saved.UNPROVEN
    return verdict


def _gather_saving(pipeline: Pipeline) -> tuple[Saving, str]:
    """Exposed load time that gathering would have spared, by what both movers took here.

    Each mover's time of the mean load is as wrong as forecasts of loads are.
    """
    totals, engine = pipeline.totals, pipeline.engine
    direction = Tier.HOST, Tier.HBM
    copies = totals.copies.get(direction, 0)
    candidate = Candidate.PLACEBO  # none of those that are rolled
    none = Saving(candidate, Saved.NO_EPISODES, 0, 0, NOTHING, NOTHING)
    if engine is None or not copies:
        return none, "nothing was loaded from host memory"
    too_few = Saving(candidate, Saved.TOO_FEW, copies, copies, NOTHING, NOTHING)
    payload = totals.copy_bytes[direction] // copies
    fragment = engine.host_fragment_bytes or payload or 1
    seen = [
        (rank, model)
        for rank in pipeline.ranks.values()
        if (model := rank.forecaster.mover.models.get(direction)) is not None
    ]
    for rank, model in seen:
        gather = model.movers.get(CopyMethod.GATHER)
        others = [one for method, one in model.movers.items() if method is not CopyMethod.GATHER]
        other = max(others, key=lambda one: one.copies, default=None)
        if gather is None or other is None or min(gather.copies, other.copies) < MIN_COPIES:
            continue
        fragments = max(1, payload // fragment)
        usual, gathered = (one.seconds(payload, fragments) for one in (other, gather))
        exposed, hidden = totals.exposed_load_seconds, totals.hidden_load_seconds
        share = exposed / (exposed + hidden) if exposed + hidden > 0.0 else 0.0
        spread = rank.forecaster.intervals[Target.LOAD].frame(OTHER_SHAPES).spread
        reach = NORMAL_90 * spread * math.hypot(usual, gathered)
        scale = copies * share
        saved = usual - gathered
        ttft = Bounded(saved * scale, (saved - reach) * scale, (saved + reach) * scale)
        note = f"{copies:,} loads of {payload:,} bytes, {usual:.4f} s each, {gathered:.4f} gathered"
        verdict = Saved.SHOWN if copies >= MIN_EPISODES else Saved.TOO_FEW
        return Saving(candidate, verdict, copies, copies, ttft, NOTHING), note
    return too_few, f"fewer than {MIN_COPIES} loads of each mover: both must be seen to be compared"
