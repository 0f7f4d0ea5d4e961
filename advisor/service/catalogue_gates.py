"""The part of the catalogue that tells what gates say."""

from __future__ import annotations

from kvready.advisor.constraint import Constraint
from kvready.advisor.demotion import PAIRS
from kvready.advisor.gate_names import CHECK_NAMES
from kvready.advisor.service.metric import POLICY, TARGET, Label, counter, gauge
from kvready.advisor.verdicts import Gate, Verdict

VERDICT = Label("verdict", tuple(Verdict))

GATES = (
    gauge("gate_verdict", "",
          "1 for the latest verdict of each policy's version in force, 0 for the others; all 0 "
          "until gates were asked.", POLICY, VERDICT),
    gauge("gate_check_value", "",
          "The latest figure of each check; its unit and limit are in the gate report.",
          POLICY, Label("check", CHECK_NAMES), sparse=True),
    gauge("gate_part_verdict", "", "1 for the latest verdict of each gate that was asked.",
          POLICY, Label("gate", tuple(Gate)), VERDICT, sparse=True),
    counter("gate_evaluations_total", "evaluations", "Times that gates were asked: each minute."),
    gauge("bad_prediction_ratio", "ratio",
          "Share of forecasts of the last hour that were off by more than a factor of two.",
          TARGET, sparse=True),
    gauge("bad_prediction_burn_ratio", "ratio",
          "How fast bad predictions use up their budget, in the better of a long and a short "
          "window: 1 uses it up exactly. Absent below 50 outcomes.",
          TARGET, Label("windows", tuple(pair.name for pair in PAIRS)), sparse=True),
    gauge("bad_prediction_objective_ratio", "ratio", "Share of forecasts that must be good."),
    gauge("bad_cells", "cells",
          "Shapes whose predictions are persistently bad: outside every policy's scope.", TARGET),
    gauge("serving_constraint", "",
          "1 for what the last minute of serving was bound by, 0 for the others.",
          Label("constraint", tuple(Constraint))),
    gauge("serving_stalled", "", "1 while requests wait and no batch runs."),
)  # fmt: skip
