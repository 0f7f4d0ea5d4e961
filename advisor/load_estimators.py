"""Fits load curves to measured copies: scikit-learn estimators, used at calibration and start only.

Both take one row per copy, `[payload_bytes, fragments]`, and its seconds; any further column is one
more quantity that costs. Errors are relative and count by size, not by square, since a shared
machine's outliers are large. What they learn leaves them as a `LoadCurve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kvready.advisor.load_curve import LARGEST_KNOT, MAX_KNOTS, LoadCurve
from kvready.kernels.errors import ProfileError

Floats = NDArray[np.float64]

SMALLEST_ERROR = 1e-4  # relative; below it all errors weigh alike
LARGEST_WEIGHT = 5.0  # of a sample, times that of the usual one
SETTLED = 1e-9
FASTEST_BYTES_PER_SECOND = 1e15  # stands for bytes that cost nothing
SMALLEST_SECONDS = 1e-9


class _CostRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Quantities that cost, and the seconds that they took: neither is ever below zero."""

    def _copies(self, X: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
        rows, seconds = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        seconds = np.asarray(seconds, dtype=np.float64)
        if (seconds <= 0.0).any():
            raise ValueError("Negative values in data or zero seconds: a copy takes some time")
        return _checked(rows), seconds

    def _rows(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return _checked(validate_data(self, X, reset=False, dtype=np.float64))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.target_tags.positive_only = True
        return tags


class AlphaBetaRegressor(_CostRegressor):
    """`overhead + bytes * per_byte + fragments * per_fragment`, no cost below zero.

    `prior` are (overhead, per_byte, per_fragment) to lean on while samples are few: only their
    proportions count, with the weight of `prior_observations` typical samples.
    """

    def __init__(
        self,
        prior: Sequence[float] | None = None,
        prior_observations: float = 0.5,
        reweightings: int = 12,
    ) -> None:
        self.prior = prior
        self.prior_observations = prior_observations
        self.reweightings = reweightings

    def fit(self, X: ArrayLike, y: ArrayLike) -> AlphaBetaRegressor:
        """Fit to copies and their seconds."""
        rows, seconds = self._copies(X, y)
        self.coef_ = self._solve(rows, seconds)
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Seconds of each copy."""
        seconds: Floats = _with_one(self._rows(X)) @ self.coef_
        return seconds

    def to_curve(self) -> LoadCurve:
        """The same, as plain floats."""
        check_is_fitted(self)
        return _curve(self.coef_)

    def _solve(self, rows: Floats, seconds: Floats) -> Floats:
        features = _with_one(rows)
        leaning, leant = self._prior_rows(features, seconds)
        costs = np.zeros(features.shape[1])
        scale, weight = np.maximum(seconds, SMALLEST_SECONDS), np.ones(len(seconds))
        for _ in range(max(1, self.reweightings)):
            root = np.sqrt(weight) / scale
            design = np.vstack([features * root[:, None], leaning])
            unit = np.abs(design).max(axis=0)
            unit[unit == 0.0] = 1.0  # a column of zeros costs nothing
            solved, _ = nnls(design / unit, np.concatenate([seconds * root, leant]))
            before, costs = costs, solved / unit
            if np.abs(costs - before).max() <= SETTLED * np.abs(costs).max():
                break
            # Relative to what is predicted: relative to what was seen, slow copies would count
            # less than quick ones, and all costs come out too low.
            predicted = features @ costs
            scale = np.maximum(predicted, SMALLEST_SECONDS)
            weight = _by_absolute_error((seconds - predicted) / scale)
        return costs

    def _prior_rows(self, features: Floats, seconds: Floats) -> tuple[Floats, Floats]:
        if self.prior is None:
            return np.empty((0, features.shape[1])), np.empty(0)
        prior = np.asarray(self.prior, dtype=np.float64)
        if len(prior) != features.shape[1] or not (prior > 0.0).all():
            raise ValueError(
                f"prior={list(self.prior)}: give one positive cost per column and the overhead's"
            )
        typical = np.median(features, axis=0)
        pace = np.median(np.maximum(seconds, SMALLEST_SECONDS) / (features @ prior))
        share = np.sqrt(self.prior_observations) * typical / (typical @ prior)
        return np.diag(share / pace), share * prior


class KnotRegressor(_CostRegressor):
    """An alpha-beta cost times a smooth correction, one knot per octave of fragment size.

    `smoothing` draws neighbouring knots together and `shrinking` all of them to no correction, each
    in samples' worth of evidence: few samples leave an alpha-beta cost.
    """

    def __init__(
        self,
        prior: Sequence[float] | None = None,
        prior_observations: float = 0.5,
        smoothing: float = 1.0,
        shrinking: float = 0.3,
        reweightings: int = 12,
    ) -> None:
        self.prior = prior
        self.prior_observations = prior_observations
        self.smoothing = smoothing
        self.shrinking = shrinking
        self.reweightings = reweightings

    def fit(self, X: ArrayLike, y: ArrayLike) -> KnotRegressor:
        """Fit to copies and their seconds: the cost, then what it leaves."""
        rows, seconds = self._copies(X, y)
        octaves = _octaves(rows)
        self.first_octave_ = float(np.floor(octaves.min()))
        wanted = int(np.ceil(octaves.max()) - self.first_octave_) + 1
        hats = self._hats(octaves, min(wanted, MAX_KNOTS))
        base = AlphaBetaRegressor(self.prior, self.prior_observations, self.reweightings)
        self.base_ = base.fit(rows, seconds)
        # Once, not in turn with the cost: corrections can stand for a cost per fragment as well,
        # and would take its place.
        left = np.log(seconds / np.maximum(self.base_.predict(rows), SMALLEST_SECONDS))
        self.knots_ = self._corrections(hats, left)
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Seconds of each copy."""
        rows = self._rows(X)
        correction = self._hats(_octaves(rows), len(self.knots_)) @ self.knots_
        seconds: Floats = self.base_.predict(rows) * np.exp(correction)
        return seconds

    def to_curve(self) -> LoadCurve:
        """The same, as plain floats."""
        check_is_fitted(self)
        return _curve(self.base_.coef_, self.first_octave_, self.knots_.tolist())

    def _hats(self, octaves: Floats, knots: int) -> Floats:
        """Each row's share of each knot: linear between neighbours, clamped outside."""
        place = np.clip(octaves - self.first_octave_, 0.0, knots - 1)
        return np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(knots)[None, :]))

    def _corrections(self, hats: Floats, left: Floats) -> Floats:
        knots = hats.shape[1]
        steps = np.diff(np.eye(knots), axis=0)
        penalty = self.smoothing * steps.T @ steps + self.shrinking * np.eye(knots)
        weight: Floats = np.ones(len(left))
        solved: Floats = np.zeros(knots)
        for _ in range(max(1, self.reweightings)):
            weighted = hats * weight[:, None]
            normal, moment = hats.T @ weighted + penalty, weighted.T @ left
            solved = np.asarray(np.linalg.solve(normal, moment), dtype=np.float64)
            weight = _by_absolute_error(left - hats @ solved)
        return np.clip(solved, -LARGEST_KNOT, LARGEST_KNOT)


def _with_one(rows: Floats) -> Floats:
    return np.hstack([np.ones((len(rows), 1)), rows])


def _checked(rows: Floats) -> Floats:
    if (rows < 0.0).any():
        raise ValueError("Negative values in data: a copy has bytes and fragments, not a lack")
    return rows


def _octaves(rows: Floats) -> Floats:
    """log2 of fragment bytes; without a column of fragments, a copy is one. At least a byte."""
    fragments = rows[:, 1] if rows.shape[1] > 1 else np.ones(len(rows))
    octaves: Floats = np.log2(np.maximum(rows[:, 0], 1.0) / np.maximum(fragments, 1.0))
    return octaves


def _by_absolute_error(errors: Floats) -> Floats:
    """Weights that turn squares into absolute values; one at the usual error.

    No sample has more than LARGEST_WEIGHT: a few that are met exactly must not outweigh all others.
    """
    sizes = np.abs(errors)
    usual = max(float(np.median(sizes)), SMALLEST_ERROR)
    weight: Floats = usual / np.maximum(sizes, usual / LARGEST_WEIGHT)
    return weight


def _curve(costs: Floats, first_octave: float = 0.0, knots: Sequence[float] = ()) -> LoadCurve:
    if len(costs) != 3:
        raise ProfileError(
            f"a load curve is fitted to bytes and fragments, not to {len(costs) - 1} columns"
        )
    overhead, per_byte, per_fragment = (float(cost) for cost in costs)
    bytes_per_second = 1.0 / max(per_byte, 1.0 / FASTEST_BYTES_PER_SECOND)
    return LoadCurve(overhead, per_fragment, bytes_per_second, first_octave, knots)
