"""What a copy costs, as plain floats: the formula, its bounds, its way through JSON."""

from __future__ import annotations

import json
import math

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


@given(curve=curves, payload=sizes, fragments=st.integers(1, 1 << 20))
def test_a_curve_is_the_same_after_json(curve: LoadCurve, payload: int, fragments: int) -> None:
    again = LoadCurve.of_floats(json.loads(json.dumps(curve.as_floats())))
    assert again.seconds(payload, fragments) == curve.seconds(payload, fragments)
    assert again.as_floats() == curve.as_floats()


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


@pytest.mark.parametrize(
    "change",
    [{"knots": 1.0}, {"knots": ["0"]}, {"bytes_per_second": "fast"}, {"overhead_seconds": True}]
    + [{"surprise": 1.0}],
)
def test_what_is_no_curve_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProfileError):
        LoadCurve.of_floats(LoadCurve(0.0, 0.0, 1e9).as_floats() | change)


def test_bandwidth_grows_with_workers_until_the_link_is_full() -> None:
    # 32 KiB in flight for 1.3 us are 25 GB/s a worker: a link of 55 GB/s is full with the third.
    limit = WorkerLimit.of_round_trip(55e9, 32 * 1024, 1.3e-6)
    rates = [limit.bytes_per_second(workers) / 1e9 for workers in (1, 2, 3, 132)]
    assert rates == pytest.approx([25.2, 50.4, 55.0, 55.0], rel=1e-3)
    curve = LoadCurve(1e-5, 1e-8, 55e9)
    assert limit.limited(curve, 132).seconds(1 << 30, 1) == curve.seconds(1 << 30, 1)
    # A gibibyte at a worker's 25.2 GB/s.
    assert limit.limited(curve, 1).seconds(1 << 30, 1) == pytest.approx(0.0426, rel=1e-2)


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
