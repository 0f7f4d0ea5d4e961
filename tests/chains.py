"""Chained block hashes for tests: equal names mean equal prefixes up to there."""

from __future__ import annotations

from collections.abc import Iterable


class Chains:
    """Names each prefix of a path by a number, as an engine's chained hashes do."""

    def __init__(self) -> None:
        self._names: dict[tuple[object, ...], int] = {}

    def chain(self, path: Iterable[object]) -> tuple[int, ...]:
        """One hash per step of the path."""
        steps = tuple(path)
        return tuple(
            self._names.setdefault(steps[: end + 1], 1_000 + len(self._names))
            for end in range(len(steps))
        )
