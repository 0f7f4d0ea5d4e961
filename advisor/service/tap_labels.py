"""What each tap is called in metrics: the first few by their names, the others together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvready.advisor.bounded_names import OVERFLOW, BoundedNames
from kvready.collectors.collector import Coverage

MAX_SHOWN_TAPS = 12

TapChildren = dict[tuple[str, ...], float]


class TapLabels:
    """The labels of one sidecar's taps, in the order in which they are configured."""

    def __init__(self, taps: Iterable[str]) -> None:
        names = BoundedNames(MAX_SHOWN_TAPS)
        self._of = {tap: names.label(tap) for tap in taps}
        self.overflowed = names.overflowed

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label that is used."""
        return tuple(dict.fromkeys(self._of.values()))

    def of(self, tap: str) -> str:
        """The label of one tap."""
        return self._of.get(tap, OVERFLOW)

    def states(self, coverages: Sequence[Coverage]) -> TapChildren:
        """The state that each is in; several under one label may be in several."""
        return {(self.of(one.tap), one.state): 1.0 for one in coverages}

    def sums(self, counts: Iterable[tuple[str, float]]) -> TapChildren:
        """Counts by label."""
        return self._merged(counts, lambda one, other: one + other)

    def longest(self, seconds: Iterable[tuple[str, float]]) -> TapChildren:
        """The longest by label."""
        return self._merged(seconds, max)

    def _merged(
        self, values: Iterable[tuple[str, float]], merge: Callable[[float, float], float]
    ) -> TapChildren:
        merged: TapChildren = {}
        for tap, value in values:
            child = (self.of(tap),)
            merged[child] = merge(merged[child], value) if child in merged else value
        return merged
