"""The latest outcomes of each target and shape: what the accuracy gate judges. Bounded, pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from kvready.advisor.gate_evidence import CellEvidence, by_moment
from kvready.advisor.intervals import OTHER_SHAPES
from kvready.advisor.ledger import Forecast, Pair, PairState, Target
from kvready.collectors.records import CopyMethod

MAX_CELLS = 32  # of one target; further shapes share one
MAX_OUTCOMES = 512  # of one cell
MAX_AGE_SECONDS = 86_400.0
MAX_VERSIONS = 8  # of models, that are named
GRACE_SECONDS = 1e-3  # on both sides: no policy decides anything finer
UNTOLD = "untold"
# What forecasts of copies by different movers share nothing of.
BY_MOVER = frozenset({Target.LOAD, Target.FETCH})

Cell = tuple[Target, str]


class Outcome(NamedTuple):
    """One forecast, judged."""

    seconds: float  # when it was
    error: float  # logarithm of actual over predicted, after grace
    is_covered: bool


class CellScores:
    """Takes settled pairs in their order."""

    def __init__(self) -> None:
        self._cells: dict[Cell, deque[Outcome]] = {}
        self._counts: Counter[Target] = Counter()
        self._versions: dict[Target, str] = {}

    def take(self, pair: Pair, method: CopyMethod | None, now_seconds: float) -> Cell | None:
        """Add a pair; its cell, unless there is nothing to score."""
        judged = judged_pair(pair, now_seconds)
        if judged is None:
            return None
        cell = self._cell(pair.forecast, method)
        self._cells[cell].append(judged)
        self._versions[pair.forecast.target] = pair.forecast.model_version
        return cell

    def evidence(
        self, now_seconds: float, pending: Iterable[Forecast] = ()
    ) -> dict[Cell, CellEvidence]:
        """All cells as they stand. `pending`: forecasts whose outcome is overdue by now."""
        oldest = now_seconds - MAX_AGE_SECONDS
        late: dict[Cell, list[Outcome]] = {}
        for forecast in pending:
            cell = self._cell(forecast, None)
            late.setdefault(cell, []).append(overdue(forecast, now_seconds))
        found = {}
        for cell, outcomes in self._cells.items():
            while outcomes and outcomes[0].seconds < oldest:
                outcomes.popleft()
            judged = [*outcomes, *late.get(cell, ())]
            if judged:
                found[cell] = CellEvidence(
                    target=cell[0],
                    shape_cell=cell[1],
                    covered=sum(one.is_covered for one in judged),
                    errors=tuple(one.error for one in judged),
                    told_seconds=tuple(one.seconds for one in judged),
                    covered_moments=by_moment((one.seconds, one.is_covered) for one in judged),
                )
        return found

    def versions(self, targets: Iterable[Target]) -> tuple[str, ...]:
        """The models that made the latest forecasts of these."""
        found = {self._versions[target] for target in targets if target in self._versions}
        return tuple(sorted(found))[:MAX_VERSIONS]

    def forget(self) -> None:
        """Another engine runs now: what was learned of the one before says nothing of it."""
        self._cells.clear()
        self._counts.clear()
        self._versions.clear()

    def _cell(self, forecast: Forecast, method: CopyMethod | None) -> Cell:
        target, name = forecast.target, forecast.shape_cell
        if target in BY_MOVER:
            name = f"{name} by {method or UNTOLD}"
        if (target, name) not in self._cells:
            if self._counts[target] >= MAX_CELLS:
                name = OTHER_SHAPES
            if (target, name) not in self._cells:
                self._counts[target] += 1
                self._cells[target, name] = deque(maxlen=MAX_OUTCOMES)
        return target, name


def judged_pair(pair: Pair, now_seconds: float) -> Outcome | None:
    """A pair as an outcome; None: nothing to score. Aborted after its bound: as wrong as then."""
    forecast = pair.forecast
    if pair.state is PairState.PAIRED and pair.actual_seconds is not None:
        error = log_error(forecast.p50_seconds, pair.actual_seconds)
        return Outcome(now_seconds, error, bool(pair.covered))
    if pair.state is PairState.CENSORED and pair.missed:
        return overdue(forecast, now_seconds)
    return None


def overdue(forecast: Forecast, now_seconds: float) -> Outcome:
    """A forecast past its upper bound: the outcome will be at least its age."""
    age_seconds = max(now_seconds - forecast.starts_seconds, forecast.high_seconds)
    return Outcome(now_seconds, log_error(forecast.p50_seconds, age_seconds), False)


def log_error(predicted_seconds: float, actual_seconds: float) -> float:
    """Positive: reality took longer."""
    return math.log((actual_seconds + GRACE_SECONDS) / (predicted_seconds + GRACE_SECONDS))
