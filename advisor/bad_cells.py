"""Shapes whose predictions are persistently bad: listed with examples, outside every policy. Pure.

Windows of a quarter of an hour. In each, every cell with outcomes enough is tested against the
limits of the accuracy gate, and of all cells that stand out at most one in twenty does by chance. A
cell that does in 3 of its last 4 windows is listed until it no longer does.
"""

from __future__ import annotations

from collections import deque

import msgspec

from kvready.advisor.binomial import false_discoveries_bounded, tail_probability
from kvready.advisor.cell_evidence import MAX_CELLS, Cell, judged_pair
from kvready.advisor.gate_accuracy import MIN_COVERAGE
from kvready.advisor.gate_evidence import by_moment
from kvready.advisor.ledger import Pair, Target, is_bad
from kvready.advisor.shape_cells import told_cell

WINDOW_SECONDS = 900.0
MIN_PAIRS = 20  # of a cell in a window, told at as many moments; with fewer it does not count
MAX_COUNTED = 8_192  # outcomes of a cell in a window
BAD_WINDOWS = 3
LAST_WINDOWS = 4
FALSE_DISCOVERIES = 0.05  # of cells that stand out in a window
MAX_BAD = 0.05  # of predictions: the objective is 95 % good
MAX_EXAMPLES = 3
MAX_KNOWN = 2 * MAX_CELLS * len(Target)


class Example(msgspec.Struct, frozen=True):
    """A bad prediction of a bad cell. Seconds; `actual_seconds` of what was aborted: at least."""

    subject: str
    predicted_seconds: float
    actual_seconds: float
    made_seconds: float


class BadCell(msgspec.Struct, frozen=True):
    """A cell outside every policy's scope."""

    target: Target
    shape_cell: str
    bad_windows: int  # of its last 4
    examples: tuple[Example, ...]

    @property
    def name(self) -> str:
        """As reports name it."""
        return told_cell(self.target, self.shape_cell)


class _Window:
    """One cell's outcomes since the window began."""

    __slots__ = ("_bad", "_told_seconds", "_uncovered")

    def __init__(self) -> None:
        self._told_seconds: list[float] = []
        self._bad: list[bool] = []
        self._uncovered: list[bool] = []

    def take(self, now_seconds: float, bad: bool, is_covered: bool) -> None:
        """Count an outcome; beyond the bound a window is told by those before."""
        if len(self._bad) < MAX_COUNTED:
            self._told_seconds.append(now_seconds)
            self._bad.append(bad)
            self._uncovered.append(not is_covered)

    @property
    def moments(self) -> int:
        """At which its outcomes were told: those of one hang together."""
        return len(set(self._told_seconds))

    @property
    def p_value(self) -> float:
        """How often a cell that keeps both limits looks so bad: two tests, the odder one."""
        odd = min(
            tail_probability(self._moments_with(self._bad), self.moments, MAX_BAD),
            tail_probability(self._moments_with(self._uncovered), self.moments, 1.0 - MIN_COVERAGE),
        )
        return min(1.0, 2.0 * odd)

    def _moments_with(self, flags: list[bool]) -> int:
        return round(by_moment(zip(self._told_seconds, flags, strict=True)))


class BadCells:
    """Takes settled pairs, each with its cell, and closes windows as time passes."""

    def __init__(self) -> None:
        self.windows = 0
        self._began_seconds: float | None = None
        self._now: dict[Cell, _Window] = {}
        self._past: dict[Cell, deque[bool]] = {}
        self._examples: dict[Cell, deque[Example]] = {}

    def take(self, pair: Pair, cell: Cell, now_seconds: float) -> None:
        """Count a pair that was scored."""
        self.tick(now_seconds)
        judged = judged_pair(pair, now_seconds)
        if judged is None or (cell not in self._now and len(self._now) >= MAX_KNOWN):
            return
        window = self._now.setdefault(cell, _Window())
        forecast = pair.forecast
        actual = pair.actual_seconds
        if actual is None:
            actual = max(now_seconds - forecast.starts_seconds, forecast.high_seconds)
        bad = is_bad(forecast.p50_seconds, actual)
        window.take(now_seconds, bad, judged.is_covered)
        if bad or not judged.is_covered:
            if cell not in self._examples and len(self._examples) >= MAX_KNOWN:
                return
            examples = self._examples.setdefault(cell, deque(maxlen=MAX_EXAMPLES))
            examples.append(
                Example(forecast.subject, forecast.p50_seconds, actual, forecast.made_seconds)
            )

    def tick(self, now_seconds: float) -> None:
        """Let time pass."""
        if self._began_seconds is None:
            self._began_seconds = now_seconds
        elif now_seconds - self._began_seconds >= WINDOW_SECONDS:
            self._close()
            self._began_seconds = now_seconds

    @property
    def listed(self) -> list[BadCell]:
        """Those that are persistently bad, by name."""
        found = [
            BadCell(cell[0], cell[1], sum(past), tuple(self._examples.get(cell, ())))
            for cell, past in self._past.items()
            if sum(past) >= BAD_WINDOWS
        ]
        return sorted(found, key=lambda one: one.name)

    @property
    def cells(self) -> frozenset[Cell]:
        """The same, as cells."""
        return frozenset(cell for cell, past in self._past.items() if sum(past) >= BAD_WINDOWS)

    def forget(self) -> None:
        """Another engine runs now."""
        self._now.clear()
        self._past.clear()
        self._examples.clear()
        self._began_seconds = None

    def _close(self) -> None:
        told = [(cell, one) for cell, one in self._now.items() if one.moments >= MIN_PAIRS]
        odd = false_discoveries_bounded([one.p_value for _, one in told], FALSE_DISCOVERIES)
        for (cell, _), is_odd in zip(told, odd, strict=True):
            if cell not in self._past and len(self._past) >= MAX_KNOWN:
                continue
            self._past.setdefault(cell, deque(maxlen=LAST_WINDOWS)).append(is_odd)
        self._now.clear()
        self.windows += 1
