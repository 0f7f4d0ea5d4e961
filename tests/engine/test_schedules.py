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


def test_observed_schedules_equal_stock_ones_and_so_do_outputs(generate: Any) -> None:
    batches = crowded_batches()
    stock = generate(batches, output_tokens=40, hbm_blocks=64)
    assert stock["scheduler"] == "Scheduler"
    # Without pressure the comparison would prove little.
    assert stock["preempted"] > 0
    assert len(stock["steps"]) > 100

    observed = generate(
        batches, output_tokens=40, hbm_blocks=64, scheduler_class=OBSERVED, observed=True
    )
    assert observed["observed"]
    assert observed["failures"] == 0
    assert observed["steps"] == stock["steps"]
    assert observed["outputs"] == stock["outputs"]


def test_an_observer_that_is_off_opens_nothing_and_schedules_as_stock(
    generate: Any, run_folder: Any
) -> None:
    batches = crowded_batches()[:1]
    stock = generate(batches, output_tokens=40, hbm_blocks=64)
    off = generate(batches, output_tokens=40, hbm_blocks=64, scheduler_class=OBSERVED)
    assert not off["observed"]
    assert not list(run_folder.glob("*.sock"))
    assert off["steps"] == stock["steps"]
