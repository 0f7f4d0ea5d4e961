"""Predictions beside what happened, as two pictures: how far off, and since when. Pure.

No colour says anything alone: what an interval held is a dot, what it did not is a diamond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from kvready.advisor.ledger import BAD_OFFSET_SECONDS, Pair
from kvready.advisor.report_text import format_seconds

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 10, 38
FLOOR_SECONDS = 1e-4  # on a logarithmic axis there is no zero
MAX_TIMES = 8.0  # off by more is drawn at the edge
TIMES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
TIME_TICKS = 4
DIAMOND = 4.5  # pixels from its middle to a corner


def scatter(pairs: Sequence[Pair]) -> str:
    """Actual over predicted, both in seconds on logarithmic axes; a line is the interval."""
    seconds = [s for pair in pairs for s in (pair.forecast.p50_seconds, _actual(pair))]
    low, high = _around(seconds)

    def x(value: float) -> float:
        return LEFT + _share(value, low, high) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - _share(value, low, high) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<path class="good-band" d="{_band(x, y, low, high)}"/>',
        *(_across(x(tick), _tick_text(tick)) for tick in _decades(low, high)),
        *(_up(y(tick), _tick_text(tick)) for tick in _decades(low, high)),
        f'<path class="even" d="M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"/>',
        *_labels("predicted", "actual"),
    ]
    for pair in reversed(pairs):
        forecast, at = pair.forecast, y(_actual(pair))
        left, right = x(forecast.low_seconds), x(forecast.high_seconds)
        parts.append(f'<path class="interval" d="M{left:.1f} {at:.1f}H{right:.1f}"/>')
        parts.append(_dot(pair, x(forecast.p50_seconds), at))
    return _picture("Actual over predicted", pairs, parts)


def over_time(pairs: Sequence[Pair]) -> str:
    """How many times slower than predicted, over the time that has passed since."""
    ends = [pair.forecast.starts_seconds + _actual(pair) for pair in pairs]
    newest = max(ends)
    span = max(newest - min(ends), 1.0)

    def x(end: float) -> float:
        return WIDTH - RIGHT - 6 - (newest - end) / span * (WIDTH - LEFT - RIGHT - 12)

    def y(times: float) -> float:
        bounded = min(max(times, 1 / MAX_TIMES), MAX_TIMES)
        share = (math.log(bounded) / math.log(MAX_TIMES) + 1.0) / 2.0
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    half, twice = y(0.5), y(2.0)
    parts = [
        f'<path class="good-band" d="M{LEFT} {half:.1f}H{WIDTH - RIGHT}V{twice:.1f}H{LEFT}Z"/>',
        *(_up(y(times), _times_text(times)) for times in TIMES),
        *(_across(x(end), _ago(newest - end, span)) for end in _moments(newest, span)),
        f'<path class="even" d="M{LEFT} {y(1.0):.1f}H{WIDTH - RIGHT}"/>',
        *_labels("before the newest outcome", "actual / predicted"),
    ]
    for pair, end in reversed(list(zip(pairs, ends, strict=True))):
        forecast = pair.forecast
        at = x(end)
        low, high = (
            y(_times(bound, forecast.p50_seconds))
            for bound in (forecast.low_seconds, forecast.high_seconds)
        )
        parts.append(f'<path class="interval" d="M{at:.1f} {low:.1f}V{high:.1f}"/>')
        parts.append(_dot(pair, at, y(_times(_actual(pair), forecast.p50_seconds))))
    return _picture("Times slower than predicted, over time", pairs, parts)


def said(pairs: Sequence[Pair]) -> str:
    """What both pictures show, in words."""
    covered = sum(bool(pair.covered) for pair in pairs)
    bad = sum(bool(pair.bad) for pair in pairs)
    return (
        f"The {len(pairs)} newest: {covered} inside their interval (dots), "
        f"{len(pairs) - covered} outside (diamonds), {bad} off by more than a factor of two"
    )


def _picture(title: str, pairs: Sequence[Pair], parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(f"{title}. {said(pairs)}")}">{"".join(parts)}</svg>'
    )


def _dot(pair: Pair, x: float, y: float) -> str:
    forecast = pair.forecast
    told = (
        f"{forecast.subject}: predicted {format_seconds(forecast.p50_seconds)} "
        f"({format_seconds(forecast.low_seconds)} to {format_seconds(forecast.high_seconds)}), "
        f"took {format_seconds(_actual(pair))}"
    )
    if pair.covered:
        mark = f'<circle class="held" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
    else:
        d = DIAMOND
        mark = f'<path class="not-held" d="M{x:.1f} {y - d:.1f}l{d} {d}l-{d} {d}l-{d} -{d}Z"/>'
    return f"<g><title>{escape(told)}</title>{mark}</g>"


def _actual(pair: Pair) -> float:
    assert pair.actual_seconds is not None
    return pair.actual_seconds


def _times(seconds: float, p50_seconds: float) -> float:
    """As predictions are judged: with grace on both sides."""
    return (seconds + BAD_OFFSET_SECONDS) / (p50_seconds + BAD_OFFSET_SECONDS)


def _times_text(times: float) -> str:
    return f"{times:g}x" if times >= 1.0 else f"1/{1 / times:g}"


def _around(seconds: Sequence[float]) -> tuple[float, float]:
    """Whole decades' halves around all of them, and never nothing."""
    low = math.log10(max(min(seconds), FLOOR_SECONDS))
    high = math.log10(max(max(seconds), FLOOR_SECONDS))
    low, high = math.floor(low * 2 - 0.1) / 2, math.ceil(high * 2 + 0.1) / 2
    return 10.0**low, 10.0 ** max(high, low + 1.0)


def _share(value: float, low: float, high: float) -> float:
    bounded = min(max(value, low), high)
    return math.log(bounded / low) / math.log(high / low)


def _decades(low: float, high: float) -> Iterator[float]:
    """1, and where there is room 3 of each decade."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0, 3.0) if last - first <= 2 else (1.0,)
    for power in range(first, last + 1):
        for factor in factors:
            if low * 0.999 <= (tick := factor * 10.0**power) <= high * 1.001:
                yield tick


def _moments(newest: float, span: float) -> Iterator[float]:
    for number in range(TIME_TICKS + 1):
        yield newest - span * number / TIME_TICKS


def _ago(seconds: float, span: float) -> str:
    if span < 180.0:
        return f"{seconds:.{0 if span > 8.0 else 1}f} s"
    return f"{seconds / 60.0:.0f} min" if span < 10_800.0 else f"{seconds / 3_600.0:.1f} h"


def _tick_text(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1.0 else f"{seconds * 1e3:g} ms"


def _band(x: Callable[[float], float], y: Callable[[float], float], low: float, high: float) -> str:
    """Between half and twice as predicted, with the grace that predictions are given."""
    grace = BAD_OFFSET_SECONDS
    steps = [low * (high / low) ** (number / 24) for number in range(25)]
    upper = [(x(one), y(2.0 * (one + grace) - grace)) for one in steps]
    lower = [(x(one), y((one + grace) / 2.0 - grace)) for one in reversed(steps)]
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in upper + lower) + "Z"


def _across(x: float, text: str) -> str:
    bottom = HEIGHT - BOTTOM
    return (
        f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>'
        f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{escape(text)}</text>'
    )


def _up(y: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _labels(across: str, up: str) -> Iterator[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    right, below = WIDTH - RIGHT, HEIGHT - 6
    yield f'<text class="axis" x="{right}" y="{below}" text-anchor="end">{across}</text>'
    yield (
        f'<text class="axis" text-anchor="middle" '
        f'transform="translate(11 {middle:.0f}) rotate(-90)">{up}</text>'
    )
