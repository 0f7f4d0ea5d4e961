"""Recordings evaluated: kvready's forecasts and its rivals', on the same samples."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvready.advisor.evaluation.bootstrap import Between, Track, ratio
from kvready.advisor.evaluation.gathering import Gathered
from kvready.advisor.evaluation.repeats import differences
from kvready.advisor.evaluation.results import (
    OWN,
    Against,
    Group,
    GroupKind,
    TargetEvaluation,
)
from kvready.advisor.evaluation.rivals import outcomes, rivals
from kvready.advisor.evaluation.samples import Sample
from kvready.advisor.evaluation.scores import (
    Floats,
    Predicted,
    covered,
    interval_score,
    pinball,
    score,
)
from kvready.advisor.evaluation.split import (
    MIN_TRAINING_SAMPLES,
    Period,
    Rows,
    own,
    period_of,
    predict,
    rows_of,
)
from kvready.advisor.ledger import PairState, Target
from kvready.collectors.errors import RecordingError
from kvready.collectors.recording import Provenance

MIN_FIRST_TOKENS = 60
FEW = 20  # samples; fewer are shown, and said to be few
MAX_SHAPES = 32  # per target


class Pooled(NamedTuple):
    """One target's scored samples of all recordings, with every model's predictions."""

    samples: list[Sample]
    actual: Floats
    predicted: dict[str, Predicted]
    apart: Floats  # from each one's repeat; NaN: none
    recording: NDArray[np.int64]
    periods: list[Period]


def check(runs: Sequence[Gathered]) -> str:
    """The kind of evidence; raises `RecordingError` for what cannot be judged."""
    kinds = {run.header.provenance for run in runs}
    if len(kinds) > 1:
        raise RecordingError(
            "real and simulated recordings are never judged together; evaluate each kind by itself"
        )
    for run in runs:
        first_tokens = run.counts.get((Target.TTFT, PairState.PAIRED), 0)
        if first_tokens < MIN_FIRST_TOKENS:
            raise RecordingError(
                f"{run.name} holds {first_tokens} first tokens that were forecast; an evaluation "
                f"needs at least {MIN_FIRST_TOKENS}: record for longer, with the observer attached"
            )
    return "measured" if kinds == {Provenance.REAL} else "simulated"


def evaluate_target(
    target: Target,
    runs: Sequence[Gathered],
    repeats: Sequence[Gathered | None],
    refit: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> TargetEvaluation | None:
    """Score one target over all recordings; None where nothing of it was forecast and ended."""
    periods = [period_of(run) for run in runs]
    rows = [rows_of(run, target, period) for run, period in zip(runs, periods, strict=True)]
    able = [len(one.learned) >= MIN_TRAINING_SAMPLES and bool(one.scored) for one in rows]
    without = not any(able)
    chosen = [place for place, one in enumerate(rows) if one.scored and (able[place] or without)]
    if not chosen:
        return None
    pooled = _pool(target, rows, chosen, runs, repeats, periods, without, refit, on_progress)
    unscored: Counter[PairState] = Counter()
    for run in runs:
        for state in (PairState.LATE, PairState.CENSORED, PairState.OPEN, PairState.EVICTED):
            unscored[state] += run.counts.get((target, state), 0)
    return TargetEvaluation(
        target=target,
        learned=sum(len(rows[place].learned) for place in chosen),
        scored=len(pooled.samples),
        unscored=dict(unscored),
        groups=_groups(pooled),
        without_rivals=without,
    )


def _pool(
    target: Target,
    rows: Sequence[Rows],
    chosen: Sequence[int],
    runs: Sequence[Gathered],
    repeats: Sequence[Gathered | None],
    periods: Sequence[Period],
    without: bool,
    refit: bool,
    on_progress: Callable[[str], None] | None,
) -> Pooled:
    samples: list[Sample] = []
    predicted: dict[str, list[Predicted]] = defaultdict(list)
    apart: list[Floats] = []
    for place in chosen:
        scored, again = rows[place].scored, repeats[place]
        samples += scored
        predicted[OWN].append(own(scored))
        apart.append(
            np.full(len(scored), np.nan)
            if again is None
            else differences(scored, runs[place], again)
        )
        for rival in [] if without else rivals(target):
            if on_progress is not None:
                on_progress(f"{runs[place].name}: {target} by {rival.name}")
            predicted[rival.name].append(predict(rival, rows[place], refit))
    return Pooled(
        samples=samples,
        actual=outcomes(samples),
        predicted={
            name: Predicted(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
            for name, parts in predicted.items()
        },
        apart=np.concatenate(apart),
        recording=np.repeat(chosen, [len(rows[place].scored) for place in chosen]),
        periods=list(periods),
    )


def _groups(pooled: Pooled) -> list[Group]:
    everything = np.ones(len(pooled.samples), dtype=np.bool_)
    tiers = np.array([str(sample.tier) for sample in pooled.samples])
    shapes = np.array([sample.shape_cell for sample in pooled.samples])
    groups = [_group(GroupKind.ALL, "all", everything, pooled)]
    names = [name for name, _ in Counter(filter(None, tiers.tolist())).most_common()]
    groups += [_group(GroupKind.TIER, name, tiers == name, pooled) for name in names]
    commonest = Counter(shapes.tolist()).most_common(MAX_SHAPES)
    groups += [_group(GroupKind.SHAPE, name, shapes == name, pooled) for name, _ in commonest]
    return groups


def _group(kind: GroupKind, name: str, chosen: NDArray[np.bool_], pooled: Pooled) -> Group:
    actual = pooled.actual[chosen]
    predicted = {model: each.rows(chosen) for model, each in pooled.predicted.items()}
    apart = pooled.apart[chosen]
    matched = apart[~np.isnan(apart)]
    # Of shapes there are many, and all samples in one tier are told already.
    told = kind is GroupKind.SHAPE or (kind is GroupKind.TIER and bool(chosen.all()))
    judged = not told and len(actual) >= FEW
    kvready = predicted[OWN]

    def beside(upper: Floats, lower: Floats, most: float = math.inf) -> Between:
        return ratio(_tracks(pooled, chosen, upper, lower), most=most)

    return Group(
        kind=kind,
        name=name,
        samples=len(actual),
        median_actual_seconds=float(np.median(actual)),
        scores={model: score(actual, each) for model, each in predicted.items()},
        coverage=beside(covered(actual, kvready), np.ones(len(actual)), 1.0) if judged else None,
        against=[
            Against(
                rival=model,
                pinball_p50=beside(
                    pinball(actual, kvready.p50, 0.5), pinball(actual, each.p50, 0.5)
                ),
                pinball_p90=beside(
                    pinball(actual, kvready.p90, 0.9), pinball(actual, each.p90, 0.9)
                ),
                interval_score=beside(
                    interval_score(actual, kvready.low, kvready.high),
                    interval_score(actual, each.low, each.high),
                ),
            )
            for model, each in predicted.items()
            if judged and model != OWN
        ],
        repeats=len(matched),
        repeat_difference_seconds=float(np.median(matched)) if len(matched) else None,
    )


def _tracks(pooled: Pooled, chosen: NDArray[np.bool_], upper: Floats, lower: Floats) -> list[Track]:
    seconds = np.array([sample.made_seconds for sample in pooled.samples])[chosen]
    recording = pooled.recording[chosen]
    return [
        Track(
            seconds[recording == place],
            upper[recording == place],
            lower[recording == place],
            *pooled.periods[place],
        )
        for place in np.unique(recording).tolist()
    ]
