"""The load that the example engine is recorded under: seeded, of a known size, never the same."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "vllm"
SEEDS = (1, 2, 3)
HBM_TOKENS = 256 * 32  # of the example engine


@pytest.fixture(scope="module")
def load() -> ModuleType:
    """The example, imported as a user in its folder would."""
    sys.path.append(str(EXAMPLES))
    try:
        import load as example  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLES))
    return example


def schedule(load: ModuleType, name: str, seed: int) -> tuple[list[Any], list[Any]]:
    shape = replace(load.SHAPES[name], seed=seed)
    return load.questions(shape), load.sessions(shape)


@pytest.mark.parametrize("name", ["full", "slow", "small", "long"])
def test_a_seed_names_one_schedule_and_another_seed_another(load: ModuleType, name: str) -> None:
    assert schedule(load, name, 1) == schedule(load, name, 1)
    assert schedule(load, name, 1) != schedule(load, name, 2)


@pytest.mark.parametrize("name", ["full", "slow", "small", "long"])
def test_a_shape_sends_as_many_requests_as_it_says(load: ModuleType, name: str) -> None:
    questions, sessions = schedule(load, name, 1)

    sent = len(questions) + sum(len(session.turns) for session in sessions)

    assert sent == load.SHAPES[name].requests
    names = [question.name for question in questions] + [session.name for session in sessions]
    assert len(set(names)) == len(names)


def test_the_long_shape_is_long_enough_for_an_evaluation(load: ModuleType) -> None:
    assert load.SHAPES["long"].requests >= 1_500


@pytest.mark.parametrize("seed", SEEDS)
def test_the_long_shape_has_bursts_and_quiet_times(load: ModuleType, seed: int) -> None:
    questions, _ = schedule(load, "long", seed)
    each_ten_seconds = Counter(int(question.at_seconds // 10) for question in questions)
    spans = int(questions[-1].at_seconds // 10)

    counts = sorted(each_ten_seconds[span] for span in range(spans))

    mean = sum(counts) / len(counts)
    assert counts[0] < mean / 4  # quiet
    assert counts[-1] > 2 * mean  # a burst


@pytest.mark.parametrize("seed", SEEDS)
def test_documents_of_the_long_shape_are_shared_outgrow_hbm_and_are_renewed(
    load: ModuleType, seed: int
) -> None:
    questions, _ = schedule(load, "long", seed)
    asked = Counter(question.prompt[:100] for question in questions)
    shape = load.SHAPES["long"]
    thirds = len(questions) // 3

    assert shape.documents * shape.document_tokens > HBM_TOKENS
    assert len(asked) > shape.documents
    assert max(asked.values()) > 10
    first, last = questions[:thirds], questions[-thirds:]
    new = {one.prompt[:100] for one in last} - {one.prompt[:100] for one in first}
    assert new  # misses go on to the end


@pytest.mark.parametrize("seed", SEEDS)
def test_the_long_shape_lets_a_client_hang_up_now_and_then(load: ModuleType, seed: int) -> None:
    questions, _ = schedule(load, "long", seed)

    gone = sum(question.abort_after_seconds is not None for question in questions)

    assert 0 < gone < len(questions) // 10
