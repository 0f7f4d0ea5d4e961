"""Losses against oracles, and the scatter of their ratios against known truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mapie.metrics.regression import regression_coverage_score, regression_mwi_score
from sklearn.metrics import mean_pinball_loss

from kvready.advisor.evaluation.bootstrap import MIN_BLOCKS, Track, ratio
from kvready.advisor.evaluation.scores import (
    Floats,
    Predicted,
    covered,
    interval_score,
    ordered,
    pinball,
    score,
)
from kvready.advisor.intervals import Intervals

SECONDS = st.floats(0.0, 1e4)


def columns(count: int) -> st.SearchStrategy[tuple[Floats, ...]]:
    return st.integers(1, 40).flatmap(
        lambda rows: st.tuples(*[arrays(np.float64, rows, elements=SECONDS)] * count)
    )


@given(columns(2), st.sampled_from([0.05, 0.5, 0.9]))
def test_the_pinball_loss_is_that_of_scikit_learn(rows: tuple[Floats, ...], share: float) -> None:
    actual, predicted = rows
    expected = mean_pinball_loss(actual, predicted, alpha=share)
    assert pinball(actual, predicted, share).mean() == pytest.approx(expected)


@given(columns(5))
def test_coverage_and_interval_score_are_those_of_mapie(rows: tuple[Floats, ...]) -> None:
    actual = rows[0]
    predicted = ordered(*rows[1:])
    bounds = np.stack([predicted.low, predicted.high], axis=1)[:, :, None]
    assert covered(actual, predicted).mean() == pytest.approx(
        regression_coverage_score(actual, bounds)[0]
    )
    assert interval_score(actual, predicted.low, predicted.high).mean() == pytest.approx(
        regression_mwi_score(actual, bounds, 0.9)
    )


def test_an_interval_score_by_hand() -> None:
    actual = np.array([5.0, 1.0, 12.0])
    low, high = np.full(3, 2.0), np.full(3, 10.0)
    # Inside: its width. One below, two above: twenty times that on top.
    assert interval_score(actual, low, high).tolist() == pytest.approx([8.0, 28.0, 48.0])


@given(columns(4))
def test_quantiles_are_put_in_order(rows: tuple[Floats, ...]) -> None:
    found = ordered(*rows)
    assert (found.low <= found.p50).all()
    assert (found.p50 <= found.p90).all()
    assert (found.p90 <= found.high).all()


def test_true_quantiles_score_best() -> None:
    random = np.random.default_rng(1)
    actual = np.exp(random.normal(size=20_000))
    truth = np.exp(np.array([-1.645, 0.0, 1.282, 1.645]))

    def losses(factors: tuple[float, ...]) -> tuple[float, float, float]:
        low, p50, p90, high = (
            np.full(len(actual), value * factor)
            for value, factor in zip(truth, factors, strict=True)
        )
        found = score(actual, Predicted(p50, p90, low, high))
        return (
            found.pinball_p50_seconds,
            found.pinball_p90_seconds,
            found.interval_score_seconds,
        )

    best = losses((1.0, 1.0, 1.0, 1.0))
    for factor in (0.8, 1.25):
        assert best[0] < losses((1.0, factor, 1.0, 1.0))[0]
        assert best[1] < losses((1.0, 1.0, factor, 1.0))[1]
        assert best[2] < losses((factor, 1.0, 1.0, 1.0))[2]
        assert best[2] < losses((1.0, 1.0, 1.0, factor))[2]


def test_the_bound_that_a_tenth_exceeds_is_exceeded_by_a_tenth() -> None:
    random = np.random.default_rng(2)
    intervals = Intervals()
    above = []
    for number, noise in enumerate(random.normal(size=3_000)):
        interval = intervals.around("shape", 0.1)
        upper = interval.exceeded_seconds(0.10)
        assert interval.p50_seconds <= upper <= interval.high_seconds
        actual = 0.1 * math.exp(0.5 * noise)
        interval.settle(actual)
        if number >= 500:
            above.append(actual > upper)
    assert 0.08 < np.mean(above) < 0.12


# Scatter of ratios ---------------------------------------------------------------------------

RATE = 3.0  # samples a second
MEMORY_SECONDS = 15.0  # neighbours within a quarter of a minute are alike


def autoregressive(random: np.random.Generator, seconds: float) -> Track:
    """Two losses that rise and fall together and slowly; their ratio depends on the level."""
    count = int(seconds * RATE)
    kept = math.exp(-1.0 / (RATE * MEMORY_SECONDS))
    steps = random.normal(size=count) * math.sqrt(1.0 - kept**2)
    level = np.empty(count)
    level[0] = random.normal()
    for place in range(1, count):
        level[place] = kept * level[place - 1] + steps[place]
    lower = np.exp(level + 0.3 * random.normal(size=count))
    upper = lower * np.exp(0.4 * np.sin(level) + 0.5 * random.normal(size=count))
    return Track((np.arange(count) + 0.5) / RATE, upper, lower, 0.0, seconds)


def single_samples_hold(track: Track, truth: float, random: np.random.Generator) -> bool:
    """The interval of one who takes each sample for independent."""
    chosen = random.integers(0, len(track.seconds), size=(200, len(track.seconds)))
    ratios = track.upper[chosen].sum(axis=1) / track.lower[chosen].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return bool(low <= truth <= high)


@pytest.mark.parametrize(("minutes", "recordings"), [(5, 1), (5, 5), (25, 1), (25, 5)])
def test_intervals_of_ratios_hold_the_truth_in_slow_series(minutes: int, recordings: int) -> None:
    random = np.random.default_rng(3)
    long = autoregressive(random, 60_000.0)
    truth = float(long.upper.sum() / long.lower.sum())
    rounds, held, held_alone = 80, 0, 0
    for number in range(rounds):
        each = 60.0 * minutes / recordings
        tracks = [autoregressive(random, each) for _ in range(recordings)]
        found = ratio(tracks, seed=number, replicates=300)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high
        held += found.low <= truth <= found.high
        held_alone += single_samples_hold(tracks[0], truth, random)
    assert held / rounds >= 0.87, "nominal: 0.95"
    assert held_alone / rounds < 0.8, "else this series proves nothing"


def test_a_ratio_is_the_same_each_time_and_in_any_unit() -> None:
    track = autoregressive(np.random.default_rng(4), 600.0)
    once, again = ratio([track]), ratio([track])
    assert once == again
    thousandfold = track._replace(upper=track.upper * 1e3, lower=track.lower * 1e3)
    scaled = ratio([thousandfold])
    assert scaled.value == pytest.approx(once.value)
    assert scaled.low == pytest.approx(once.low)
    assert scaled.high == pytest.approx(once.high)


def test_too_few_blocks_give_no_interval_and_a_bound_is_kept() -> None:
    random = np.random.default_rng(5)
    short = autoregressive(random, 60.0 * MIN_BLOCKS - 1.0)
    assert (ratio([short]).low, ratio([short]).high) == (None, None)
    assert ratio([short]).blocks == MIN_BLOCKS - 1
    track = autoregressive(random, 600.0)
    share = track._replace(upper=(track.upper > 1e-3).astype(float), lower=np.ones(1_800))
    assert ratio([share], most=1.0).high == 1.0
    nothing = track._replace(upper=np.zeros(1_800))
    assert ratio([nothing]).low is None
