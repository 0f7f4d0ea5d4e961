"""Few figures out of many samples: percentiles against numpy's, ratios against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.profile import Cost, Curve, Sample
from kvready.kernels.summary import (
    SHOWN_FRAGMENT_BYTES,
    Point,
    bandwidth_at,
    compute_slowdown,
    points,
    repeat_scatter,
    spread,
    summarize,
)

SECONDS = st.floats(1e-6, 1.0)
REPEATS = st.lists(SECONDS, min_size=2, max_size=8)


def curve(*samples: Sample) -> Curve:
    return Curve("host", "hbm", "gather", "some", 1, False, samples)


def shape(size: int, fragments: int, seconds: list[float]) -> list[Sample]:
    return [Sample(size, fragments, number, took) for number, took in enumerate(seconds)]


@given(st.lists(SECONDS, min_size=1, max_size=12))
def test_the_spread_is_that_of_numpy(values: list[float]) -> None:
    assert spread(values) == pytest.approx(tuple(np.percentile(values, [10, 50, 90])))


@given(st.lists(REPEATS, min_size=1, max_size=6))
def test_scatter_is_the_median_over_shapes_of_relative_spread(shapes: list[list[float]]) -> None:
    samples = [
        sample for place, seconds in enumerate(shapes) for sample in shape(512, place + 1, seconds)
    ]
    expected = []
    for seconds in shapes:
        low, middle, high = np.percentile(seconds, [10, 50, 90])
        expected.append((high - low) / middle)
    assert repeat_scatter([curve(*samples)]) == pytest.approx(np.median(expected))


def test_a_shape_without_repeats_tells_no_scatter() -> None:
    assert repeat_scatter([curve(Sample(512, 8, 0, 0.1))]) is None


def test_of_each_fragment_size_the_largest_load_gives_the_bandwidth() -> None:
    found = points(
        curve(*shape(512, 8, [1.0, 1.0]), *shape(512, 80, [2.0, 4.0]), *shape(4096, 8, [1.0]))
    )
    assert [point.fragment_bytes for point in found] == [512, 4096]
    assert found[0].middle == pytest.approx(np.median([512 * 80 / 2, 512 * 80 / 4]))
    assert found[0].low < found[0].middle < found[0].high
    assert found[1] == Point(4096, 4096 * 8, 4096 * 8, 4096 * 8)


@given(st.integers(512, 1 << 21))
def test_between_sizes_the_bandwidth_lies_between_theirs(size: int) -> None:
    along = [Point(512, 1.0, 2.0, 3.0), Point(8192, 4.0, 8.0, 9.0), Point(1 << 21, 5.0, 7.0, 9.5)]
    found = bandwidth_at(along, size)
    assert found is not None
    left = [point for point in along if point.fragment_bytes <= size][-1]
    right = next(point for point in along if point.fragment_bytes >= size)
    for name in ("low", "middle", "high"):
        low, high = sorted((getattr(left, name), getattr(right, name)))
        assert low <= getattr(found, name) * (1 + 1e-9)
        assert getattr(found, name) <= high * (1 + 1e-9)


def test_outside_what_was_measured_there_is_no_bandwidth() -> None:
    along = [Point(4096, 1.0, 1.0, 1.0), Point(8192, 1.0, 1.0, 1.0)]
    assert bandwidth_at(along, 4095) is None
    assert bandwidth_at(along, 8193) is None
    assert bandwidth_at([], 4096) is None
    assert bandwidth_at(along[:1], 4096) == along[0]


@given(st.lists(st.tuples(SECONDS, st.floats(0.5, 20)), min_size=1, max_size=9))
def test_slowdown_is_time_beside_moves_over_the_same_steps_alone(
    told: list[tuple[float, float]],
) -> None:
    samples = [Sample(512, 8, 0, seconds, compute_slowdown=slower) for seconds, slower in told] + [
        Sample(512, 8, 1, 5.0)
    ]
    alone = sum(seconds / slower for seconds, slower in told)
    assert compute_slowdown(samples) == pytest.approx(sum(s for s, _ in told) / alone)


def test_nothing_told_of_compute_is_no_slowdown_of_one() -> None:
    assert compute_slowdown([Sample(512, 8, 0, 1.0)]) is None


@given(st.floats(0, 1e-5), st.floats(1e8, 1e12))
def test_a_published_curve_follows_its_formula(per_fragment: float, rate: float) -> None:
    published = Curve(
        "host", "hbm", "dma_per_page", "p", 1, False, cost=Cost(0.0, per_fragment, rate)
    )
    told = summarize(published)
    assert told.wait_seconds is told.compute_slowdown is told.scatter is None
    for size, point in zip(SHOWN_FRAGMENT_BYTES, told.bandwidths, strict=True):
        assert point is not None
        assert point.middle == pytest.approx(size / (per_fragment + size / rate))
        assert point.low == point.high
