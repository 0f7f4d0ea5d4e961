"""From runs to the figure that stands beside the paper's. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product

import msgspec

from kvready.advisor.whatif.comparison import Point as CurvePoint
from kvready.advisor.whatif.comparison import throughput_at
from kvready.advisor.whatif.suite.cases import AT, case_name
from kvready.advisor.whatif.suite.ranges import Claim, Readings
from kvready.advisor.whatif.suite.runs import ALL_AT_ONCE, Point
from kvready.advisor.whatif.summary import CountedFrom

Points = Mapping[str, Sequence[Sequence[Point]]]  # by case, then by setting


class Measured(msgspec.Struct, frozen=True):
    """Ours. `middle` is of the middle setting and reading, the range of all."""

    middle: float | None = None
    low: float | None = None
    high: float | None = None
    held: int | None = None  # of an order: in so many
    settings: int = 0  # of so many
    holds: bool | None = None  # in the middle setting
    unread: int = 0  # readings without a value: a curve lies above the TTFT level


def measured(claim: Claim, points: Points, readings: Readings) -> Measured:
    """The figure of a claim that runs tell."""
    if claim.measure == "order":
        return _order(claim, points, readings)
    read = READERS[claim.measure]
    by_setting = [
        list(read([points[case_name(of)][number] for of in claim.of], readings))
        for number in range(len(points[case_name(claim.of[0])]))
    ]
    every = [value for values in by_setting for value in values]
    told = [value for value in every if value is not None]
    if not told:
        return Measured(unread=len(every), settings=len(by_setting))
    middle = by_setting[0][_middle(claim.measure, len(by_setting[0]))]
    return Measured(
        middle, min(told), max(told), settings=len(by_setting), unread=len(every) - len(told)
    )


def only(value: float) -> Measured:
    """A figure that depends on no unknown."""
    return Measured(value, value, value)


Read = Callable[[Sequence[Sequence[Point]], Readings], Iterator[float | None]]


def _ratio_at_ttft(of: Sequence[Sequence[Point]], readings: Readings) -> Iterator[float | None]:
    for start, level in product(readings.counted_from, readings.ttft_seconds):
        ours, base = (_throughput(points, level, start) for points in of)
        yield ours / base if ours is not None and base is not None else None


def _throughput(points: Sequence[Point], level: float, start: CountedFrom) -> float | None:
    curve = [
        CurvePoint(point.rate, point.ttft_mean[start], point.output_rate, 0.0, 0.0)
        for point in points
    ]
    return throughput_at(curve, level)[0]


def _ratio_of_peaks(of: Sequence[Sequence[Point]], _readings: Readings) -> Iterator[float | None]:
    yield _peak(of[0]) / _peak(of[1])


def _gain_of_peaks(of: Sequence[Sequence[Point]], _readings: Readings) -> Iterator[float | None]:
    yield _peak(of[0]) / _peak(of[1]) - 1.0


def _hit_share(of: Sequence[Sequence[Point]], _readings: Readings) -> Iterator[float | None]:
    yield of[0][-1].hit_share


def _hit_share_lost(of: Sequence[Sequence[Point]], _readings: Readings) -> Iterator[float | None]:
    yield of[1][-1].hit_share - of[0][-1].hit_share


def _stall_share(of: Sequence[Sequence[Point]], _readings: Readings) -> Iterator[float | None]:
    for point in of[0]:
        yield point.stall_share


def _worst_stall(of: Sequence[Sequence[Point]], _readings: Readings) -> Iterator[float | None]:
    yield max(point.stall_share for point in of[0])


def _ratio_of_mean_ttft(
    of: Sequence[Sequence[Point]], _readings: Readings
) -> Iterator[float | None]:
    for ours, base in zip(*of, strict=True):
        yield ours.ttft_mean[CountedFrom.ARRIVAL] / base.ttft_mean[CountedFrom.ARRIVAL]


def _ratio_of_p90_ttft(
    of: Sequence[Sequence[Point]], _readings: Readings
) -> Iterator[float | None]:
    for ours, base in zip(*of, strict=True):
        yield ours.ttft_p90 / base.ttft_p90


def _change_of_ttft(of: Sequence[Sequence[Point]], readings: Readings) -> Iterator[float | None]:
    for ratio in _ratio_of_mean_ttft(of, readings):
        yield None if ratio is None else ratio - 1.0


READERS: dict[str, Read] = {
    "ratio_at_ttft": _ratio_at_ttft,
    "ratio_of_peaks": _ratio_of_peaks,
    "gain_of_peaks": _gain_of_peaks,
    "hit_share": _hit_share,
    "hit_share_lost": _hit_share_lost,
    "stall_share": _stall_share,
    "worst_stall_share": _worst_stall,
    "ratio_of_mean_ttft": _ratio_of_mean_ttft,
    "ratio_of_p90_ttft": _ratio_of_p90_ttft,
    "change_of_mean_ttft": _change_of_ttft,
}


def _middle(measure: str, readings: int) -> int:
    """Which of a setting's readings is the one figure: the middle level or rate; all at once."""
    if measure == "ratio_at_ttft":
        return 1
    return readings - 1 if measure == "stall_share" else readings // 2


def _order(claim: Claim, points: Points, readings: Readings) -> Measured:
    """In how many settings each is below the next times the claim's factor."""
    value = QUANTITIES[claim.quantity]
    holds = []
    for number in range(len(points[case_name(claim.of[0])])):
        chain = [
            value(points[case_name(of)][number], of.partition(AT)[2], readings) for of in claim.of
        ]
        holds.append(all(less < claim.factor * more for less, more in pairwise(chain)))
    return Measured(held=sum(holds), settings=len(holds), holds=holds[0])


def _peak(points: Sequence[Point]) -> float:
    return max(point.output_rate for point in points)


def _at(points: Sequence[Point], rate: float) -> Point:
    return next(point for point in points if math.isclose(point.rate, rate))


Quantity = Callable[[Sequence[Point], str, Readings], float]
QUANTITIES: dict[str, Quantity] = {
    "peak": lambda points, _rate, _readings: _peak(points),
    "hit_share": lambda points, _rate, _readings: points[-1].hit_share,
    "low_ttft": lambda points, _rate, readings: _at(points, readings.low_rate).ttft_mean[
        CountedFrom.ADMISSION
    ],
    "saturated_stall_share": lambda points, _rate, _readings: _at(points, ALL_AT_ONCE).stall_share,
    "twice_share": lambda points, rate, _readings: _at(points, float(rate)).twice_share,
}
