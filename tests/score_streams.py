"""Streams of prediction errors with a known law, and how intervals are scored on them.

An outcome is (cell, log of actual over predicted). Cells differ in frequency, bias and scatter.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from statistics import mean, median
from typing import NamedTuple

from kvready.advisor.intervals import Intervals

CELLS = 6
NOMINAL = 0.90
SHIFT = math.log(2.0)
SKIPPED = 200  # outcomes at the start of a stream, not scored

Outcome = tuple[str, float]
Law = Callable[[random.Random, int], Iterator[Outcome]]


class _Shapes:
    """Cells drawn for one stream: the first is the most frequent."""

    def __init__(self, rng: random.Random) -> None:
        self.weights = [1.0 / (n + 1) ** 1.3 for n in range(CELLS)]
        self.bias = [rng.gauss(0.0, 0.25) for _ in range(CELLS)]
        self.scatter = [math.exp(rng.uniform(math.log(0.06), math.log(0.5))) for _ in range(CELLS)]

    def draw(self, rng: random.Random) -> int:
        return rng.choices(range(CELLS), self.weights)[0]


def _varying(
    noise: Callable[[random.Random], float] = lambda rng: rng.gauss(0.0, 1.0),
    shift: Callable[[float, int], float] = lambda share, cell: 0.0,
    scale: Callable[[float], float] = lambda share: 1.0,
) -> Law:
    def law(rng: random.Random, count: int) -> Iterator[Outcome]:
        shapes = _Shapes(rng)
        for n in range(count):
            cell, share = shapes.draw(rng), n / count
            error = shapes.bias[cell] + shapes.scatter[cell] * scale(share) * noise(rng)
            yield str(cell), error + shift(share, cell)

    return law


def _student(rng: random.Random) -> float:
    """Three degrees of freedom: one outcome in a hundred beyond 4.5 deviations of the core."""
    return 0.6 * rng.gauss(0.0, 1.0) / math.sqrt(rng.gammavariate(1.5, 2.0) / 3.0)


def _stationary(rng: random.Random, count: int) -> Iterator[Outcome]:
    return (("only", rng.gauss(0.1, 0.3)) for _ in range(count))


def _lingering(rng: random.Random, count: int) -> Iterator[Outcome]:
    shapes = _Shapes(rng)
    state = 0.0
    for _ in range(count):
        cell = shapes.draw(rng)
        state = 0.8 * state + 0.6 * rng.gauss(0.0, 1.0)
        yield str(cell), shapes.bias[cell] + shapes.scatter[cell] * state


LAWS: dict[str, Law] = {
    "stationary": _stationary,
    "cells": _varying(),
    "level shift": _varying(shift=lambda share, _: SHIFT * (share >= 0.5)),
    "scatter shift": _varying(scale=lambda share: 1.0 + (share >= 0.5)),
    "load shift": _varying(
        shift=lambda share, _: SHIFT * (share >= 0.5), scale=lambda share: 1.0 + (share >= 0.5)
    ),
    "one cell shifts": _varying(shift=lambda share, cell: SHIFT * (share >= 0.5 and cell == 0)),
    "slow drift": _varying(shift=lambda share, _: 4.0 * SHIFT * share),
    "heavy tails": _varying(noise=_student),
    "skewed": _varying(noise=lambda rng: rng.expovariate(1.0) - math.log(2.0)),
    "lingering": _lingering,
}
SHIFTS = ("level shift", "scatter shift", "load shift", "one cell shifts")


def stream(law: str, seed: int, count: int) -> list[Outcome]:
    """So many outcomes of a law."""
    return list(LAWS[law](random.Random(seed), count))


class Bounds(NamedTuple):
    """Low and high as logs of the factor on the prediction, with what learns the outcome."""

    low: float
    high: float
    learn: Callable[[float], None]


class Scored(NamedTuple):
    """How intervals did on a stream, per outcome and in order."""

    covered: list[bool]
    widths: list[float]  # high over low
    scores: list[float]  # interval score of the logs: width plus 2 / miss rate per unit missed by
    by_cell: dict[str, list[bool]]

    @property
    def coverage(self) -> float:
        """The share covered."""
        return mean(self.covered)

    @property
    def width(self) -> float:
        """The median of high over low."""
        return median(self.widths)

    @property
    def score(self) -> float:
        """The mean interval score; less is better."""
        return mean(self.scores)


def judge(
    outcomes: list[Outcome], ask: Callable[[str], Bounds], first: int = SKIPPED, last: int = -1
) -> Scored:
    """Ask before each outcome, tell after it; outcomes before `first` are not scored."""
    scored = Scored([], [], [], defaultdict(list))
    last = len(outcomes) if last < 0 else last
    for n, (cell, error) in enumerate(outcomes):
        bounds = ask(cell)
        bounds.learn(error)
        if first <= n < last:
            below, above = max(bounds.low - error, 0.0), max(error - bounds.high, 0.0)
            scored.covered.append(not below and not above)
            scored.widths.append(math.exp(bounds.high - bounds.low))
            penalty = 2.0 / (1.0 - NOMINAL) * (below + above)
            scored.scores.append(bounds.high - bounds.low + penalty)
            scored.by_cell[cell].append(scored.covered[-1])
    return scored


def asking(intervals: Intervals) -> Callable[[str], Bounds]:
    """Intervals as `judge` asks: in logs, around a prediction of one second."""

    def ask(cell: str) -> Bounds:
        interval = intervals.around(cell, 1.0)
        return Bounds(
            math.log(max(interval.low_seconds, 1e-9)),
            math.log(interval.high_seconds),
            lambda error: interval.settle(math.exp(error)),
        )

    return ask


class OneRollingRange:
    """The rival: split-conformal quantiles of the last 200 errors, whatever their shape."""

    def __init__(self, window: int = 200) -> None:
        self._recent: deque[float] = deque([-1.4, 1.4], maxlen=window)

    def ask(self, _cell: str) -> Bounds:
        """The bounds for the next outcome."""
        ordered = sorted(self._recent)
        count = len(ordered)
        low = max(0, math.floor(0.05 * (count + 1)) - 1)
        high = min(count - 1, math.ceil(0.95 * (count + 1)) - 1)
        return Bounds(ordered[low], ordered[high], self._recent.append)


class ConstantWidth:
    """The rival that knows the future: one width, around each prediction, that covers 90 %."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        sizes = sorted(abs(error) for _, error in outcomes)
        self._size = sizes[math.ceil(NOMINAL * len(sizes)) - 1]

    def ask(self, _cell: str) -> Bounds:
        """The bounds for any outcome."""
        return Bounds(-self._size, self._size, lambda error: None)
