"""The online models find the law behind noisy observations, and say how far to trust them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from kvready.advisor.compute import ComputeModel, batch_features
from kvready.advisor.fitting import OnlineFit
from kvready.collectors.records import BatchMember


def test_the_fit_agrees_with_scikit_learn_on_the_same_weighted_problem() -> None:
    rng = random.Random(7)
    fit = OnlineFit((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), prior_observations=1e-9, half_life=1e12)
    rows, values = [], []
    for _ in range(300):
        row = (1.0, rng.uniform(0, 100), rng.uniform(0, 5))
        value = (0.5 + 0.03 * row[1] + 0.0 * row[2]) * math.exp(rng.gauss(0, 0.05))
        fit.learn(row, value)
        rows.append(row)
        values.append(value)
    fit.solve()
    oracle = LinearRegression(positive=True, fit_intercept=False)
    oracle.fit(rows, values, sample_weight=[1.0 / v**2 for v in values])
    assert fit.coefficients == pytest.approx(list(oracle.coef_), rel=1e-3, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    fixed=st.floats(1e-4, 1e-2),
    per_token=st.floats(1e-6, 1e-3),
    per_pair=st.floats(1e-10, 1e-7),
    seed=st.integers(0, 2**32),
)
def test_the_compute_model_learns_any_engine_of_its_form(
    fixed: float, per_token: float, per_pair: float, seed: int
) -> None:
    rng = random.Random(seed)

    def members() -> list[BatchMember]:
        prefill = BatchMember("p", rng.randint(16, 512), rng.randint(0, 6000), True)
        decodes = [BatchMember("d", 1, rng.randint(64, 4000), False)] * rng.randint(0, 8)
        return [prefill, *decodes]

    def cost(batch: list[BatchMember]) -> float:
        one, tokens, pairs, decodes, _context = batch_features(batch)
        return fixed * one + per_token * tokens + per_pair * pairs + 1e-4 * decodes

    model = ComputeModel()
    for _ in range(600):
        batch = members()
        model.learn(batch, cost(batch))
    for _ in range(20):
        batch = members()
        assert model.batch_seconds(batch) == pytest.approx(cost(batch), rel=0.15)


def test_decoding_for_long_does_not_wear_away_what_was_learned_of_prefill() -> None:
    model = ComputeModel()
    prefill = (BatchMember("p", 320, 0, True),)
    decode = (BatchMember("d", 1, 700, False),)
    for _ in range(50):
        model.learn(prefill, 0.345)
        model.learn(decode, 0.030)
    before = model.batch_seconds(prefill)
    for _ in range(8_000):
        model.learn(decode, 0.030)
    assert model.batch_seconds(prefill) == before == pytest.approx(0.345, rel=0.05)


def test_a_prompt_of_any_length_is_costed_in_bounded_work() -> None:
    model = ComputeModel()
    assert model.recompute_seconds(10**9, 0, 16) > model.recompute_seconds(10**6, 0, 16)


def test_recompute_costs_what_its_chunks_cost() -> None:
    model = ComputeModel()
    chunks = [BatchMember("", 512, 1000, True), BatchMember("", 188, 1512, True)]
    expected = sum(model.batch_seconds((chunk,)) for chunk in chunks)
    assert model.recompute_seconds(700, 1000, 512) == pytest.approx(expected)
