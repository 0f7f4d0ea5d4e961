"""A range in seconds: a median and an interval around it, and how ranges add."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0)]


class Range(msgspec.Struct, frozen=True, gc=False):
    """`low <= p50 <= high`, in seconds; the interval holds the outcome as often as its nominal
    coverage says."""

    p50: Seconds
    low: Seconds
    high: Seconds


NOTHING = Range(0.0, 0.0, 0.0)


def exactly(seconds: float) -> Range:
    """A known duration."""
    return Range(seconds, seconds, seconds)


def ordered(p50: float, low: float, high: float) -> Range:
    """A range whose bounds hold its median, none of them below zero."""
    p50 = p50 if p50 > 0.0 else 0.0
    low = low if low > 0.0 else 0.0
    return Range(p50, low if low < p50 else p50, high if high > p50 else p50)


def total(*parts: Range) -> Range:
    """The sum. Bounds add as well: parts share the engine's pace, so that they err together, and
    where they do not the sum's interval is wider than it need be, never narrower."""
    p50 = low = high = 0.0
    for part in parts:
        p50 += part.p50
        low += part.low
        high += part.high
    return Range(p50, low, high)


def later(one: Range, other: Range) -> Range:
    """Until both are over."""
    return Range(max(one.p50, other.p50), max(one.low, other.low), max(one.high, other.high))


def beyond(whole: Range, part: Range) -> Range:
    """What `whole` takes beyond `part`, both at one pace."""
    return ordered(whole.p50 - part.p50, whole.low - part.low, whole.high - part.high)
