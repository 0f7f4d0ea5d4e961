"""What changed between two pages of one engine: increments of counters, quantiles of histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from kvready.collectors.metrics_page import EngineReading, Histogram, MetricsPage, Reading, known


class Quantile(msgspec.Struct, frozen=True):
    """A quantile read from a histogram. It lies within the bucket; `estimate` assumes it even."""

    estimate_seconds: float
    above_seconds: float
    up_to_seconds: float | None  # None: beyond the last bound


class Shot(msgspec.Struct, frozen=True):
    """One scrape and when it was made, on our monotonic clock."""

    at_seconds: float
    page: MetricsPage


def is_one_life(shots: Iterable[Shot]) -> bool:
    """Whether no engine restarted or vanished between scrapes, so that differences mean something.

    A page without a start time shows a restart by a counter that went back.
    """
    for before, after in pairwise([shot.page for shot in shots]):
        if before.started_wall_seconds != after.started_wall_seconds:
            return False
        if set(before.engines) != set(after.engines):
            return False
        went_back = increment(before, after, lambda engine: engine.prompt_tokens)
        if went_back is not None and went_back < 0:
            return False
    return True


def increment(
    before: MetricsPage, after: MetricsPage, of: Callable[[EngineReading], Reading]
) -> float | None:
    """How much a counter grew over all engines; None where any of them does not tell.

    vLLM shows some counters only once they counted something: one that appears began at zero.
    """
    if not before.engines or set(before.engines) != set(after.engines):
        return None
    last = known(of(engine) for engine in after.engines.values())
    if last is None:
        return None
    first = [of(engine) for engine in before.engines.values()]
    began = known(0.0 if reading is None else reading for reading in first)
    return None if began is None else last - began


def histogram_increment(
    before: MetricsPage, after: MetricsPage, of: Callable[[EngineReading], Histogram | None]
) -> Histogram | None:
    """What a histogram gained over all engines; None where it is not there or changed shape."""
    last = [one for engine in after.engines.values() if (one := of(engine)) is not None]
    first = [one for engine in before.engines.values() if (one := of(engine)) is not None]
    if not last or len(last) != len(after.engines):
        return None
    bounds = last[0].bounds
    if any(one.bounds != bounds for one in first + last):
        return None
    return Histogram(
        bounds,
        tuple(
            sum(one.counts[n] for one in last) - sum(one.counts[n] for one in first)
            for n in range(len(bounds))
        ),
        sum(one.total for one in last) - sum(one.total for one in first),
    )


def quantile(histogram: Histogram, share: float) -> Quantile | None:
    """The value below which that share lies; None of an empty histogram."""
    if histogram.count <= 0:
        return None
    wanted = share * histogram.count
    lower, below = 0.0, 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if count >= wanted:
            if bound == float("inf"):
                return Quantile(lower, lower, None)
            within = (wanted - below) / (count - below) if count > below else 1.0
            return Quantile(lower + (bound - lower) * within, lower, bound)
        lower, below = bound, count
    return None
