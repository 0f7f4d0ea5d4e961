"""The estimators behind load curves: scikit-learn's own rules, and laws that they must find."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.utils.estimator_checks import check_estimator

from kvready.advisor.link_curves import LEANING
from kvready.advisor.load_curve import LoadCurve
from kvready.advisor.load_estimators import AlphaBetaRegressor, KnotRegressor
from kvready.kernels.errors import ProfileError

Floats = NDArray[np.float64]

CROOKED = LoadCurve(
    1e-5, 1e-7, 20e9, 9.0, [0.3, 0.2, 0.1, 0.0, -0.1, 0.0, 0.1, 0.2, 0.3, 0.2, 0.1, 0.0]
)
HELD_OUT = (11.5, 14.5, 17.5)  # octaves of fragment size that no fit sees
REPEATS = 4


def timed(truth: LoadCurve, shapes: int, seed: int, scatter: float = 0.03) -> tuple[Floats, Floats]:
    """Copies of random sizes, each repeated; their seconds scattered."""
    rng = random.Random(seed)
    rows, seconds = [], []
    while len(rows) < shapes * REPEATS:
        octave = rng.uniform(9.0, 20.0)
        if any(abs(octave - held) < 0.25 for held in HELD_OUT):
            continue
        fragments = round(2 ** rng.uniform(3.0, 10.0))
        payload = int(2**octave) * fragments
        for _ in range(REPEATS):
            rows.append((payload, fragments))
            seconds.append(truth.seconds(payload, fragments) * math.exp(rng.gauss(0, scatter)))
    return np.array(rows, dtype=float), np.array(seconds)


def unseen_error(curve: LoadCurve, truth: LoadCurve) -> float:
    """Median relative error on the sizes held out."""
    sizes = [(int(2**octave) * n, n) for octave in HELD_OUT for n in (10, 50, 200, 900)]
    errors = [abs(curve.seconds(*size) / truth.seconds(*size) - 1.0) for size in sizes]
    return float(np.median(errors))


@pytest.mark.parametrize(
    "estimator", [AlphaBetaRegressor(), KnotRegressor()], ids=["cost", "knots"]
)
def test_it_keeps_every_rule_of_scikit_learn(estimator: object) -> None:
    # What is skipped there needs pandas, or an array library that is switched on.
    check_estimator(estimator, on_skip=None)


@pytest.mark.parametrize("seed", range(3))
def test_sizes_between_those_measured_are_foretold_better_than_repeats_scatter(seed: int) -> None:
    rows, seconds = timed(CROOKED, 128, seed)
    knots = unseen_error(KnotRegressor().fit(rows, seconds).to_curve(), CROOKED)
    plain = unseen_error(AlphaBetaRegressor().fit(rows, seconds).to_curve(), CROOKED)
    assert knots < 0.03  # what a repeat scatters by
    assert knots < plain / 2


def test_a_law_without_corrections_gets_none() -> None:
    truth = LoadCurve(1e-4, 3e-7, 12e9)
    fitted = KnotRegressor().fit(*timed(truth, 128, 5)).to_curve()
    assert max(map(abs, fitted.knots)) < 0.03
    assert unseen_error(fitted, truth) < 0.02
    assert fitted.bytes_per_second == pytest.approx(truth.bytes_per_second, rel=0.05)


def test_a_tenth_of_wild_outliers_changes_little() -> None:
    rows, seconds = timed(CROOKED, 128, 7)
    rng = random.Random(7)
    wild = np.array([20.0 if rng.random() < 0.1 else 1.0 for _ in seconds])
    fitted = KnotRegressor().fit(rows, seconds * wild).to_curve()
    assert unseen_error(fitted, CROOKED) < 0.06


@pytest.mark.parametrize("seed", range(3))
def test_copies_that_lost_their_core_for_a_while_do_not_become_corrections(seed: int) -> None:
    # A busy machine: copies are slower by any factor, few by much, and none is quicker.
    truth = LoadCurve(1e-5, 1e-6, 12e9)
    rows, seconds = timed(truth, 192, seed)
    rng = random.Random(seed)
    slower = np.array([math.exp(rng.expovariate(1 / 0.6)) for _ in seconds])
    model = KnotRegressor().fit(rows, seconds * slower)
    assert np.abs(model.knots_).max() < 0.3
    usual = float(np.median(slower))
    fragment_seconds = model.to_curve().fragment_seconds
    assert fragment_seconds == pytest.approx(usual * truth.fragment_seconds, rel=0.15)


@pytest.mark.parametrize("shapes", [1, 2, 4])
def test_few_samples_lean_on_the_priors_proportions(shapes: int) -> None:
    truth = LoadCurve(1e-4, 1e-6, 1e9)  # ten times slower than the prior, in the same proportions
    prior = (1e-5, 1e-10, 1e-7)
    rows, seconds = timed(truth, shapes, 9, scatter=0.01)
    for model in (AlphaBetaRegressor(prior), KnotRegressor(prior)):
        assert unseen_error(model.fit(rows, seconds).to_curve(), truth) < 0.05


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shapes=st.integers(1, 24),
    scatter=st.floats(0.0, 1.0),
    fragment=st.integers(1, 1 << 22),
    counts=st.tuples(st.integers(1, 1 << 20), st.integers(1, 1 << 20)),
)
def test_whatever_was_measured_costs_are_positive_and_grow_with_bytes(
    seed: int, shapes: int, scatter: float, fragment: int, counts: tuple[int, int]
) -> None:
    fewer, more = sorted(counts)
    model = KnotRegressor(LEANING).fit(*timed(CROOKED, shapes, seed, scatter))
    sizes = [(fragment * fewer, fewer), (fragment * more, more)]
    less, larger = model.predict(sizes)
    assert 0.0 < less <= larger * (1 + 1e-9)
    curve = model.to_curve()
    for size, predicted in zip(sizes, (less, larger), strict=True):
        assert curve.seconds(*size) == pytest.approx(predicted, rel=1e-6)


def test_a_curve_needs_bytes_and_fragments() -> None:
    model = AlphaBetaRegressor().fit([[1.0], [2.0], [3.0]], [1.0, 2.0, 3.0])
    with pytest.raises(ProfileError, match="bytes and fragments"):
        model.to_curve()


def test_a_prior_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="one positive cost per column"):
        AlphaBetaRegressor((1e-5, 1e-10)).fit([[1.0, 1.0], [2.0, 1.0]], [1.0, 2.0])
