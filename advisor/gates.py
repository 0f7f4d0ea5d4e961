"""Gates: from evidence to checks, from checks to one verdict, from verdicts in a row to a report.

Pure. Failures beat errors, errors beat doubt, doubt beats passes. What may be chance must come up
again at the next evaluation before it counts: a failure twice in a row, a pass of all three times.
Measured harm and wrong bytes are sure already and count at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from kvready.advisor.gate_accuracy import accuracy_checks
from kvready.advisor.gate_benefit import benefit_checks
from kvready.advisor.gate_bitwise import bitwise_checks
from kvready.advisor.gate_data import data_checks
from kvready.advisor.gate_evidence import GateEvidence
from kvready.advisor.gate_harm import harm_checks
from kvready.advisor.policies import Finding, Mode, Policy, Scope
from kvready.advisor.verdicts import Check, Gate, GateReport, Verdict

FAILURES_IN_A_ROW = 2
PASSES_IN_A_ROW = 3
SURE = (Gate.HARM, Gate.BITWISE)  # one failure is enough
MAX_CHECKS = 64  # of one report
DIGEST_BYTES = 16

# The gravest first.
GRAVITY = (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASS)


class Subject(msgspec.Struct, frozen=True):
    """Whom a report is about, when."""

    policy: Policy
    scope: Scope
    mode: Mode
    version: str
    ingest: int
    seconds: float


class Basis(msgspec.Struct, frozen=True):
    """What its figures rest on."""

    conditions: dict[str, str]
    model_versions: tuple[str, ...] = ()
    calibration_id: str = ""
    engine_version: str = ""


class Row(msgspec.Struct):
    """What came up in a row, of one policy in one scope, version and mode."""

    failures: dict[tuple[Gate, str], int] = {}
    passes: int = 0


def checked(evidence: GateEvidence) -> tuple[tuple[Check, ...], Finding | None]:
    """All checks of one moment, in the order of the gates, each on its own."""
    benefit, finding = benefit_checks(evidence)
    checks = (
        *data_checks(evidence),
        *accuracy_checks(evidence),
        *benefit,
        *harm_checks(evidence),
        *bitwise_checks(evidence),
    )
    return tuple(_exact(check) for check in checks[:MAX_CHECKS]), finding


def combined(checks: Sequence[Check]) -> Verdict:
    """The gravest of all; of none: doubt."""
    found = {check.verdict for check in checks}
    return next((one for one in GRAVITY if one in found), Verdict.INCONCLUSIVE)


def settled(checks: Sequence[Check], row: Row) -> tuple[tuple[Check, ...], Verdict]:
    """The checks with what is not sure yet made doubt, and their verdict. Counts into the row."""
    failures: dict[tuple[Gate, str], int] = {}
    told = []
    for check in checks:
        if check.verdict is Verdict.FAIL and check.gate not in SURE:
            key = check.gate, check.name
            failures[key] = row.failures.get(key, 0) + 1
            if failures[key] < FAILURES_IN_A_ROW:
                note = f"fails {failures[key]} of {FAILURES_IN_A_ROW} times in a row"
                check = msgspec.structs.replace(
                    check,
                    verdict=Verdict.INCONCLUSIVE,
                    note=f"{note}; {check.note}" if check.note else note,
                )
        told.append(check)
    row.failures = failures
    verdict = combined(told)
    row.passes = row.passes + 1 if verdict is Verdict.PASS else 0
    if verdict is Verdict.PASS and row.passes < PASSES_IN_A_ROW:
        verdict = Verdict.INCONCLUSIVE
    return tuple(told), verdict


def report_of(evidence: GateEvidence, row: Row, subject: Subject, basis: Basis) -> GateReport:
    """One evaluation, which counts into the row."""
    raw, finding = checked(evidence)
    checks, verdict = settled(raw, row)
    fails = any(one.gate is Gate.BENEFIT and one.verdict is Verdict.FAIL for one in checks)
    conditions = dict(basis.conditions)
    if combined(checks) is Verdict.PASS:
        conditions["passes in a row"] = f"{min(row.passes, PASSES_IN_A_ROW)} of {PASSES_IN_A_ROW}"
    report = GateReport(
        report_id="",
        policy=subject.policy,
        scope=subject.scope,
        mode=subject.mode,
        policy_version=subject.version,
        made_ingest=subject.ingest,
        made_seconds=float(subject.seconds),
        checks=checks,
        verdict=verdict,
        conditions=conditions,
        model_versions=basis.model_versions,
        calibration_id=basis.calibration_id,
        engine_version=basis.engine_version,
        bad_cells=evidence.bad_cells,
        finding=finding if fails else None,
    )
    return msgspec.structs.replace(report, report_id=digest_of(report))


def _exact(check: Check) -> Check:
    """With figures as they are read back: a count is spelled as a number with a point too."""
    figures = {
        name: float(value)
        for name in ("value", "at_least", "at_most")
        if (value := getattr(check, name)) is not None
    }
    return msgspec.structs.replace(check, **figures)


def report_bytes(report: GateReport) -> bytes:
    """The one spelling of a report."""
    return msgspec.json.encode(report, order="deterministic")


def digest_of(report: GateReport) -> str:
    """Names a report by all that it says."""
    bare = msgspec.structs.replace(report, report_id="")
    return blake2b(report_bytes(bare), digest_size=DIGEST_BYTES).hexdigest()
