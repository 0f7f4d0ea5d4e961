"""What each model is, what it rests on, and how well its intervals held of late."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from kvready.advisor.contract import Evidence
from kvready.advisor.engine_rank import EngineRank
from kvready.advisor.evidence import seen_of
from kvready.advisor.ledger import NOMINAL_COVERAGE, Ledger, Pair, PairState, Target
from kvready.advisor.load_priors import PriorKind
from kvready.advisor.lookahead import MODEL as ROLLFORWARD_MODEL
from kvready.advisor.readiness import LoadModel

RECENT_PAIRS = 1_000  # per target
OF_PRIOR = {
    PriorKind.GENERIC: Evidence.ASSUMED,
    PriorKind.PUBLISHED: Evidence.PUBLISHED,
    PriorKind.MEASURED: Evidence.MEASURED,
}


class RecentIntervals(msgspec.Struct, frozen=True):
    """How the intervals of a target's latest scored forecasts held, over all ranks."""

    pairs: int
    covered: float | None  # share; None: no pair yet
    median_width: float | None  # high over low
    nominal_coverage: float = NOMINAL_COVERAGE


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model of one rank."""

    target: Target
    rank: int
    name: str  # which of a target's models: of a direction and mover, of prefill or decode
    version: str
    calibration_id: str | None  # the link profile that it starts from; None: none
    evidence: Evidence
    coefficients: dict[str, float]
    observations: int
    stale: bool  # the link profile speaks of another link than the one seen
    recent: RecentIntervals


class ModelCards(msgspec.Struct, frozen=True):
    """All models of an engine."""

    models: tuple[ModelCard, ...]


def model_cards(ranks: Iterable[EngineRank], ledger: Ledger) -> ModelCards:
    """A card per model."""
    recent = {target: _recent(list(ledger.recent(target, RECENT_PAIRS))) for target in Target}
    cards: list[ModelCard] = []
    for rank in ranks:
        for model in rank.forecaster.mover.models.values():
            cards += _load_cards(rank, model, recent)
        cards += _compute_cards(rank, recent)
    return ModelCards(tuple(cards))


def _load_cards(
    rank: EngineRank, model: LoadModel, recent: dict[Target, RecentIntervals]
) -> list[ModelCard]:
    target = Target.LOAD if model.destination == "hbm" else Target.FETCH
    cards = []
    for method, mover in model.movers.items():
        evidence = seen_of(rank.engine) if mover.copies else OF_PRIOR[mover.prior.kind]
        cards.append(
            ModelCard(
                target=target,
                rank=rank.rank,
                name=f"{model.source} to {model.destination}, {method or 'mover untold'}",
                version=model.version,
                calibration_id=rank.forecaster.mover.calibration_id or None,
                evidence=evidence,
                coefficients={
                    "overhead_seconds": mover.overhead_seconds,
                    "factor": mover.factor,
                    "scale": mover.scale.value,
                    "submit_seconds": model.submit_seconds,
                    "step_share": model.step_share,
                },
                observations=mover.copies,
                stale=mover.is_stale,
                recent=recent[target],
            )
        )
    return cards


def _compute_cards(rank: EngineRank, recent: dict[Target, RecentIntervals]) -> list[ModelCard]:
    compute = rank.forecaster.compute
    cards = []
    for name, fit in compute.fits().items():
        cards.append(
            ModelCard(
                target=Target.BATCH_COMPUTE,
                rank=rank.rank,
                name=name,
                version=compute.version,
                calibration_id=None,
                evidence=seen_of(rank.engine) if fit.observations else Evidence.ASSUMED,
                coefficients=fit.coefficients,
                observations=fit.observations,
                stale=False,
                recent=recent[Target.BATCH_COMPUTE],
            )
        )
    for target in (Target.QUEUE, Target.INFLIGHT_READY, Target.PREFILL, Target.TTFT):
        cards.append(
            ModelCard(
                target=target,
                rank=rank.rank,
                name="the engine's queue rolled forward",
                version=f"{ROLLFORWARD_MODEL}+{compute.version}",
                calibration_id=rank.forecaster.mover.calibration_id or None,
                evidence=cards[0].evidence,
                coefficients={},
                observations=recent[target].pairs,
                stale=False,
                recent=recent[target],
            )
        )
    return cards


def _recent(pairs: list[Pair]) -> RecentIntervals:
    scored = [pair for pair in pairs if pair.state is PairState.PAIRED]
    if not scored:
        return RecentIntervals(0, None, None)
    widths = [pair.forecast.high_seconds / max(pair.forecast.low_seconds, 1e-9) for pair in scored]
    covered = sum(bool(pair.covered) for pair in scored) / len(scored)
    return RecentIntervals(len(scored), covered, median(widths))
