"""Names that traffic brings, bounded: the first few keep theirs, the others share one."""

from __future__ import annotations

OVERFLOW = "overflow"
UNNAMED = "untold"
MAX_NAME_CHARACTERS = 64


class BoundedNames:
    """Gives each name the label that it is counted under."""

    def __init__(self, limit: int) -> None:
        self.overflowed = 0  # times that a name got the shared label
        self._limit = limit
        self._known: dict[str, str] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """Those that stand for one name each, in the order in which they came."""
        return tuple(self._known)

    def label(self, name: str) -> str:
        """Its own, if it is among the first; a name that is too long, or like ours, is not."""
        if not name:
            return UNNAMED
        found = self._known.get(name)
        if found is not None:
            return found
        is_free = len(self._known) < self._limit and len(name) <= MAX_NAME_CHARACTERS
        if is_free and name not in (OVERFLOW, UNNAMED):
            self._known[name] = name
            return name
        self.overflowed += 1
        return OVERFLOW
