"""Reuse distances, hit ratios and neighbours against plain definitions."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.whatif.chains import ROOT, Chains
from kvready.advisor.whatif.distances import (
    block_distances,
    ideal_hit_ratio,
    lru_hit_ratios,
    reuse_tokens,
)
from kvready.advisor.whatif.neighbours import (
    SystemPrompt,
    neighbour_share,
    system_prompt_blocks,
)
from kvready.advisor.whatif.traces import Reading, read_workload
from kvready.advisor.whatif.workload import SimRequest, Workload

TRACES = Path(__file__).parents[1] / "examples" / "traces"
BLOCK = 4

# Few names and short prompts, so that prefixes meet often.
prompts = st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=25)


def workload_of(prompts: list[list[int]], gap_seconds: float = 1.0) -> Workload:
    chains = Chains()
    return Workload(
        "drawn",
        "test",
        BLOCK,
        tuple(
            SimRequest(
                str(i), i * gap_seconds, len(names) * BLOCK + 1, 1, chains.extend(ROOT, names)
            )
            for i, names in enumerate(prompts)
        ),
    )


def lru_hit_tokens(workload: Workload, capacity_blocks: int) -> int:
    """A cache of so many blocks, run block by block: last to first, as the definition says."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in workload.requests:
        # A block is hit by what the cache holds when its turn comes.
        for block in reversed(request.blocks):
            hits += (block in cache) * workload.block_tokens
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > capacity_blocks:
                cache.popitem(last=False)
    return hits


def plain_reuse(workload: Workload) -> list[int | None]:
    """By definition: find the last request with the longest known prefix, and count between."""
    requests = workload.requests
    found: list[int | None] = []
    for i, request in enumerate(requests):
        seen = {block for earlier in requests[:i] for block in earlier.blocks}
        depth = sum(block in seen for block in request.blocks)
        if not depth:
            found.append(None)
            continue
        deepest = request.blocks[depth - 1]
        last = max(j for j in range(i) if deepest in requests[j].blocks)
        between = {block for r in requests[last + 1 : i] for block in r.blocks}
        found.append(len(between - set(request.blocks[:depth])) * workload.block_tokens)
    return found


@given(prompts)
def test_reuse_is_the_distinct_tokens_of_others_since_the_prefix_was_asked_for(
    drawn: list[list[int]],
) -> None:
    workload = workload_of(drawn)
    assert reuse_tokens(workload) == plain_reuse(workload)


@given(prompts, st.integers(1, 20))
def test_hits_by_stack_distance_are_those_of_an_lru_cache(
    drawn: list[list[int]], capacity_blocks: int
) -> None:
    workload = workload_of(drawn)
    prompt_tokens = sum(request.prompt_tokens for request in workload.requests)
    ratio = lru_hit_ratios(workload, [capacity_blocks * BLOCK])[0]
    expected = lru_hit_tokens(workload, capacity_blocks) / max(prompt_tokens, 1)
    assert ratio == pytest.approx(expected)


@given(prompts)
def test_a_cache_without_limit_hits_the_ideal(drawn: list[list[int]]) -> None:
    workload = workload_of(drawn)
    assert lru_hit_ratios(workload, [10**6])[0] == pytest.approx(ideal_hit_ratio(workload))


@given(prompts)
def test_larger_caches_never_hit_less(drawn: list[list[int]]) -> None:
    ratios = lru_hit_ratios(workload_of(drawn), [0, 4, 8, 16, 40, 400])
    assert ratios == sorted(ratios)
    assert ratios[0] == 0


def test_capacities_may_come_in_any_order() -> None:
    workload = workload_of([[0, 1, 2], [1], [0, 1, 2]])
    assert lru_hit_ratios(workload, [400, 4]) == lru_hit_ratios(workload, [4, 400])[::-1]


def test_what_an_output_leaves_counts_as_used() -> None:
    first = SimRequest("a", 0.0, 5, 8, (0,), output_blocks=(1, 2))
    second = SimRequest("b", 1.0, 13, 1, (0, 1, 2), after="a")
    assert reuse_tokens(Workload("rounds", "test", BLOCK, (first, second))) == [None, 0]


def test_the_order_in_which_requests_really_came_counts() -> None:
    workload = workload_of([[0, 0], [1, 1, 1], [0, 0]])
    assert reuse_tokens(workload) == [None, None, 3 * BLOCK]
    assert reuse_tokens(workload, order=[0, 2, 1]) == [None, None, 0]
    assert reuse_tokens(workload, order=[1, 2, 0]) == [0, None, None]


def test_a_prompt_that_all_share_can_be_left_aside() -> None:
    workload = workload_of([[0, 1], [0, 2], [0, 1]])
    aside = system_prompt_blocks(workload, SystemPrompt.GLOBAL)
    assert reuse_tokens(workload) == [None, 0, BLOCK]
    assert aside == [2, 1, 2]  # two of three ask for 0, 1 too
    assert reuse_tokens(workload, aside=[1, 1, 1]) == [None, None, BLOCK]


@pytest.mark.parametrize(
    "name",
    ["mooncake-arxiv-first-1000.jsonl.gz", "mooncake-synthetic-first-3-minutes.jsonl.gz"],
)
def test_real_prefixes_have_their_plain_distances(name: str) -> None:
    workload = read_workload(TRACES / name, reading=Reading(first=250))
    assert reuse_tokens(workload) == plain_reuse(workload)
    for capacity in (300, 3_000):
        tokens = capacity * workload.block_tokens
        prompt_tokens = sum(request.prompt_tokens for request in workload.requests)
        expected = lru_hit_tokens(workload, capacity) / prompt_tokens
        assert lru_hit_ratios(workload, [tokens])[0] == pytest.approx(expected)


def test_a_known_block_is_at_most_all_distinct_blocks_away() -> None:
    workload = read_workload(TRACES / "mooncake-conversation-first-6-minutes.jsonl.gz")
    chains = [request.blocks for request in workload.requests]
    distinct = len({block for blocks in chains for block in blocks})
    for distances in block_distances(chains):
        known = [distance for distance in distances if distance >= 0]
        assert distances[: len(known)] == known  # a prefix is known, what continues it is not
        assert all(distance < distinct for distance in known)


def plain_neighbours(
    workload: Workload, window_seconds: float, min_tokens: int, aside: list[int]
) -> float:
    requests = workload.requests
    found = 0
    for i, request in enumerate(requests):
        best = 0
        for j, other in enumerate(requests):
            if i != j and abs(other.arrived_seconds - request.arrived_seconds) <= window_seconds:
                common = sum(block in other.blocks for block in request.blocks)
                best = max(best, common)
        found += (best - min(best, aside[i])) * workload.block_tokens >= min_tokens
    return found / max(len(requests), 1)


@given(prompts, st.integers(0, 6), st.integers(1, 5), st.sampled_from(list(SystemPrompt)))
def test_neighbours_share_what_their_definition_says(
    drawn: list[list[int]], window: int, blocks: int, what: SystemPrompt
) -> None:
    workload = workload_of(drawn)
    aside = system_prompt_blocks(workload, what)
    expected = plain_neighbours(workload, window, blocks * BLOCK, aside)
    assert neighbour_share(workload, window, blocks * BLOCK, what) == expected


def test_only_the_arxiv_slice_has_close_neighbours_and_they_share_a_template() -> None:
    """By the published trace's own statistics: 35.9 % of these 1,000, and of conversation none."""
    arxiv = read_workload(TRACES / "mooncake-arxiv-first-1000.jsonl.gz")
    assert neighbour_share(arxiv, 1.0, 6_000) == pytest.approx(0.359)
    assert neighbour_share(arxiv, 1.0, 6_000, SystemPrompt.FAMILY) == 0
    talk = read_workload(TRACES / "mooncake-conversation-first-6-minutes.jsonl.gz")
    assert neighbour_share(talk, 1.0, 6_000) == 0
