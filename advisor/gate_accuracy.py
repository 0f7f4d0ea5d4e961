"""The accuracy gate: forecasts that the policy decides by hold, in every shape that it meets. Pure.

Each shape cell with outcomes enough is judged on its own; a target is as good as its worst cell.
A cell fails where its limit is missed beyond doubt, and passes where its figure keeps it. Ranges
that are too wide have no limit of their own: what they hide shows in the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from kvready.advisor.binomial import share_bounds
from kvready.advisor.gate_evidence import TARGETS, CellEvidence, GateEvidence, SlowdownEvidence
from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.advisor.verdicts import Check, Gate, Verdict

MIN_CELL_PAIRS = 30  # told at as many moments; fewer say nothing of a cell
ALPHA = 0.005  # with which one cell is failed that keeps its limit
MIN_COVERAGE = 0.85  # of ranges that should hold 90 % of outcomes
MAX_MEDIAN_ERROR = math.log(1.30)
MAX_BIAS = math.log(1.15)
MIN_JUDGED = 0.80  # of a target's outcomes, in cells that can be judged
MIN_IN_SCOPE = 0.50  # of a target's outcomes, outside bad cells
MAX_SLOWDOWN_WIDTH = 1.30  # high over low of what loads cost batches
MAX_NAMED = 3

FACTOR = "ratio"


class Judged(NamedTuple):
    """One figure of one cell. Less is better."""

    cell: CellEvidence
    value: float
    verdict: Verdict


def accuracy_checks(evidence: GateEvidence) -> tuple[Check, ...]:
    """Three figures of each target, what they leave out, and how fast predictions go bad."""
    checks: list[Check] = []
    for target in TARGETS[evidence.policy]:
        cells = [cell for cell in evidence.cells if cell.target is target]
        judged = [cell for cell in cells if cell.moments >= MIN_CELL_PAIRS]
        checks += [
            _worst(target, "coverage", judged, _uncovered),
            _worst(target, "median_error", judged, _median_error),
            _worst(target, "bias", judged, _bias),
            _judged_share(target, cells, judged),
            _in_scope(target, cells, evidence.left_out.get(target, 0)),
        ]
    if evidence.policy is Policy.GPU_COPY:
        checks.append(_interference(evidence.slowdown))
    return (*checks, *evidence.burn)


def _uncovered(cell: CellEvidence) -> Judged:
    value = 1.0 - cell.covered / cell.scored
    covered = cell.covered if cell.covered_moments is None else cell.covered_moments
    _, high = share_bounds(covered, cell.moments, ALPHA)
    return Judged(cell, value, _verdict(value <= 1.0 - MIN_COVERAGE, high < MIN_COVERAGE))


def _median_error(cell: CellEvidence) -> Judged:
    sizes = [abs(error) for error in cell.errors]
    value = median(sizes)
    return Judged(
        cell, value, _verdict(value <= MAX_MEDIAN_ERROR, _mostly(cell, sizes, MAX_MEDIAN_ERROR))
    )


def _bias(cell: CellEvidence) -> Judged:
    value = median(cell.errors)
    reversed_errors = [-error for error in cell.errors]
    fails = _mostly(cell, cell.errors, MAX_BIAS) or _mostly(cell, reversed_errors, MAX_BIAS)
    return Judged(cell, abs(value), _verdict(abs(value) <= MAX_BIAS, fails))


def _mostly(cell: CellEvidence, errors: Sequence[float], limit: float) -> bool:
    """Whether more than half lie beyond a limit, beyond doubt: so does their median then."""
    beyond = cell.moments_with([error > limit for error in errors])
    return share_bounds(beyond, cell.moments, ALPHA)[0] > 0.5


def _verdict(keeps: bool, fails: bool) -> Verdict:
    if fails:
        return Verdict.FAIL
    return Verdict.PASS if keeps else Verdict.INCONCLUSIVE


def _worst(
    target: Target,
    name: str,
    cells: Sequence[CellEvidence],
    judge: Callable[[CellEvidence], Judged],
) -> Check:
    """A figure of a target: that of its worst cell, and which others fail."""
    limits = {
        "coverage": (MIN_COVERAGE, None, "ratio"),
        "median_error": (None, math.exp(MAX_MEDIAN_ERROR), FACTOR),
        "bias": (None, math.exp(MAX_BIAS), FACTOR),
    }
    at_least, at_most, unit = limits[name]
    found = sorted((judge(cell) for cell in cells), key=_badness, reverse=True)
    if not found:
        note = f"no shape has outcomes at {MIN_CELL_PAIRS} moments yet"
        verdict, value = Verdict.INCONCLUSIVE, None
    else:
        worst = found[0]
        verdict = worst.verdict
        value = 1.0 - worst.value if name == "coverage" else math.exp(min(worst.value, 700.0))
        failing = [one.cell.shape_cell for one in found if one.verdict is Verdict.FAIL]
        of_cell = f"{worst.cell.scored} pairs at {worst.cell.moments} moments"
        note = f"worst of {len(found)} shapes: {worst.cell.shape_cell} ({of_cell})"
        if len(failing) > 1:
            note += f"; {len(failing)} fail: {', '.join(failing[:MAX_NAMED])}"
    return Check(Gate.ACCURACY, f"{target}_{name}", verdict, value, at_least, at_most, unit, note)


def _badness(judged: Judged) -> tuple[int, float]:
    order = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)
    return order.index(judged.verdict), judged.value


def _judged_share(
    target: Target, cells: Sequence[CellEvidence], judged: Sequence[CellEvidence]
) -> Check:
    scored = sum(cell.scored for cell in cells)
    share = sum(cell.scored for cell in judged) / scored if scored else None
    keeps = share is not None and share >= MIN_JUDGED
    return Check(
        gate=Gate.ACCURACY,
        name=f"{target}_judged_share",
        verdict=Verdict.PASS if keeps else Verdict.INCONCLUSIVE,
        value=share,
        at_least=MIN_JUDGED,
        unit="ratio",
        note=f"in shapes with outcomes at {MIN_CELL_PAIRS} moments",
    )


def _in_scope(target: Target, cells: Sequence[CellEvidence], left_out: int) -> Check:
    inside = sum(cell.scored for cell in cells)
    share = inside / (inside + left_out) if inside + left_out else None
    fails = share is not None and share < MIN_IN_SCOPE and left_out >= MIN_CELL_PAIRS
    keeps = share is not None and share >= MIN_IN_SCOPE
    return Check(
        gate=Gate.ACCURACY,
        name=f"{target}_in_scope",
        verdict=_verdict(keeps, fails),
        value=share,
        at_least=MIN_IN_SCOPE,
        unit="ratio",
        note=f"{left_out} outcomes in shapes whose predictions are persistently bad",
    )


def _interference(slowdown: SlowdownEvidence | None) -> Check:
    """What loads cost decode batches, known well enough. It has no outcomes to be scored by."""
    width = slowdown.high / slowdown.low if slowdown and slowdown.low > 0.0 else None
    keeps = width is not None and width <= MAX_SLOWDOWN_WIDTH
    note = "too few decode batches beside loads, or without any"
    if slowdown is not None:
        note = f"x{slowdown.factor:.2f}, x{slowdown.low:.2f} to x{slowdown.high:.2f}"
    return Check(
        gate=Gate.ACCURACY,
        name="interference_width",
        verdict=Verdict.PASS if keeps else Verdict.INCONCLUSIVE,
        value=width,
        at_most=MAX_SLOWDOWN_WIDTH,
        unit=FACTOR,
        note=note,
    )
