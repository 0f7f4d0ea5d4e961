"""Prediction intervals that hold: conformal ranges by shape cell, corrected as outcomes come.

The score of an outcome is the log of actual over predicted. Each target has a pool, each shape in
it a cell. A score is taken apart into the pool's level (the whole machine slows down), the cell's
offset from it (this shape is predicted badly) and what is left, in units of the cell's usual
spread. All cells share one window of those standard scores, so a cell with few outcomes has a
range at once; one with many outcomes uses more and more of its own. Level, offset and spread are
those of the moment of the forecast, so the standard scores are out of sample, and their ranks give
split-conformal bounds, no further off than any prediction of the target has been of late. Each
cell's two tails then adapt to how often they missed (ACI).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kvready.advisor.drift import DriftAlarm
from kvready.advisor.ledger import NOMINAL_COVERAGE
from kvready.advisor.rolling import Held, RollingScores

MAX_CELLS = 32  # per target; further shapes share one
OTHER_SHAPES = "other"

WINDOW = 200  # standard scores of the pool, and of each cell
LEVEL_WINDOW = 32  # scores that the pool's level and spread follow
CELL_WINDOW = 100  # scores that a cell's offset and spread follow
MIN_OWN_SCORES = 19  # fewer cannot tell a tail of 5 %
INHERITED_OUTCOMES = 8.0  # so many outcomes weigh as much as what is inherited
OWN_QUANTILE_OUTCOMES = 100.0  # at so many a cell's own quantile weighs half
EARNED_OVER = 32.0  # outcomes over which a correction must have brought predictions nearer
LARGEST_VOTE = 0.1  # by which one outcome speaks for or against corrections
WARM_UP_OUTCOMES = 20  # the first ones judge a model that each of them has changed since
ADAPT_RATE = 0.01  # of a tail, per outcome
NARROWEST_TAIL = 0.08  # of the nominal one
WIDEST_TAIL = 3.0

FLOOR_SECONDS = 5e-3  # added to both sides of the ratio: a fifth of what a prediction may be off
SMALLEST_SPREAD = 0.01
LARGEST_SCORE = math.log(1_000.0)
PRIOR_FACTOR = 4.0  # before any outcome the truth is held to lie within so many times, either way

# Before outcomes the standard scores are those of a Laplace distribution of spread 1, in an order
# that leaves it balanced while real ones replace it.
_LAPLACE_SCALE = 1.349 / (2.0 * math.log(2.0))
_SEED_TAILS = [(7 * n % MIN_OWN_SCORES + 1) / (MIN_OWN_SCORES + 1) for n in range(MIN_OWN_SCORES)]
SEEDS = tuple(
    _LAPLACE_SCALE * (math.log(2.0 * t) if t < 0.5 else -math.log(2.0 * (1.0 - t)))
    for t in _SEED_TAILS
)

# Where one score stands: the window, what was known of it (centre and spread), and its member.
Place = tuple[RollingScores, float, float, Held]


class Intervals:
    """Turns one target's point predictions into intervals, and learns from each outcome once."""

    def __init__(
        self, prior_factor: float = PRIOR_FACTOR, nominal_coverage: float = NOMINAL_COVERAGE
    ) -> None:
        self.tail = (1.0 - nominal_coverage) / 2.0
        self.drift = DriftAlarm()
        self._prior_spread = _spread_of(prior_factor)
        self._levels = RollingScores(LEVEL_WINDOW)
        self._standard = RollingScores(WINDOW, SEEDS)
        self._unlevelled = RollingScores(WINDOW)  # standard scores but for the level: for drift
        self._scores = RollingScores(WINDOW)  # as they are: how far off anything has been
        self._cells: dict[str, Cell] = {}
        self._earned = 0.0
        self._outcomes = 0

    def around(self, shape_cell: str, predicted_seconds: float) -> Interval:
        """The prediction, corrected, with its bounds; hand the outcome to what is returned."""
        return Interval(self, shape_cell, self.frame(shape_cell), predicted_seconds)

    def frame(self, shape_cell: str, prior_factor: float | None = None) -> Frame:
        """How far predictions of a shape are off; `prior_factor` stands for the target's own."""
        cell = self._cells.get(self._name(shape_cell)) or Cell(self.tail)
        prior = self._prior_spread if prior_factor is None else _spread_of(prior_factor)
        spread = _spread(cell.offsets, _spread(self._levels, prior))
        low = self._standard.lower(cell.low_tail)
        middle = self._standard.median()
        high = self._standard.upper(cell.high_tail)
        own, share = cell.standard, cell.own_share
        if share:
            low += share * (own.lower(cell.low_tail) - low)
            middle += share * (own.median() - middle)
            high += share * (own.upper(cell.high_tail) - high)
        proposed = _centre(self._levels) + _centre(cell.offsets)
        corrected = self._earned > 0.0
        if not corrected:
            middle = 0.0
        centre = proposed if corrected else 0.0
        if len(self._scores) >= MIN_OWN_SCORES:
            # An outlier of a finely predicted shape counts many spreads: in those of a coarse one
            # it would be a factor of hundreds. So far off nothing has been.
            rarest = NARROWEST_TAIL * self.tail
            low = max(low, (self._scores.lower(rarest) - centre) / spread)
            high = min(high, (self._scores.upper(rarest) - centre) / spread)
        return Frame(
            proposed,
            centre,
            spread,
            min(low, middle),
            middle,
            max(high, middle),
        )

    def outcomes(self, shape_cell: str) -> int:
        """How many outcomes of late are held of a shape."""
        cell = self._cells.get(self._name(shape_cell))
        return len(cell.standard) if cell is not None else 0

    def upper_score(self, shape_cell: str, tail: float) -> float:
        """The standard score that outcomes exceed so often, adapted as the upper bound is."""
        cell = self._cells.get(self._name(shape_cell)) or Cell(self.tail)
        adapted = min(tail * cell.high_tail / self.tail, 0.5)
        score = self._standard.upper(adapted)
        share = cell.own_share
        return score + share * (cell.standard.upper(adapted) - score) if share else score

    def take(self, interval: Interval, score: float, missed: bool) -> list[Place]:
        """Put an outcome's score wherever it belongs; returns the places, for corrections."""
        cell, frame = self.cell(interval.shape_cell), interval.frame
        level, offset = _centre(self._levels), _centre(cell.offsets)
        rank = self._unlevelled.rank((score - offset) / frame.spread)
        places = [
            _put(self._levels, offset, 1.0, score),
            _put(self._scores, 0.0, 1.0, score),
            _put(self._unlevelled, offset, frame.spread, score),
            _put(self._standard, frame.centre, frame.spread, score),
            _put(cell.standard, frame.centre, frame.spread, score),
        ]
        self._outcomes += 1
        if self._outcomes > WARM_UP_OUTCOMES:
            self.drift.add(rank, missed, self._levels.median())
            places.append(_put(cell.offsets, level, 1.0, score))
            nearer = abs(score) - abs(score - frame.proposed)
            self._earned *= 1.0 - 1.0 / EARNED_OVER
            self._earned += min(max(nearer, -LARGEST_VOTE), LARGEST_VOTE)
        return places

    def cell(self, shape_cell: str) -> Cell:
        """The cell of a shape that had an outcome; questions alone make none."""
        name = self._name(shape_cell)
        found = self._cells.get(name)
        if found is None:
            found = self._cells[name] = Cell(self.tail)
        return found

    def bounded(self, tail: float) -> float:
        """A tail's rate of misses, kept near the nominal one."""
        return min(max(tail, NARROWEST_TAIL * self.tail), WIDEST_TAIL * self.tail, 0.5)

    def _name(self, shape_cell: str) -> str:
        known = shape_cell in self._cells or len(self._cells) < MAX_CELLS - 1
        return shape_cell if known else OTHER_SHAPES


class Cell:
    """What is known of one shape's errors."""

    __slots__ = ("high_tail", "low_tail", "offsets", "standard")

    def __init__(self, tail: float) -> None:
        self.offsets = RollingScores(CELL_WINDOW)
        self.standard = RollingScores(WINDOW)
        self.low_tail = self.high_tail = tail

    @property
    def own_share(self) -> float:
        """How far its own quantiles count beside the pool's."""
        scores = len(self.standard)
        return scores / (scores + OWN_QUANTILE_OUTCOMES) if scores >= MIN_OWN_SCORES else 0.0


class Frame(NamedTuple):
    """What was known of a cell's errors at a moment; bounds are standard scores."""

    proposed: float  # the correction that scores so far suggest
    centre: float  # the one that is made: none, unless such proposals have helped of late
    spread: float
    low: float
    middle: float
    high: float

    def factor(self, standard_score: float) -> float:
        """What a prediction beyond the floor is multiplied by at a score."""
        score = self.centre + self.spread * standard_score
        return math.exp(min(max(score, -LARGEST_SCORE), LARGEST_SCORE))


class Interval:
    """A prediction with its bounds in seconds; told of the outcome, it teaches its cell."""

    __slots__ = (
        "_intervals",
        "_places",
        "_predicted",
        "frame",
        "high_seconds",
        "low_seconds",
        "p50_seconds",
        "shape_cell",
    )

    def __init__(
        self, intervals: Intervals, shape_cell: str, frame: Frame, predicted_seconds: float
    ) -> None:
        self._intervals = intervals
        self._places: list[Place] = []
        self._predicted = max(predicted_seconds, 0.0) + FLOOR_SECONDS
        self.shape_cell = shape_cell
        self.frame = frame
        self.p50_seconds = self._seconds(frame.middle)
        self.low_seconds = self._seconds(frame.low)
        self.high_seconds = self._seconds(frame.high)

    def around(self, predicted_seconds: float) -> Interval:
        """The same, as things stood when it was made, around another prediction."""
        return Interval(self._intervals, self.shape_cell, self.frame, predicted_seconds)

    def exceeded_seconds(self, share: float) -> float:
        """The bound that the outcome exceeds so often, between median and upper bound.

        By what is known when it is asked: ask at the moment of the forecast.
        """
        score = self._intervals.upper_score(self.shape_cell, share)
        return self._seconds(min(max(score, self.frame.middle), self.frame.high))

    def overdue(self, at_least_seconds: float) -> None:
        """No outcome yet, and already longer than the bounds allow: a miss from this moment on."""
        if self._places:
            self._correct(at_least_seconds)
        else:
            self._learn(at_least_seconds, high_miss=True, low_miss=False)

    def settle(self, actual_seconds: float) -> None:
        """The outcome, once."""
        if not self._places:
            high_miss = actual_seconds > self.high_seconds
            self._learn(actual_seconds, high_miss, actual_seconds < self.low_seconds)
            return
        self._correct(actual_seconds)
        if actual_seconds <= self.high_seconds:  # news of it came late, not the outcome
            cell = self._intervals.cell(self.shape_cell)
            cell.high_tail = self._intervals.bounded(cell.high_tail + ADAPT_RATE)

    def _learn(self, seconds: float, high_miss: bool, low_miss: bool) -> None:
        owner, cell = self._intervals, self._intervals.cell(self.shape_cell)
        cell.high_tail = owner.bounded(cell.high_tail + ADAPT_RATE * (owner.tail - high_miss))
        cell.low_tail = owner.bounded(cell.low_tail + ADAPT_RATE * (owner.tail - low_miss))
        self._places = owner.take(self, self._score(seconds), high_miss or low_miss)

    def _correct(self, seconds: float) -> None:
        score = self._score(seconds)
        for window, centre, spread, held in self._places:
            window.replace(held, (score - centre) / spread)

    def _score(self, actual_seconds: float) -> float:
        score = math.log((max(actual_seconds, 0.0) + FLOOR_SECONDS) / self._predicted)
        return min(max(score, -LARGEST_SCORE), LARGEST_SCORE)

    def _seconds(self, standard_score: float) -> float:
        return max(self._predicted * self.frame.factor(standard_score) - FLOOR_SECONDS, 0.0)


def _put(window: RollingScores, centre: float, spread: float, score: float) -> Place:
    return window, centre, spread, window.add((score - centre) / spread)


def _spread_of(factor: float) -> float:
    """The spread at which seeded bounds lie so many times away, either way."""
    return math.log(factor) / max(SEEDS)


def _trust(outcomes: int) -> float:
    """How much so many outcomes weigh beside what is inherited."""
    return outcomes / (outcomes + INHERITED_OUTCOMES)


def _centre(scores: RollingScores) -> float:
    """By how much, in logarithms, things take longer than predicted, as far as to be trusted."""
    return _trust(len(scores)) * scores.median() if len(scores) else 0.0


def _spread(scores: RollingScores, inherited: float) -> float:
    """How far scores scatter: what is inherited while they are few."""
    count = len(scores)
    if count < 2:
        return inherited
    measured = max(scores.spread(), SMALLEST_SPREAD)
    trust = _trust(count)
    return math.exp(trust * math.log(measured) + (1.0 - trust) * math.log(inherited))
