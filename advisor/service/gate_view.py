"""What gates say, as metrics tell it: verdicts, the figure of each check, bad predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvready.advisor.gate_names import CHECK_NAMES, check_name
from kvready.advisor.gates import combined
from kvready.advisor.ledger import Target
from kvready.advisor.policies import Scope
from kvready.advisor.verdicts import Gate

if TYPE_CHECKING:
    from kvready.advisor.pipeline import Pipeline
    from kvready.advisor.verdicts import GateReport

LONG_MINUTES = 60


def in_force(pipeline: Pipeline) -> list[GateReport]:
    """The latest report of each policy's version in force, everywhere."""
    latest = pipeline.gates.latest
    states = (state for state in pipeline.control.underlying if state.scope == Scope())
    found = (latest.get((one.policy, one.scope, one.version)) for one in states)
    return [report for report in found if report is not None]


def gate_values(pipeline: Pipeline) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the names of the catalogue, without their prefix."""
    gates, signals = pipeline.gates, pipeline.gates.signals
    reports = in_force(pipeline)
    known = frozenset(CHECK_NAMES)
    burns = signals.burns(pipeline)
    now = signals.now_seconds
    hours = {target: sums.window(LONG_MINUTES, now) for target, sums in signals.sums.items()}
    listed = signals.bad_cells.listed
    return {
        "gate_verdict": {(one.policy, one.verdict): 1 for one in reports},
        "gate_check_value": {
            (one.policy, check_name(check)): check.value
            for one in reports
            for check in one.checks
            if check.value is not None and check_name(check) in known
        },
        "gate_part_verdict": {
            (one.policy, gate, combined(asked)): 1
            for one in reports
            for gate in Gate
            if (asked := [check for check in one.checks if check.gate is gate])
        },
        "gate_evaluations_total": {(): gates.evaluations},
        "bad_prediction_ratio": {(t,): one.share for t, one in hours.items() if one.pairs},
        "bad_prediction_burn_ratio": {
            (one.target, one.pair.name): one.burn for one in burns if one.burn is not None
        },
        "bad_prediction_objective_ratio": {(): signals.objective},
        "bad_cells": {(target,): sum(one.target is target for one in listed) for target in Target},
        "serving_constraint": {(signals.constraints.latest,): 1},
        "serving_stalled": {(): float(gates.watch.is_stalled)},
    }
