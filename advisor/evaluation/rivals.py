"""Rivals: what else could predict the same, from the same samples.

All learn from a recording's first third alone, and all give the same quantiles. Losses count in
seconds; trees and residuals work on logarithms, since durations differ by powers of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvready.advisor.evaluation.samples import ROUTER_FEATURES, TIER_FEATURES, Sample
from kvready.advisor.evaluation.scores import Floats, Predicted, ordered, pinball
from kvready.advisor.ledger import Target
from kvready.advisor.load_estimators import AlphaBetaRegressor

QUANTILES = (0.05, 0.50, 0.90, 0.95)
LOW, P50, P90, HIGH = range(4)
FLOOR_SECONDS = 1e-4
MAX_TRAINING_SAMPLES = 2_000  # more are thinned evenly
FOLDS = 3  # the first is only learned from
MAX_TREES = 80
LEARNING_RATE = 0.1
TREE_STEP = 10
UNKNOWN = -1.0  # trees cannot bin a column that is nowhere known


class Rival(Protocol):
    """Learns from samples with outcomes; predicts others."""

    name: str

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn; samples are in the order of time."""

    def predict(self, samples: Sequence[Sample]) -> Predicted:
        """Quantiles for each."""


class Constant:
    """The quantiles of what was seen, whatever is asked."""

    name = "constant"

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn."""
        self._quantiles = np.quantile(outcomes(samples), QUANTILES)

    def predict(self, samples: Sequence[Sample]) -> Predicted:
        """The same for each."""
        low, p50, p90, high = (np.full(len(samples), value) for value in self._quantiles)
        return ordered(p50, p90, low, high)


# What takes time: of a copy its bytes and fragments, of a request what is to be computed for it and
# before it, of a batch its tokens and members.
WORK = {
    Target.LOAD: ("load_bytes", "load_fragments"),
    Target.FETCH: ("load_bytes", "load_fragments"),
    Target.BATCH_COMPUTE: ("new_tokens", "members"),
}
REQUEST_WORK = ("new_tokens", "queued_tokens")


class AlphaBeta:
    """A cost that grows with the work; its spread is that of the ratios seen."""

    name = "alpha-beta"

    def __init__(self, target: Target) -> None:
        self._features = WORK.get(target, REQUEST_WORK)

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn."""
        seconds = np.maximum(outcomes(samples), FLOOR_SECONDS)
        rows = features(samples, self._features)
        self._cost = AlphaBetaRegressor().fit(rows, seconds)
        predicted = np.maximum(self._cost.predict(rows), FLOOR_SECONDS)
        self._ratios = np.quantile(seconds / predicted, QUANTILES)

    def predict(self, samples: Sequence[Sample]) -> Predicted:
        """Each by its work."""
        cost = np.maximum(self._cost.predict(features(samples, self._features)), FLOOR_SECONDS)
        low, p50, p90, high = (cost * ratio for ratio in self._ratios)
        return ordered(p50, p90, low, high)


class Shape(NamedTuple):
    """How trees may grow."""

    leaves: int
    smallest_leaf: int


SHAPES = (Shape(4, 10), Shape(15, 5), Shape(15, 20))


class Boosted:
    """Gradient boosting of quantiles, tuned by later parts of what it learns from.

    Its interval is widened or narrowed by how far those later parts lay outside (conformal).
    """

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name
        self._names = names
        self._tuned: dict[float, tuple[Shape, int]] = {}

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn; the first time also how trees should grow."""
        thinned = samples[:: math.ceil(len(samples) / MAX_TRAINING_SAMPLES)]
        rows, logs = features(thinned, self._names), _logs(outcomes(thinned))
        with _one_thread():
            if not self._tuned:
                self._tune(rows, logs)
            self._trees = [
                _boosted(*self._tuned[share], share).fit(rows, logs) for share in QUANTILES
            ]

    def predict(self, samples: Sequence[Sample]) -> Predicted:
        """Each by its features."""
        rows = features(samples, self._names)
        with _one_thread():
            low, p50, p90, high = (trees.predict(rows) for trees in self._trees)
        return ordered(*map(_seconds, (p50, p90, low - self._down, high + self._up)))

    def _tune(self, rows: Floats, logs: Floats) -> None:
        """Choose shapes and numbers of trees by later parts; bounds take the shape next to them."""
        later = logs[_later(len(logs))]
        self._choose(rows, logs, QUANTILES[P50], SHAPES)
        self._choose(rows, logs, QUANTILES[P90], SHAPES)
        low = self._choose(rows, logs, QUANTILES[LOW], [self._tuned[QUANTILES[P50]][0]])
        high = self._choose(rows, logs, QUANTILES[HIGH], [self._tuned[QUANTILES[P90]][0]])
        self._down = _conformal(low - later, QUANTILES[HIGH])
        self._up = _conformal(later - high, QUANTILES[HIGH])

    def _choose(self, rows: Floats, logs: Floats, share: float, shapes: Sequence[Shape]) -> Floats:
        """The shape and number of trees of one quantile; returns its predictions of later parts."""
        later = _seconds(logs[_later(len(logs))])
        best_loss, best = math.inf, np.empty(0)
        for shape in shapes:
            staged = [
                _stages(
                    _boosted(shape, MAX_TREES, share).fit(rows[:begin], logs[:begin]), rows[part]
                )
                for begin, part in _folds(len(logs))
            ]
            for stage, predicted in enumerate(np.concatenate(staged, axis=1)):
                loss = pinball(later, _seconds(predicted), share).mean()
                if loss < best_loss:
                    best_loss, best = float(loss), predicted
                    self._tuned[share] = shape, (stage + 1) * TREE_STEP
        return best


def rivals(target: Target) -> list[Rival]:
    """All of a target, the simplest first."""
    return [
        Constant(),
        AlphaBeta(target),
        Boosted("llm-d features", ROUTER_FEATURES),
        Boosted("+ tier, bytes", ROUTER_FEATURES + TIER_FEATURES),
    ]


def outcomes(samples: Sequence[Sample]) -> Floats:
    """What each took, in seconds."""
    return np.array([sample.actual_seconds for sample in samples])


def features(samples: Sequence[Sample], names: Sequence[str]) -> Floats:
    """A row per sample of what was known when it was forecast; what was unknown is below all."""
    rows = np.array([sample.known.row(names) for sample in samples], dtype=np.float64)
    return np.nan_to_num(rows, nan=UNKNOWN)


def _logs(seconds: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(seconds, 0.0) + FLOOR_SECONDS)
    return logs


def _seconds(logs: Floats) -> Floats:
    seconds: Floats = np.exp(logs) - FLOOR_SECONDS
    return seconds


def _folds(count: int) -> Iterator[tuple[int, slice]]:
    """Where each later part begins and what it is: all before it is learned from."""
    edges = [round(count * fold / FOLDS) for fold in range(1, FOLDS + 1)]
    yield from ((begin, slice(begin, end)) for begin, end in pairwise(edges))


def _later(count: int) -> slice:
    return slice(round(count / FOLDS), count)


def _boosted(shape: Shape, trees: int, share: float) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss="quantile",
        quantile=share,
        learning_rate=LEARNING_RATE,
        max_iter=trees,
        max_leaf_nodes=shape.leaves,
        min_samples_leaf=shape.smallest_leaf,
        early_stopping=False,
        random_state=0,
    )


def _stages(fitted: Any, rows: Floats) -> Floats:
    """Predictions with ever more trees, a row for each TREE_STEP of them."""
    staged = list(fitted.staged_predict(rows))
    return np.stack(staged[TREE_STEP - 1 :: TREE_STEP])


def _conformal(beyond: Floats, share: float) -> float:
    """By how much a bound must move for this share to lie inside it."""
    rank = min(math.ceil(share * (len(beyond) + 1)), len(beyond))
    return float(np.sort(beyond)[rank - 1])


def _one_thread() -> Any:
    """Small trees on many threads wait for one another: tens of times slower on a busy machine."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)
