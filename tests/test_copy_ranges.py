"""Ranges of copies along their bytes: ordered, never lower for more, without a step at an edge."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from story import Story

from kvready.advisor import copy_ranges
from kvready.advisor.copy_ranges import Course, Node, interval_along, nodes_of, range_along
from kvready.advisor.engine_estimates import INTO_HBM, EngineEstimates
from kvready.advisor.forecast_writer import ForecastWriter
from kvready.advisor.intervals import PRIOR_FACTOR, Intervals
from kvready.advisor.ledger import Forecast, Ledger, Target
from kvready.advisor.load_curve import LoadCurve
from kvready.advisor.load_priors import LoadPriors, Path, Prior, PriorKind
from kvready.advisor.ranges import Range
from kvready.advisor.readiness import LoadModel
from kvready.advisor.shape_cells import LARGEST_OCTAVE, SMALLEST_OCTAVE
from kvready.collectors.records import CopyMethod, Tier

KIB, MIB = 1 << 10, 1 << 20
ROUNDING = 1e-9
LOWER = (Tier.HOST, Tier.DISK, Tier.REMOTE)
METHODS = (None, *CopyMethod)

# What a link did: copies of some size in fragments of one, by a mover, so many times slower than
# was predicted.
COPIES = st.lists(
    st.tuples(
        st.sampled_from(LOWER),
        st.sampled_from(METHODS),
        st.integers(1, 600),
        st.floats(math.log(0.05), math.log(20.0)),
    ),
    max_size=60,
)
FRAGMENTS = st.sampled_from((512, 12 * KIB, 128 * KIB, 2 * MIB))
CURVES = st.builds(
    LoadCurve,
    st.floats(0.0, 1e-2),
    st.floats(0.0, 1e-5),
    st.floats(1e8, 1e11),
    st.floats(9.0, 14.0),
    st.lists(st.floats(-1.0, 1.0), max_size=8),
)
FACTORS = st.floats(1.2, 8.0)


class Link:
    """One direction's model and intervals, taught by copies."""

    def __init__(self, source: Tier, curve: LoadCurve, factor: float) -> None:
        paths = {
            Path(source, Tier.HBM, method): Prior(PriorKind.MEASURED, curve, curve, factor)
            for method in CopyMethod
        }
        self.source = source
        self.model = LoadModel(source, Tier.HBM, LoadPriors(PriorKind.MEASURED, paths=paths))
        self.intervals = Intervals()

    def copy(self, method: CopyMethod | None, size: int, fragments: int, error: float) -> None:
        course = self.model.course(size, fragments)
        interval = interval_along(self.intervals, self.source, course)
        seconds = course.seconds * math.exp(error)
        interval.settle(seconds)
        self.model.mover(method).learn(size, fragments, seconds)

    def answer(self, size: int, fragments: int) -> Range:
        nodes = nodes_of(self.intervals, self.source, self.model.prior_factor)
        return range_along(nodes, self.model.course(size, fragments))

    def forecast(self, size: int, fragments: int, waits: float = 0.0) -> Forecast:
        """As it is written in the ledger."""
        ledger = Ledger()
        written: list[Forecast] = []
        writer = ForecastWriter(
            ledger, lambda pair: None, on_forecast=lambda one, _: written.append(one)
        )
        writer.intervals[Target.LOAD] = self.intervals
        course = self.model.course(size, fragments)
        waiting = course._replace(seconds=course.seconds + waits)
        writer.write_copy(Target.LOAD, "1", 0.0, self.source, waiting, "", (0, 0.0))
        return written[0]


def rises(before: Range | Forecast, after: Range | Forecast) -> bool:
    return all(
        larger >= smaller * (1.0 - ROUNDING) - ROUNDING
        for smaller, larger in zip(_bounds(before), _bounds(after), strict=True)
    )


def is_ordered(found: Range | Forecast) -> bool:
    low, middle, high = _bounds(found)
    return 0.0 <= low <= middle <= high < math.inf


def _bounds(found: Range | Forecast) -> tuple[float, float, float]:
    if isinstance(found, Range):
        return found.low, found.p50, found.high
    return found.low_seconds, found.p50_seconds, found.high_seconds


@given(COPIES, CURVES, FACTORS, FRAGMENTS, st.lists(st.integers(1, 4_000), min_size=2), st.data())
def test_whatever_was_learned_more_bytes_never_take_less(
    copies: list[tuple[Tier, CopyMethod | None, int, float]],
    curve: LoadCurve,
    factor: float,
    fragment_bytes: int,
    counts: list[int],
    data: st.DataObject,
) -> None:
    links = {source: Link(source, curve, factor) for source in LOWER}
    for source, method, count, error in copies:
        links[source].copy(method, count * fragment_bytes, count, error)
    waits = data.draw(st.floats(0.0, 1.0))
    for link in links.values():
        for method in METHODS:
            link.model.expected_method = method
            sizes = [(count * fragment_bytes, count) for count in sorted(counts)]
            answers = [link.answer(*size) for size in sizes]
            forecasts = [link.forecast(*size, waits) for size in sizes]
            assert all(map(is_ordered, answers))
            assert all(map(is_ordered, forecasts))
            assert all(rises(*pair) for pair in pairwise(answers))
            assert all(rises(*pair) for pair in pairwise(forecasts))


@given(COPIES, CURVES, FACTORS, FRAGMENTS, st.integers(1, 4_000))
def test_what_is_answered_is_what_is_written(
    copies: list[tuple[Tier, CopyMethod | None, int, float]],
    curve: LoadCurve,
    factor: float,
    fragment_bytes: int,
    count: int,
) -> None:
    link = Link(Tier.HOST, curve, factor)
    for _, method, blocks, error in copies:
        link.copy(method, blocks * fragment_bytes, blocks, error)
    size = count * fragment_bytes
    answer, forecast = link.answer(size, count), link.forecast(size, count)
    assert _bounds(answer) == pytest.approx(_bounds(forecast), rel=1e-9, abs=1e-12)


@given(COPIES, CURVES, st.integers(SMALLEST_OCTAVE + 1, 32))
def test_there_is_no_step_where_one_octave_ends(
    copies: list[tuple[Tier, CopyMethod | None, int, float]], curve: LoadCurve, octave: int
) -> None:
    intervals = Intervals()
    for _, _, count, error in copies:
        course = Course(count * 64 * KIB, 1.0, 0.0, PRIOR_FACTOR)
        interval_along(intervals, Tier.HOST, course).settle(math.exp(error))
    nodes = nodes_of(intervals, Tier.HOST, PRIOR_FACTOR)
    for edge in (1 << octave, round(math.sqrt(2.0) * (1 << octave))):
        before, after = (
            range_along(
                nodes,
                Course(size, curve.seconds(size, 1.0), 1.0 / curve.bytes_per_second, PRIOR_FACTOR),
            )
            for size in (edge, edge + 1)
        )
        # A byte in more than 512: at most that much of what an octave may change, a thousandfold.
        assert _bounds(before) == pytest.approx(_bounds(after), rel=1e3 / edge + 1e-6, abs=1e-9)


def test_in_the_middle_of_its_octave_a_copy_has_that_octaves_own_interval() -> None:
    intervals = Intervals()
    size = round(math.sqrt(2.0) * MIB)
    course = Course(size, 0.01, 0.01 / size, PRIOR_FACTOR)
    for turn in range(200):
        interval_along(intervals, Tier.HOST, course).settle(0.01 * math.exp(0.3 * math.sin(turn)))
    own = intervals.around(interval_along(intervals, Tier.HOST, course).shape_cell, 0.01)
    along = interval_along(intervals, Tier.HOST, course)
    assert (along.low_seconds, along.p50_seconds, along.high_seconds) == pytest.approx(
        (own.low_seconds, own.p50_seconds, own.high_seconds), rel=1e-3
    )


@given(st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(1.0, 200.0)), min_size=1, max_size=20))
def test_pooling_is_isotonic_regression(values: list[tuple[float, float]]) -> None:
    nodes = [Node(1.0, weight, (1.0, 1.0, 1.0)) for _, weight in values]
    pooled = copy_ranges._isotonic([seconds for seconds, _ in values], nodes)
    oracle = IsotonicRegression().fit_transform(
        np.arange(len(values)),
        np.log([seconds for seconds, _ in values]),
        sample_weight=[weight for _, weight in values],
    )
    assert np.log(pooled) == pytest.approx(oracle, abs=1e-9)


def test_no_size_is_beyond_the_octaves() -> None:
    for size in (0, 1, 1 << SMALLEST_OCTAVE, 1 << LARGEST_OCTAVE, 1 << 60):
        intervals = Intervals()
        interval_along(intervals, Tier.HOST, Course(size, 0.1, 0.0, PRIOR_FACTOR)).settle(0.2)
        found = range_along(
            nodes_of(intervals, Tier.HOST, PRIOR_FACTOR), Course(size, 0.1, 0.0, PRIOR_FACTOR)
        )
        assert is_ordered(found)
        assert found.p50 == pytest.approx(0.1, rel=0.5)


def test_an_engines_answers_rise_with_blocks_whatever_it_was_seen_to_do(told_story: Story) -> None:
    pipeline = told_story.pipeline
    estimates = EngineEstimates(pipeline.ranks[0], pipeline.moment)
    assert pipeline.ranks[0].forecaster.mover.model(*INTO_HBM).movers
    portions = [estimates.portion(Tier.HOST, blocks) for blocks in range(1, 200)]
    found = [
        estimates.load_seconds(Tier.HOST, portion.payload_bytes, portion.fragments)
        for portion in portions
    ]
    answers = [one for one in found if one is not None]
    assert len(answers) == len(found)
    assert all(map(is_ordered, answers))
    assert all(rises(*pair) for pair in pairwise(answers))
