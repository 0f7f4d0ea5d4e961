"""What a gate says of a policy, and on what evidence: reports that are kept and replayed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.policies import Finding, Mode, Policy, Scope


class Verdict(StrEnum):
    """Of one check, and of all; failures beat errors, errors beat doubt, doubt beats passes."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"  # the evidence itself is broken or missing


class Gate(StrEnum):
    """What must hold, in the order in which it is asked."""

    DATA = "data"
    ACCURACY = "accuracy"
    BENEFIT = "benefit"
    HARM = "harm"
    BITWISE = "bitwise"  # gpu_copy alone


class Check(msgspec.Struct, frozen=True):
    """One figure against its limits. None: unknown, or no limit on that side."""

    gate: Gate
    name: str
    verdict: Verdict
    value: float | None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    note: str = ""  # for a person: what is missing, which cells


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of one policy in one scope; the same records give the same bytes."""

    report_id: str  # digest of all below
    policy: Policy
    scope: Scope
    mode: Mode  # in which it was evaluated
    policy_version: str
    made_ingest: int
    made_seconds: float
    checks: tuple[Check, ...]
    verdict: Verdict
    conditions: dict[str, str]
    model_versions: tuple[str, ...] = ()
    calibration_id: str = ""
    engine_version: str = ""
    bad_cells: tuple[str, ...] = ()  # persistently wrong: outside the policy's scope
    finding: Finding | None = None  # why the policy has nothing to do here
