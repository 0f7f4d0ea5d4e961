"""The compute model under batches that went wrong: stalls, faulty clocks, a lasting change."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kvready.advisor.compute import ComputeModel, batch_features
from kvready.advisor.fitting import OnlineFit
from kvready.collectors.records import BatchMember

TRUE = (0.01, 4e-4, 2e-8, 1e-3, 1e-7)
PROBES = [
    [BatchMember("a", 512, 0, True)],
    [BatchMember("a", 64, 8_000, True), BatchMember("b", 1, 500, False)],
]


def true_seconds(members: list[BatchMember]) -> float:
    return sum(c * f for c, f in zip(TRUE, batch_features(members), strict=True))


def batches(count: int, seed: int = 1) -> list[list[BatchMember]]:
    random_ = random.Random(seed)
    return [
        [
            BatchMember("a", random_.randint(16, 512), random_.randint(0, 8_000), True),
            *[BatchMember("d", 1, random_.randint(1, 2_000), False)] * random_.randint(0, 8),
        ]
        for _ in range(count)
    ]


def learned(count: int, spoil: Callable[[int, float], float], seed: int = 1) -> ComputeModel:
    random_ = random.Random(seed)
    model = ComputeModel()
    for number, members in enumerate(batches(count, seed)):
        seconds = true_seconds(members) * random_.lognormvariate(0.0, 0.03)
        model.learn(members, spoil(number, seconds))
    return model


def worst_error(model: ComputeModel) -> float:
    return max(abs(model.batch_seconds(one) / true_seconds(one) - 1.0) for one in PROBES)


def unspoilt(number: int, seconds: float) -> float:
    return seconds


@pytest.mark.parametrize("spoilt", [10.0, 100.0, 1e-6, 1e-3])
@pytest.mark.parametrize("at", [0, 3, 20, 99])
def test_one_batch_that_went_wrong_spoils_nothing(spoilt: float, at: int) -> None:
    model = learned(100, lambda number, seconds: spoilt if number == at else seconds)
    assert worst_error(model) < worst_error(learned(100, unspoilt)) + 0.03


def test_one_stall_in_twenty_batches_spoils_little() -> None:
    model = learned(400, lambda number, seconds: 5 * seconds if number % 20 == 7 else seconds)
    assert worst_error(model) < 0.08


def test_plain_least_squares_would_be_spoilt() -> None:
    """By a clock's fault that makes a batch take no time: relative errors weigh it most."""
    plain, robust = (OnlineFit((0.01, 1e-3), (1.0, 100.0), robust=one) for one in (False, True))
    for number in range(100):
        tokens = 50.0 + number
        seconds = 1e-6 if number == 60 else 0.02 + 5e-4 * tokens
        for fit in (plain, robust):
            fit.learn((1.0, tokens), seconds)
            fit.solve()
    assert robust.predict((1.0, 100.0)) == pytest.approx(0.07, rel=0.05)
    assert plain.predict((1.0, 100.0)) < 0.035


def test_a_lasting_change_is_followed() -> None:
    model = learned(2_000, lambda number, seconds: seconds if number < 300 else 2.0 * seconds)
    for one in PROBES:
        assert model.batch_seconds(one) == pytest.approx(2.0 * true_seconds(one), rel=0.15)
