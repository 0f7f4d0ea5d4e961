"""The part of the catalogue that tells what gates say."""

from __future__ import annotations

from kvready.advisor.gate_names import CHECK_NAMES
from kvready.advisor.service.metric import POLICY, Label, counter, gauge
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
)  # fmt: skip
