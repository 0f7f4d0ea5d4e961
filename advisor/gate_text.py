"""A gate report in words: what was asked, what was found, what would have passed. Pure."""

from __future__ import annotations

from kvready.advisor.bad_cells import LAST_WINDOWS, BadCell
from kvready.advisor.policies import Finding
from kvready.advisor.verdicts import Check, Gate, GateReport, Verdict

MARKS = {
    Verdict.PASS: "pass",
    Verdict.FAIL: "FAIL",
    Verdict.INCONCLUSIVE: "open",
    Verdict.ERROR: "ERROR",
}
SAYS = {
    Verdict.PASS: "all gates pass: a person may promote it",
    Verdict.FAIL: "a gate failed: what acts steps back",
    Verdict.INCONCLUSIVE: "nothing is proved yet: it stays where it is",
    Verdict.ERROR: "the evidence itself is broken: nothing is believed until it is mended",
}
FINDINGS = {
    Finding.NATIVE: "the engine does it already",
    Finding.NO_HOOK: "nothing in this engine could act on it",
    Finding.NO_BENEFIT: "what it relieves is not what this engine is bound by",
}
NAME_CHARACTERS = 30


def report_lines(report: GateReport) -> list[str]:
    """The whole report, gate by gate."""
    scope = "/".join((report.scope.engine, report.scope.pool, report.scope.request_class))
    where = "" if scope == "*/*/*" else f" in {scope}"
    lines = [
        f"{report.policy}{where}, version {report.policy_version}, in {report.mode}: "
        f"{report.verdict}",
        f"  {SAYS[report.verdict]}",
    ]
    if report.finding is not None:
        lines.append(f"  {report.finding}: {FINDINGS[report.finding]}")
    for gate in Gate:
        checks = [check for check in report.checks if check.gate is gate]
        if checks:
            lines.append(f"  {gate}")
            lines += [f"    {check_text(check)}" for check in checks]
    if report.bad_cells:
        lines.append(f"  out of scope, persistently bad: {', '.join(report.bad_cells)}")
    passes = report.conditions.get("passes in a row")
    if passes:
        lines.append(f"  passes in a row: {passes}")
    evidence = report.conditions.get("evidence", "unknown")
    engine = report.engine_version or "engine unknown"
    lines.append(f"  evidence: {evidence}; {engine}; models {', '.join(report.model_versions)}")
    lines.append(f"  report {report.report_id}, at record {report.made_ingest:,}")
    return lines


def summary_line(report: GateReport) -> str:
    """One line: the verdict, and the checks that keep it from passing."""
    worst = next(
        (v for v in (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE)
         if any(check.verdict is v for check in report.checks)),
        Verdict.PASS,
    )  # fmt: skip
    names = [c.name.replace("_", " ") for c in report.checks if c.verdict is worst]
    why = f": {', '.join(names)}" if worst is not Verdict.PASS else ""
    finding = f" ({report.finding})" if report.finding is not None else ""
    return f"{report.policy:9} {report.verdict}{finding}{why}"


def bad_cell_text(cell: BadCell) -> str:
    """A shape that is persistently bad, with its latest example."""
    told = f"{cell.name}, bad in {cell.bad_windows} of its last {LAST_WINDOWS} windows"
    if not cell.examples:
        return told
    last = cell.examples[-1]
    return (
        f"{told}; {last.subject} was foreseen to take {last.predicted_seconds:.3f} s and took "
        f"{last.actual_seconds:.3f} s"
    )


def check_text(check: Check) -> str:
    """One check: verdict, figure, limit, why."""
    value = "unknown" if check.value is None else figure(check.value, check.unit)
    limits = []
    if check.at_least is not None:
        limits.append(f"at least {figure(check.at_least, check.unit)}")
    if check.at_most is not None:
        limits.append(f"at most {figure(check.at_most, check.unit)}")
    limit = f" ({' and '.join(limits)})" if limits else ""
    note = f"; {check.note}" if check.note else ""
    name = check.name.replace("_", " ")
    return f"{MARKS[check.verdict]:5} {name:{NAME_CHARACTERS}} {value}{limit}{note}"


def figure(value: float, unit: str) -> str:
    """A figure with its unit, as short as it is exact enough."""
    if unit == "seconds":
        return f"{value:+.3f} s"
    text = f"{value:,.4g}"
    return text if unit in ("", "ratio") else f"{text} {unit}"
