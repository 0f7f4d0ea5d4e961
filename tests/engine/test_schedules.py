"""The observer changes nothing: the same requests are batched the same way, step by step."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

OBSERVED = "kvready.collectors.engine.vllm_observer.ObservedScheduler"
VOCABULARY = 2048


def crowded_batches() -> list[list[list[int]]]:
    """More requests, and longer ones, than the cache holds: shared prefixes and preemptions."""
    chance = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(count)]

    documents = [tokens(320) for _ in range(5)]
    return [
        [chance.choice(documents) + tokens(chance.randrange(8, 90)) for _ in range(30)]
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def stock(generate: Any) -> dict[str, Any]:
    """What vLLM does by itself, under enough pressure for the comparison to prove something."""
    account: dict[str, Any] = generate(crowded_batches(), output_tokens=40, hbm_blocks=64)
    assert account["scheduler"] == "Scheduler"
    assert account["preempted"] > 0
    assert len(account["steps"]) > 100
    return account


def test_observed_schedules_equal_stock_ones_and_so_do_outputs(
    generate: Any, stock: dict[str, Any]
) -> None:
    observed = generate(
        crowded_batches(), output_tokens=40, hbm_blocks=64, scheduler_class=OBSERVED, observed=True
    )
    assert observed["observed"]
    assert observed["failures"] == 0
    assert observed["steps"] == stock["steps"]
    assert observed["outputs"] == stock["outputs"]


def test_an_observer_that_is_off_opens_nothing_and_schedules_as_stock(
    generate: Any, stock: dict[str, Any]
) -> None:
    off = generate(crowded_batches(), output_tokens=40, hbm_blocks=64, scheduler_class=OBSERVED)
    assert not off["observed"]
    assert not off["sockets"]
    assert off["steps"] == stock["steps"]
