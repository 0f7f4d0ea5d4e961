"""What is learned from and what is scored: a recording's first third, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvready.advisor.evaluation.gathering import Gathered
from kvready.advisor.evaluation.rivals import Rival
from kvready.advisor.evaluation.samples import Sample
from kvready.advisor.evaluation.scores import Predicted
from kvready.advisor.ledger import Target

TRAINING_SHARE = 1.0 / 3.0
MIN_TRAINING_SAMPLES = 30
REFITS = 4  # of a rival that may learn on


class Period(NamedTuple):
    """When forecasts are scored, in event time; before is the time to learn from."""

    begin_seconds: float
    end_seconds: float


class Rows(NamedTuple):
    """One target's samples of one recording, in the order of their forecasts."""

    learned: list[Sample]  # forecast and ended in the first third
    scored: list[Sample]  # forecast after it; what lies across is in neither
    period: Period


def period_of(run: Gathered) -> Period:
    """By when forecasts were made, of all targets together."""
    made = [sample.made_seconds for sample in run.samples]
    first, last = min(made), max(made)
    return Period(first + TRAINING_SHARE * (last - first), last)


def rows_of(run: Gathered, target: Target, period: Period) -> Rows:
    """A target's share of a recording."""
    chosen = sorted(
        (sample for sample in run.samples if sample.target is target),
        key=lambda sample: sample.made_seconds,
    )
    return Rows(
        [sample for sample in chosen if sample.ended_seconds <= period.begin_seconds],
        [sample for sample in chosen if sample.made_seconds >= period.begin_seconds],
        period,
    )


def own(samples: Sequence[Sample]) -> Predicted:
    """What kvready predicted."""
    bounds = [sample.bounds for sample in samples]
    return Predicted(
        np.array([bound.p50_seconds for bound in bounds]),
        np.array([bound.p90_seconds for bound in bounds]),
        np.array([bound.low_seconds for bound in bounds]),
        np.array([bound.high_seconds for bound in bounds]),
    )


def predict(rival: Rival, rows: Rows, refit: bool) -> Predicted:
    """A rival's predictions of what is scored; with `refit` it learns on as time passes."""
    if not refit:
        rival.fit(rows.learned)
        return rival.predict(rows.scored)
    begin, end = rows.period
    edges = np.linspace(begin, end, REFITS + 1)
    everything = rows.learned + rows.scored
    parts: list[Predicted] = []
    for number, edge in enumerate(edges[:-1]):
        known = [sample for sample in everything if sample.ended_seconds <= edge]
        last = number == REFITS - 1
        asked = [
            sample
            for sample in rows.scored
            if edge <= sample.made_seconds and (last or sample.made_seconds < edges[number + 1])
        ]
        rival.fit(known)
        if asked:
            parts.append(rival.predict(asked))
    return Predicted(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
