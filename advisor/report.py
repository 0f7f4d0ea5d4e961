"""What was predicted and what happened, as one structure: the page, the CLI and JSON show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import msgspec

from kvready.advisor.backcasts import Backcaster, BackcastState
from kvready.advisor.bad_cells import BadCell
from kvready.advisor.conditions import describe_engine
from kvready.advisor.contradictions import Contradiction
from kvready.advisor.copy_model import CopyCalibration
from kvready.advisor.drift import DriftKind
from kvready.advisor.interference import Slowdown
from kvready.advisor.ledger import NOMINAL_COVERAGE, Forecast, Pair, PairState, Target
from kvready.advisor.outside_model import BackcastTarget
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.totals import Totals
from kvready.advisor.verdicts import GateReport
from kvready.advisor.waits import WaitState
from kvready.advisor.would_be import WouldBe, would_be
from kvready.collectors.records import Outcome, TapState, Tier

MAX_CELLS_PER_TARGET = 32


class CellScore(msgspec.Struct, frozen=True):
    """Predictions of one target in one cell of request shapes, against what happened."""

    target: Target
    shape_cell: str
    pairs: int
    median_actual_seconds: float
    median_signed_error_seconds: float
    median_absolute_relative_error: float
    coverage_ratio: float
    nominal_coverage_ratio: float
    median_width_ratio: float  # high over low of the interval
    bad_ratio: float


class TargetCounts(msgspec.Struct, frozen=True):
    """What became of one target's forecasts."""

    target: Target
    paired: int
    late: int
    censored: int
    open: int
    missed: int


class Drift(msgspec.Struct, frozen=True):
    """One target's predictions stopped being what they were."""

    target: Target
    kind: DriftKind
    alarms: int  # so far
    active: bool  # raised by one of the latest outcomes


class WaitShare(msgspec.Struct, frozen=True):
    """Seconds that requests spent in one state before their first token."""

    state: WaitState
    seconds: float
    ratio: float


class Hits(msgspec.Struct, frozen=True):
    """Prompt tokens by what their cache hit was worth; None where nothing was known."""

    requests: int
    prompt_tokens: int
    nominal_tokens: int
    in_time_tokens: int
    worthwhile_tokens: int
    late_tokens: int
    lost_tokens: int
    in_time_ratio: float | None
    nominal_ratio: float | None
    in_time_hits: int
    late_hits: int
    delay_hits_in_queue: int
    delay_hits_in_flight: int
    delay_hit_tokens: int
    duplicate_prefill_tokens: int
    exposed_load_seconds: float
    hidden_load_seconds: float
    unknown_residency_requests: int


class Movement(msgspec.Struct, frozen=True):
    """Copies in one direction."""

    source: Tier
    destination: Tier
    copies: int
    payload_bytes: int
    busy_seconds: float
    bytes_per_second: float | None


class BackcastScore(msgspec.Struct, frozen=True):
    """Backcasts of one target: computed as if at arrival, never mixed with forecasts.

    Medians are of those that are kept; None where there are none.
    """

    target: BackcastTarget
    states: dict[BackcastState, int]
    median_actual_seconds: float | None
    median_signed_error_seconds: float | None
    coverage_ratio: float | None
    nominal_coverage_ratio: float
    bad_ratio: float | None


class Report(msgspec.Struct, frozen=True):
    """One engine's predictions and outcomes, with the conditions that they hold under."""

    evidence: str
    conditions: dict[str, str]
    requests: dict[Outcome, int]
    targets: list[TargetCounts]
    cells: list[CellScore]
    waits: list[WaitShare]
    unattributed_ratio: float
    hits: Hits
    movements: list[Movement]
    taps: dict[str, TapState]
    pairs_leaning_on_degraded: int
    live_blocks: dict[Tier, int]
    backcasts: list[BackcastScore] = []  # empty where no tap told of requests from outside
    contradictions: list[Contradiction] = []
    drifts: list[Drift] = []  # those that were ever alarmed of
    calibrations: list[CopyCalibration] = []  # each mover that was seen, beside its prior
    slowdowns: list[Slowdown] = []  # of batches beside loads, where there were enough
    would_be: WouldBe | None = None  # beside what Strata would have done; None: no batch was seen
    gates: list[GateReport] = []  # the latest of each policy, scope and version
    bad_cells: list[BadCell] = []  # persistently bad: outside every policy's scope


def build_report(
    pipeline: Pipeline, evidence: str = "", conditions: dict[str, str] | None = None
) -> Report:
    """The report of all that a pipeline has seen. `evidence`: its kind, if known better."""
    totals = pipeline.totals
    waited = sum(totals.wait_seconds.values())
    return Report(
        evidence=evidence or pipeline.evidence,
        conditions=(conditions or {})
        | describe_engine(pipeline.engine)
        | {"link profile": pipeline.priors.described}
        | {"compute starts from": pipeline.compute_prior.described}
        | pipeline.traffic.described(),
        requests=dict(totals.requests),
        targets=[_target_counts(pipeline, target) for target in Target],
        cells=score_cells(pipeline.ledger.pairs, pipeline.ledger.missed_and_open()),
        waits=[
            WaitShare(state, seconds, seconds / waited if waited else 0.0)
            for state, seconds in totals.wait_seconds.items()
        ],
        unattributed_ratio=totals.unattributed_seconds / waited if waited else 0.0,
        hits=_hits(totals),
        movements=_movements(totals),
        taps=dict(pipeline.tap_states),
        pairs_leaning_on_degraded=sum(
            pair.forecast.leans_on_degraded
            for pair in pipeline.ledger.pairs
            if pair.state is PairState.PAIRED
        ),
        live_blocks={tier: pipeline.inventory.live_blocks(tier) for tier in Tier},
        backcasts=score_backcasts(pipeline.outside.backcaster) if pipeline.outside.reports else [],
        contradictions=list(pipeline.outside.contradictions.found.values()),
        calibrations=pipeline.calibrations,
        slowdowns=pipeline.slowdowns,
        would_be=would_be(pipeline) if totals.batches else None,
        drifts=[drift for drift in seen_drifts(pipeline) if drift.alarms],
        gates=list(pipeline.gates.latest.values()),
        bad_cells=pipeline.gates.signals.bad_cells.listed,
    )


def seen_drifts(pipeline: Pipeline) -> list[Drift]:
    """The drift alarms of every target and kind, over all ranks."""
    drifts = []
    for target in Target:
        watched = [rank.forecaster.intervals[target].drift for rank in pipeline.ranks.values()]
        drifts += [
            Drift(
                target=target,
                kind=kind,
                alarms=sum(one.alarms[kind] for one in watched),
                active=any(one.is_active(kind) for one in watched),
            )
            for kind in DriftKind
        ]
    return drifts


def score_backcasts(backcaster: Backcaster) -> list[BackcastScore]:
    """What became of reported requests, per target."""
    scores = []
    for target in BackcastTarget:
        kept = [one for one in backcaster.backcasts if one.target is target]
        scored = backcaster.counts[target, BackcastState.SCORED]
        scores.append(
            BackcastScore(
                target=target,
                states={state: backcaster.counts[target, state] for state in BackcastState},
                median_actual_seconds=median(one.actual_seconds for one in kept) if kept else None,
                median_signed_error_seconds=median(
                    one.actual_seconds - one.p50_seconds for one in kept
                )
                if kept
                else None,
                coverage_ratio=backcaster.covered[target] / scored if scored else None,
                nominal_coverage_ratio=NOMINAL_COVERAGE,
                bad_ratio=backcaster.bad[target] / scored if scored else None,
            )
        )
    return scores


def score_cells(pairs: Iterable[Pair], missed_and_open: Iterable[Forecast] = ()) -> list[CellScore]:
    """Scores per target and shape cell, largest cells first.

    A forecast whose upper bound passed is a miss from then on, whether its outcome came later,
    never came, or is still awaited: medians are of outcomes, shares of all that was scored.
    """
    cells: dict[tuple[Target, str], _Cell] = defaultdict(_Cell)
    for pair in pairs:
        cell = cells[pair.forecast.target, pair.forecast.shape_cell]
        if pair.state is PairState.PAIRED:
            cell.paired.append(pair)
        elif pair.state is PairState.CENSORED and pair.missed:
            cell.missed_without_outcome += 1
    for forecast in missed_and_open:
        cells[forecast.target, forecast.shape_cell].missed_without_outcome += 1
    scores = [_score(target, name, cell) for (target, name), cell in cells.items() if cell.paired]
    scores.sort(key=lambda score: (list(Target).index(score.target), -score.pairs))
    kept: dict[Target, int] = defaultdict(int)
    bounded = []
    for score in scores:
        kept[score.target] += 1
        if kept[score.target] <= MAX_CELLS_PER_TARGET:
            bounded.append(score)
    return bounded


class _Cell:
    __slots__ = ("missed_without_outcome", "paired")

    def __init__(self) -> None:
        self.paired: list[Pair] = []
        self.missed_without_outcome = 0


def _score(target: Target, name: str, cell: _Cell) -> CellScore:
    pairs = cell.paired
    scored = len(pairs) + cell.missed_without_outcome
    actual = [pair.actual_seconds or 0.0 for pair in pairs]
    errors = [pair.signed_error_seconds or 0.0 for pair in pairs]
    return CellScore(
        target=target,
        shape_cell=name,
        pairs=len(pairs),
        median_actual_seconds=median(actual),
        median_signed_error_seconds=median(errors),
        median_absolute_relative_error=median(
            abs(e) / max(a, 1e-9) for e, a in zip(errors, actual, strict=True)
        ),
        coverage_ratio=sum(bool(pair.covered) for pair in pairs) / scored,
        nominal_coverage_ratio=NOMINAL_COVERAGE,
        median_width_ratio=median(
            pair.forecast.high_seconds / max(pair.forecast.low_seconds, 1e-9) for pair in pairs
        ),
        bad_ratio=(sum(bool(pair.bad) for pair in pairs) + cell.missed_without_outcome) / scored,
    )


def _target_counts(pipeline: Pipeline, target: Target) -> TargetCounts:
    counts = pipeline.ledger.counts
    return TargetCounts(
        target=target,
        paired=counts[target, PairState.PAIRED],
        late=counts[target, PairState.LATE],
        censored=counts[target, PairState.CENSORED],
        open=counts[target, PairState.OPEN],
        missed=pipeline.ledger.missed[target],
    )


def _hits(totals: Totals) -> Hits:
    # Ratios are of the prompts whose residency at arrival was known.
    judged = totals.judged_prompt_tokens
    return Hits(
        requests=totals.first_tokens,
        prompt_tokens=totals.prompt_tokens,
        nominal_tokens=totals.nominal_hit_tokens,
        in_time_tokens=totals.in_time_hit_tokens,
        worthwhile_tokens=totals.worthwhile_hit_tokens,
        late_tokens=totals.late_hit_tokens,
        lost_tokens=totals.lost_hit_tokens,
        in_time_ratio=totals.in_time_hit_tokens / judged if judged else None,
        nominal_ratio=totals.nominal_hit_tokens / judged if judged else None,
        in_time_hits=totals.in_time_hits,
        late_hits=totals.late_hits,
        delay_hits_in_queue=totals.delay_hits["in_queue"],
        delay_hits_in_flight=totals.delay_hits["in_flight"],
        delay_hit_tokens=totals.delay_hit_tokens,
        duplicate_prefill_tokens=totals.duplicate_prefill_tokens,
        exposed_load_seconds=totals.exposed_load_seconds,
        hidden_load_seconds=totals.hidden_load_seconds,
        unknown_residency_requests=totals.unknown_residency,
    )


def _movements(totals: Totals) -> list[Movement]:
    movements = []
    for (source, destination), copies in totals.copies.items():
        seconds = totals.copy_seconds[source, destination]
        payload = totals.copy_bytes[source, destination]
        rate = payload / seconds if seconds > 0 else None
        movements.append(Movement(source, destination, copies, payload, seconds, rate))
    return movements
