"""Workloads drawn in published shapes."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from random import Random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.whatif.distances import ideal_hit_ratio, reuse_tokens
from kvready.advisor.whatif.lengths import geometric, length_models, with_total
from kvready.advisor.whatif.shapes import SHAPES
from kvready.advisor.whatif.synthetic import (
    Initial,
    Order,
    Questions,
    ShapeName,
    documents,
)
from kvready.advisor.whatif.workload import SimRequest, Workload
from kvready.collectors.errors import WorkloadError

RATE = 8.0
SOME = 6_000  # of ShareGPT's 200,869 queries


def drawn(shape: ShapeName, seed: int = 0, order: Order = Order.SHUFFLED) -> Workload:
    queries = SOME if shape is ShapeName.SHAREGPT else 0
    return documents(shape, Questions(RATE, order=order, queries=queries), seed)


@pytest.mark.parametrize("shape", list(ShapeName))
def test_counts_and_mean_lengths_are_the_published_ones(shape: ShapeName) -> None:
    published = SHAPES[shape]
    workload = drawn(shape)
    requests = workload.requests
    assert len(requests) == (published.queries if published.contexts else SOME)
    # Documents are scaled to the mean; ShareGPT has none, so that its mean is drawn (standard
    # error about 1.5 % here). Outputs are drawn: geometric, so about 1/sqrt(n) of the mean.
    exact = 1e-3 if published.contexts else 0.06
    prompt_mean = fmean(request.prompt_tokens for request in requests)
    assert prompt_mean == pytest.approx(published.mean_prompt_tokens, rel=exact)
    output_mean = fmean(request.output_tokens for request in requests)
    drawn_error = 5 / math.sqrt(len(requests))
    assert output_mean == pytest.approx(published.mean_output_tokens, rel=drawn_error)
    assert any("assumed" in note for note in workload.notes)


@pytest.mark.parametrize("shape", list(ShapeName))
def test_requests_are_well_formed(shape: ShapeName) -> None:
    workload = drawn(shape)
    requests = workload.requests
    place = {request.request_id: index for index, request in enumerate(requests)}
    assert len(place) == len(requests)
    parents: dict[int, int] = {}
    for index, request in enumerate(requests):
        size = workload.block_tokens
        whole = request.prompt_tokens // size
        left = (request.prompt_tokens + request.output_tokens) // size
        assert len(request.blocks) == whole
        assert len(request.output_blocks) in (0, left - whole)
        assert request.output_tokens >= 1
        parent = -1
        for block in request.blocks + request.output_blocks:
            assert parents.setdefault(block, parent) == parent  # an id is one whole prefix
            parent = block
        if request.after:
            assert place[request.after] < index
    arrivals = [request.arrived_seconds for request in requests]
    assert arrivals == sorted(arrivals)


@pytest.mark.parametrize("shape", [ShapeName.REVIEWMT, ShapeName.SHAREGPT])
def test_a_round_sees_all_said_before_it(shape: ShapeName) -> None:
    requests = {request.request_id: request for request in drawn(shape).requests}
    later = [request for request in requests.values() if request.after]
    assert later
    for request in later:
        before = requests[request.after]
        left = before.blocks + before.output_blocks
        assert request.blocks[: len(left)] == left
        new = request.prompt_tokens - before.prompt_tokens - before.output_tokens
        assert 20 <= new <= 200
        assert request.think_seconds == SHAPES[shape].think_seconds
    first = [request for request in requests.values() if not request.after]
    assert all(request.think_seconds == 0 for request in first)


def test_the_same_arguments_give_the_same_workload_and_another_seed_does_not() -> None:
    asked = Questions(RATE, queries=200)
    for shape in ShapeName:
        assert documents(shape, asked, 3) == documents(shape, asked, 3)
        assert documents(shape, asked, 3) != documents(shape, asked, 4)


def test_orders_and_rates_ask_the_same_questions() -> None:
    def asked(workload: Workload) -> dict[str, tuple[int, int]]:
        return {r.request_id: (r.prompt_tokens, r.output_tokens) for r in workload.requests}

    reference = asked(drawn(ShapeName.LOOGLE))
    for order in Order:
        assert asked(drawn(ShapeName.LOOGLE, order=order)) == reference
    twice = documents(ShapeName.LOOGLE, Questions(2 * RATE))
    assert asked(twice) == reference
    once = drawn(ShapeName.LOOGLE)
    for slow, fast in zip(once.requests, twice.requests, strict=True):
        assert slow.request_id == fast.request_id
        assert fast.arrived_seconds == pytest.approx(slow.arrived_seconds / 2)


def test_orders_set_how_far_apart_the_uses_of_a_document_lie() -> None:
    def again(order: Order) -> list[int]:
        reuse = reuse_tokens(drawn(ShapeName.LOOGLE, order=order))
        return [distance for distance in reuse if distance is not None]

    nearest, shuffled, farthest = (again(order) for order in Order)
    # Only the new tokens of the question before lie between, or nothing.
    assert max(nearest) <= 200
    assert median(shuffled) > 100 * max(nearest)
    # While most documents still have questions, most of the others lie between.
    assert median(farthest) > 0.7 * 104 * 21_613
    assert median(farthest) > median(shuffled)
    # Every question but a document's first knows its document.
    assert {len(nearest), len(shuffled), len(farthest)} == {2_410 - 105}


def test_an_ideal_cache_misses_only_each_documents_first_question() -> None:
    """The paper's about 95 % on LooGLE is 1 - 105 / 2,410, less what is new in each question."""
    workload = drawn(ShapeName.LOOGLE)
    new = fmean((20, 200)) + workload.block_tokens / 2  # the cut block is never shared
    expected = (1 - 105 / 2_410) * (1 - new / 21_613)
    assert ideal_hit_ratio(workload) == pytest.approx(expected, abs=0.004)


def test_a_filled_host_holds_the_documents_and_nothing_else() -> None:
    filled = documents(ShapeName.NARRATIVEQA, Questions(RATE, initial=Initial.HOST_FILLED))
    cold = documents(ShapeName.NARRATIVEQA, Questions(RATE))
    assert filled.requests == cold.requests
    assert not cold.warm_blocks
    warm = set(filled.warm_blocks)
    assert len(warm) == len(filled.warm_blocks)
    uses = Counter(block for request in filled.requests for block in request.blocks)
    assert {block for block, count in uses.items() if count > 1} <= warm
    for request in filled.requests:
        own = [block for block in request.blocks if block not in warm]
        assert len(own) * filled.block_tokens <= 200 + filled.block_tokens


def test_no_document_is_longer_than_what_was_filtered_out() -> None:
    longest = SHAPES[ShapeName.NARRATIVEQA].longest_context_tokens
    for seed in range(5):
        workload = drawn(ShapeName.NARRATIVEQA, seed)
        assert max(request.prompt_tokens for request in workload.requests) <= longest + 200


def standard_gaps(requests: tuple[SimRequest, ...], rate: float) -> list[float]:
    arrivals = [0.0, *(request.arrived_seconds for request in requests)]
    return [(b - a) * rate for a, b in pairwise(arrivals)]


def test_arrivals_are_poisson() -> None:
    gaps = standard_gaps(drawn(ShapeName.LOOGLE).requests, RATE)
    # Exponential of mean 1: mean within 5 standard errors, and the Kolmogorov-Smirnov distance
    # within its bound at one in a million.
    count = len(gaps)
    assert fmean(gaps) == pytest.approx(1, abs=5 / math.sqrt(count))
    distance = max(
        abs((index + 0.5) / count - (1 - math.exp(-gap))) for index, gap in enumerate(sorted(gaps))
    )
    assert distance < math.sqrt(math.log(2e6) / (2 * count)) + 1 / count


def test_conversations_start_at_the_rate_that_makes_that_of_their_rounds() -> None:
    requests = drawn(ShapeName.SHAREGPT).requests
    starts = tuple(request for request in requests if not request.after)
    rate = len(starts) / starts[-1].arrived_seconds
    expected = RATE * len(starts) / len(requests)
    assert rate == pytest.approx(expected, rel=5 / math.sqrt(len(starts)))


@pytest.mark.parametrize(
    ("shape", "asked", "fix"),
    [
        ("novels", Questions(RATE), "choose loogle, narrativeqa, reviewmt, sharegpt"),
        ("loogle", Questions(0), "queries_per_second must be above 0"),
        ("loogle", Questions(math.nan), "queries_per_second must be above 0"),
        ("loogle", Questions(RATE, new_tokens=(9, 3)), "name a range"),
        ("loogle", Questions(RATE, new_tokens=(20, 30_000)), "name a lower range"),
        ("loogle", Questions(RATE, contexts=9, queries=3), "each needs one or more"),
        ("loogle", Questions(RATE, block_tokens=0), "block_tokens must be 1 or more"),
        ("sharegpt", Questions(RATE, contexts=9), "leave contexts out"),
        ("sharegpt", Questions(RATE, initial=Initial.HOST_FILLED), "has no documents"),
        ("reviewmt", Questions(RATE, order=Order.MIN_DISTANCE), "keep their own order"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_reason(
    shape: str, asked: Questions, fix: str
) -> None:
    with pytest.raises(WorkloadError, match=fix):
        documents(shape, asked)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30), st.integers(0, 500))
def test_shares_of_a_total_add_up_and_none_is_nothing(weights: list[float], spare: int) -> None:
    total = len(weights) + spare
    shares = with_total(weights, total)
    assert sum(shares) == total
    assert min(shares) >= 1


def test_relative_lengths_have_a_mean_of_about_one() -> None:
    draw = Random(1)
    for model in length_models().values():
        values = [model.relative(draw) for _ in range(4_000)]
        # A straight line between quantiles bends a long tail's mean by some per cent.
        assert fmean(values) == pytest.approx(1, abs=0.1)
        assert min(values) >= model.quantiles[0] / model.mean - 1e-9
        assert max(values) <= model.quantiles[100] / model.mean + 1e-9


def test_a_geometric_length_has_its_mean() -> None:
    draw = Random(2)
    values = [geometric(draw, 15.6) for _ in range(10_000)]
    assert min(values) == 1
    assert fmean(values) == pytest.approx(15.6, rel=0.05)
    assert geometric(draw, 0.5) == 1
