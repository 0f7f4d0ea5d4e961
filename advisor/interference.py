"""What loads cost the batches that run beside them: how much longer those take than quiet ones.

Each batch is held against what the compute model says of one of its shape; the slowdown is the
median of those ratios beside a load over the median of quiet batches. Its interval holds whatever
the ratios' distribution is. It is no target of its own: the time that one load costs is the
difference to a batch that did not happen, so there is no outcome that a forecast could be paired
with; and a batch's own scatter is larger than what a load does to it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from kvready.advisor.estimates import Between, Interference
from kvready.advisor.link_sharing import Span
from kvready.collectors.records import BatchFinished, BatchPlanned

WINDOW = 256  # batches of each kind
BESIDE_SHARE = 0.5  # of its duration, from which a batch counts as beside a load
MIN_BATCHES = 30  # on either side; fewer show nothing
# Both medians lie inside their own bounds this sure, so that their ratio lies inside its own with
# 95 % at least.
NORMAL_DEVIATIONS = 2.241
INTERVAL_COVERAGE = 0.95


class BatchKind(StrEnum):
    """What a batch does; loads may slow one down more than the other."""

    PREFILL = "prefill"
    DECODE = "decode"


class Slowdown(msgspec.Struct, frozen=True):
    """One kind of batch beside loads: its time over that of quiet ones; 1 is none."""

    kind: BatchKind
    factor: float
    low: float
    high: float
    beside_batches: int
    quiet_batches: int
    nominal_coverage_ratio: float = INTERVAL_COVERAGE


class Interferences:
    """Learns from finished batches of one rank."""

    def __init__(self) -> None:
        self._beside = {kind: _window() for kind in BatchKind}
        self._quiet = {kind: _window() for kind in BatchKind}

    def observe(
        self,
        batch: BatchPlanned,
        record: BatchFinished,
        predicted_seconds: float,
        loads: Iterable[Span],
    ) -> None:
        """Take in one batch; `loads` are when copies into HBM were under way."""
        begin, end = record.finished_seconds - record.duration_seconds, record.finished_seconds
        if end <= begin or predicted_seconds <= 0.0:
            return
        covered = _covered(begin, end, loads) / (end - begin)
        if 0.0 < covered < BESIDE_SHARE:
            return
        prefills = any(member.is_prefill for member in batch.members)
        kind = BatchKind.PREFILL if prefills else BatchKind.DECODE
        windows = self._beside if covered else self._quiet
        windows[kind].append(math.log((end - begin) / predicted_seconds))

    def slowdown(self, kind: BatchKind) -> Slowdown | None:
        """The estimate for one kind; None until there are batches enough of both sorts."""
        beside, quiet = sorted(self._beside[kind]), sorted(self._quiet[kind])
        if min(len(beside), len(quiet)) < MIN_BATCHES:
            return None
        low, middle, high = _median_bounds(beside)
        quiet_low, quiet_middle, quiet_high = _median_bounds(quiet)
        return Slowdown(
            kind,
            math.exp(middle - quiet_middle),
            math.exp(low - quiet_high),
            math.exp(high - quiet_low),
            len(beside),
            len(quiet),
        )

    @property
    def slowdowns(self) -> list[Slowdown]:
        """All that are known."""
        found = [self.slowdown(kind) for kind in BatchKind]
        return [one for one in found if one is not None]

    def measured(self) -> Interference:
        """As a decision asks for it: the factors with their bounds, no smaller than none."""
        prefill, decode = (self.slowdown(kind) for kind in BatchKind)
        return Interference(
            prefill_slowdown=max(1.0, prefill.factor) if prefill else None,
            decode_slowdown=max(1.0, decode.factor) if decode else None,
            prefill_slowdown_interval=_between(prefill),
            decode_slowdown_interval=_between(decode),
        )


def _between(slowdown: Slowdown | None) -> Between | None:
    if slowdown is None:
        return None
    return Between(max(1.0, slowdown.low), max(1.0, slowdown.high))


def _window() -> deque[float]:
    return deque(maxlen=WINDOW)


def _covered(begin: float, end: float, spans: Iterable[Span]) -> float:
    """Seconds between `begin` and `end` in which at least one span runs."""
    covered, reached = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            covered += stop - start
            reached = stop
    return covered


def _median_bounds(ordered: list[float]) -> tuple[float, float, float]:
    """The median of the law behind these, bounded by two of them (ranks of a fair coin)."""
    count = len(ordered)
    reach = NORMAL_DEVIATIONS * math.sqrt(count) / 2.0
    low = max(0, math.floor(count / 2.0 - reach) - 1)
    high = min(count - 1, math.ceil(count / 2.0 + reach))
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2.0
    return ordered[low], middle, ordered[high]
