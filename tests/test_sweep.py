"""What a calibration times, in which order and for how long: pure, so tried on many plans."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.pools import Direction
from kvready.kernels.presets import preset_layout
from kvready.kernels.sweep import (
    KIB,
    LARGEST_FRAGMENT_BYTES,
    MAX_FRAGMENTS,
    MAX_LOAD_BYTES,
    MIB,
    MOST_SHAPES,
    PLANES,
    ROUNDS,
    SAMPLED_ROUNDS,
    SMALLEST_FRAGMENT_BYTES,
    STRETCH_TRIALS,
    VECTOR_BYTES,
    CurveKey,
    Trial,
    another_round,
    disk_shape_count,
    disk_shapes,
    half_octaves,
    host_shape_count,
    host_shapes,
    limit_shapes,
    model_shapes,
    stretches,
    thinned,
    trials,
)

CURVES = [
    CurveKey(source, destination, mover, "some", workers)
    for source, destination in (("host", "hbm"), ("hbm", "host"))
    for mover, workers in (("dma_per_page", 1), ("gather", 1), ("gather", 2))
]
SEEDS = st.integers(0, 2**32)
POOLS = st.integers(64, 2048).map(lambda mebibytes: mebibytes * MIB)
COUNTS = st.integers(6, MOST_SHAPES)


def plan(count: int, seed: int, curves: int = 3) -> tuple[Trial, ...]:
    shapes = host_shapes(count, 256 * MIB, seed)
    return trials(CURVES[:curves], lambda _: shapes)


@given(COUNTS, SEEDS, st.integers(1, len(CURVES)), st.integers(0, 9))
def test_a_round_holds_every_trial_once(count: int, seed: int, curves: int, number: int) -> None:
    planned = plan(count, seed, curves)
    assert len(set(planned)) == len(planned)
    made = [trial for stretch in stretches(planned, seed, number) for trial in stretch.trials]
    assert Counter(made) == Counter(planned)


@given(COUNTS, SEEDS)
def test_a_seed_gives_one_order_and_each_round_another(count: int, seed: int) -> None:
    planned = plan(count, seed)
    rounds = [stretches(planned, seed, number) for number in range(ROUNDS)]
    assert rounds == [stretches(planned, seed, number) for number in range(ROUNDS)]
    orders = {tuple(t for stretch in made for t in stretch.trials) for made in rounds}
    assert len(orders) == ROUNDS
    assert stretches(planned, seed + 1, 0) != rounds[0]


@given(COUNTS, SEEDS, st.integers(0, 3))
def test_quiet_and_contended_alternate_in_short_stretches(
    count: int, seed: int, number: int
) -> None:
    made = stretches(plan(count, seed), seed, number)
    for stretch in made:
        assert {trial.curve.contended for trial in stretch.trials} == {stretch.contended}
        assert 0 < len(stretch.trials) <= STRETCH_TRIALS
    assert all(left.contended != right.contended for left, right in pairwise(made))


def test_noise_that_lasts_a_stretch_hits_many_sizes_of_many_movers() -> None:
    made = stretches(plan(32, seed=1, curves=len(CURVES)), 1, 0)
    for stretch in made:
        sizes = {trial.shape.fragment_bytes for trial in stretch.trials}
        movers = {(trial.curve.mover, trial.curve.workers) for trial in stretch.trials}
        assert len(sizes) > len(stretch.trials) / 4
        assert len(movers) > 1


@given(COUNTS, POOLS, SEEDS)
def test_loads_are_whole_pages_that_fit_and_span_all_fragment_sizes(
    count: int, pool_bytes: int, seed: int
) -> None:
    shapes = host_shapes(count, pool_bytes, seed)
    assert len(set(shapes)) == len(shapes) <= count
    for shape in shapes:
        assert shape.planes == PLANES
        assert shape.fragments == shape.pages * shape.planes > 0
        assert shape.fragment_bytes % VECTOR_BYTES == 0
        assert shape.fragments <= MAX_FRAGMENTS
        assert shape.payload_bytes <= pool_bytes // 2
    sizes = [shape.fragment_bytes for shape in shapes]
    assert (min(sizes), max(sizes)) == (SMALLEST_FRAGMENT_BYTES, LARGEST_FRAGMENT_BYTES)
    # A cost per load and one per fragment are told apart by loads of one size but other lengths.
    assert len(set(sizes)) < len(sizes)


def test_sizes_double_every_second_step() -> None:
    sizes = half_octaves(512, 2 * MIB)
    assert sizes[0] == 512
    assert sizes[-1] == 2 * MIB
    assert len(sizes) == 25
    assert sizes[::2] == [512 << octave for octave in range(13)]
    assert all(1.3 < larger / smaller < 1.55 for smaller, larger in pairwise(sizes))


@given(st.lists(st.integers(), min_size=1, max_size=40, unique=True), st.integers(1, 50))
def test_thinning_keeps_order_ends_and_at_most_so_many(sizes: list[int], count: int) -> None:
    kept = thinned(sizes, count)
    assert len(kept) == min(count, len(sizes))
    assert [size for size in sizes if size in kept] == kept
    assert kept[0] == sizes[0]
    assert count == 1 or kept[-1] == sizes[-1]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "deepseek-v3"])
@pytest.mark.parametrize("page_tokens", [1, 16, 32])
def test_a_models_own_pages_are_loaded_exactly(name: str, page_tokens: int) -> None:
    layout = preset_layout(name, page_tokens)
    shapes = model_shapes(layout.fragment_bytes, layout.planes, 1024 * MIB)
    assert shapes
    for shape in shapes:
        assert shape.fragment_bytes == layout.fragment_bytes
        assert shape.payload_bytes == shape.pages * layout.page_bytes <= MAX_LOAD_BYTES


def test_a_models_page_larger_than_the_pool_is_left_out() -> None:
    assert model_shapes(2 * MIB, 64, 64 * MIB) == ()


@given(st.integers(1, 20), st.one_of(st.none(), st.just(5 * MIB)))
def test_disk_pages_are_whole_blocks_and_include_the_models(count: int, page: int | None) -> None:
    shapes = disk_shapes(count, page)
    assert len(set(shapes)) == len(shapes)
    assert all(shape.fragment_bytes % (4 * KIB) == 0 for shape in shapes)
    assert page is None or page in {shape.fragment_bytes for shape in shapes}


def test_one_piece_is_one_fragment_that_fits() -> None:
    for shape in limit_shapes(64 * MIB):
        assert shape.fragments == 1
        assert shape.payload_bytes <= 32 * MIB


@given(st.floats(1, 3600), st.floats(1, 3600))
def test_more_time_never_means_fewer_shapes(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert host_shape_count(less) <= host_shape_count(more) <= MOST_SHAPES
    assert disk_shape_count(less) <= disk_shape_count(more)
    assert host_shape_count(10) == MOST_SHAPES, "the default measures all that a fit can use"


@given(SEEDS, st.floats(0.1, 100))
def test_rounds_stop_before_the_time_is_up_and_never_below_two(seed: int, budget: float) -> None:
    lengths = random.Random(seed)
    each = lengths.uniform(0.01, 40)
    done, spent = 0, 0.0
    while another_round(done, spent, budget):
        done += 1
        spent += each
    assert SAMPLED_ROUNDS <= done <= ROUNDS
    assert done == SAMPLED_ROUNDS or spent <= budget * (1 + 1e-9)
    assert done == ROUNDS or spent + each > budget, "a round that fits is made"


def test_what_leaves_hbm_is_a_store() -> None:
    assert CurveKey("hbm", "host", "gather", "b", 1).direction is Direction.STORE
    assert CurveKey("host", "hbm", "gather", "b", 1).direction is Direction.LOAD
