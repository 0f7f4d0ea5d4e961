"""Gate reports to move policies with: one check per gate, and ids that never repeat."""

from __future__ import annotations

from itertools import count

from kvready.advisor.policies import Finding, Mode, Policy, Scope
from kvready.advisor.verdicts import Check, Gate, GateReport, Verdict

_NUMBERS = count(1)


def gate_report(
    policy: Policy,
    mode: Mode,
    moment: tuple[int, float],
    verdict: Verdict = Verdict.PASS,
    gate: Gate = Gate.BENEFIT,
    scope: Scope = Scope(),  # noqa: B008 - frozen
    version: str = "1",
    finding: Finding | None = None,
) -> GateReport:
    """A report whose data gate passes, and one gate says `verdict`."""
    verdicts = {Gate.DATA: Verdict.PASS, gate: verdict}
    return GateReport(
        report_id=f"report-{next(_NUMBERS)}",
        policy=policy,
        scope=scope,
        mode=mode,
        policy_version=version,
        made_ingest=moment[0],
        made_seconds=moment[1],
        checks=tuple(Check(g, str(g), v, 1.0) for g, v in verdicts.items()),
        verdict=verdict,
        conditions={},
        finding=finding,
    )
