"""What a copy costs, as plain floats: the formula, its bounds, and how it grows with workers."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.load_curve import LoadCurve, WorkerLimit
from kvready.advisor.overlap import stall_seconds, usable_batch_seconds
from kvready.collectors.records import OverlapMode
from kvready.kernels.errors import ProfileError

costs = st.floats(0.0, 1e-2)
curves = st.builds(
    LoadCurve,
    costs,
    costs,
    st.floats(1e6, 1e13),
    st.integers(0, 30).map(float),
    st.lists(st.floats(-2.0, 2.0), max_size=12),
)
sizes = st.integers(1, 1 << 40)


@given(curve=curves, fragment=st.integers(1, 1 << 24), counts=st.tuples(sizes, sizes))
def test_at_one_fragment_size_a_larger_copy_never_costs_less(
    curve: LoadCurve, fragment: int, counts: tuple[int, int]
) -> None:
    fewer, more = sorted(counts)
    less = curve.seconds(fragment * fewer, fewer)
    assert 0.0 < less <= curve.seconds(fragment * more, more) * (1 + 1e-12)


def test_corrections_are_linear_between_octaves_and_clamped_outside() -> None:
    curve = LoadCurve(0.0, 0.0, 1e9, 12.0, [0.5, -0.5, 0.1])

    def correction(octave: float) -> float:
        return math.log(curve.seconds(2.0**octave, 1) / (2.0**octave / 1e9))

    expected = {0.0: 0.5, 12.0: 0.5, 12.25: 0.25, 13.0: -0.5, 13.5: -0.2, 14.0: 0.1, 30.0: 0.1}
    for octave, value in expected.items():
        assert correction(octave) == pytest.approx(value)


def test_without_knots_it_is_the_plain_cost() -> None:
    assert LoadCurve(1e-3, 1e-6, 1e9).seconds(4_000_000, 100) == pytest.approx(5.1e-3)
    assert LoadCurve(1e-3, 1e-6, 1e9, 9.0, [1.0]).seconds(0, 0) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "figures",
    [
        (-1e-9, 0.0, 1e9),
        (math.nan, 0.0, 1e9),
        (0.0, math.inf, 1e9),
        (0.0, 0.0, 0.0),
        (0.0, 0.0, math.inf),
        (0.0, 0.0, 1e9, math.nan),
        (0.0, 0.0, 1e9, 0.0, [100.0]),
        (0.0, 0.0, 1e9, 0.0, [math.nan]),
        (0.0, 0.0, 1e9, 0.0, [0.0] * 41),
    ],
)
def test_figures_that_no_link_can_have_are_refused(figures: tuple[float, ...]) -> None:
    with pytest.raises(ProfileError):
        LoadCurve(*figures)


def test_bandwidth_grows_with_workers_until_the_link_is_full() -> None:
    # 32 KiB in flight for 1.3 us are 25 GB/s a worker: a link of 55 GB/s is full with the third.
    limit = WorkerLimit(55e9, 32 * 1024 / 1.3e-6)
    rates = [limit.bytes_per_second(workers) / 1e9 for workers in (1, 2, 3, 132)]
    assert rates == pytest.approx([25.2, 50.4, 55.0, 55.0], rel=1e-3)
    timed = LoadCurve(1e-5, 1e-8, 25.2e9)
    # A gibibyte at what is timed, at twice that, at the link's 55 GB/s.
    for workers, seconds in ((1, 0.0426), (2, 0.0213), (132, 0.0195)):
        assert limit.curve(timed, 1, workers).seconds(1 << 30, 1) == pytest.approx(
            seconds, rel=1e-2
        )
    assert limit.curve(timed, 4, 8).seconds(1 << 30, 1) == timed.seconds(1 << 30, 1)


def test_a_links_limit_and_a_workers_share_are_found_from_a_few_numbers_of_workers() -> None:
    rng = random.Random(15)
    measured = [
        (workers, min(55e9, workers * 25.2e9) * math.exp(rng.gauss(0, 0.02)))
        for workers in (1, 2, 4, 8, 16, 32, 132)
        for _ in range(3)
    ]
    limit = WorkerLimit.of_measured(measured)
    assert limit.link_bytes_per_second == pytest.approx(55e9, rel=0.03)
    assert limit.worker_bytes_per_second == pytest.approx(25.2e9, rel=0.03)


def test_a_link_that_no_number_of_workers_fills_has_the_best_rate_seen_as_its_limit() -> None:
    limit = WorkerLimit.of_measured([(1, 1e9), (2, 2e9), (4, 4e9)])
    assert limit.bytes_per_second(4) == limit.bytes_per_second(64) == pytest.approx(4e9)
    with pytest.raises(ProfileError, match="two numbers of workers"):
        WorkerLimit.of_measured([(1, 1e9), (1, 1.1e9)])


def layer_by_layer(mode: OverlapMode, layers: int, load: float, compute: float) -> float:
    """Each layer's load and compute as events: the oracle of the closed formulas."""
    loaded = computed = 0.0
    ends = [load * (layer + 1) for layer in range(layers)]
    for layer in range(layers):
        loaded = ends[layer] if mode is OverlapMode.LAYERWISE else ends[-1]
        computed = max(loaded, computed) + compute
    return computed


@given(
    mode=st.sampled_from(OverlapMode),
    layers=st.integers(1, 96),
    load=st.floats(0.0, 0.1),
    compute=st.floats(0.0, 0.1),
)
def test_a_batch_takes_what_its_layers_take_one_by_one(
    mode: OverlapMode, layers: int, load: float, compute: float
) -> None:
    whole = usable_batch_seconds(mode, layers, layers * load, layers * compute)
    oracle = layer_by_layer(mode, layers, load, compute)
    assert whole == pytest.approx(oracle, rel=1e-9, abs=1e-12)
    stalled = stall_seconds(mode, layers, layers * load, layers * compute)
    if mode is OverlapMode.BEFORE_ADMISSION:
        assert stalled == 0.0  # others run meanwhile
    else:
        assert stalled == pytest.approx(oracle - layers * compute, rel=1e-6, abs=1e-9)
        assert stalled >= load - 1e-12  # the first layer is waited for, whatever the overlap
