"""A diagnosis for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvready.advisor.diagnosis import CoverageRow, Diagnosis, Finding, Severity
from kvready.collectors.records import Tier

STYLE = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def print_diagnosis(found: Diagnosis, console: Console) -> None:
    """Print what is seen, then findings with their fixes, then what is good to know."""
    version = found.version or "of a version that it does not tell"
    level = "none" if found.level is None else f"level {found.level}"
    console.print(
        Text.assemble(
            (f"vLLM {version}", "bold"), f"  {found.model}  {found.url}  {found.seconds:.0f} s"
        )
    )
    console.print(Text.assemble(("\nSeen", "bold"), (f"  {level}", "dim")))
    console.print(_coverage(found.coverage))
    if not found.busy:
        console.print(
            "Too little happened to tell a silent tap from an idle engine; run it again under "
            "traffic.",
            style="yellow",
        )
    if found.findings:
        console.print(Text(f"\nFindings: {len(found.findings)}", style="bold"))
        for finding in found.findings:
            _finding(finding, console)
    else:
        console.print(Text("\nNothing found.", style="green"))
    if found.notes:
        console.print(Text("\nGood to know", style="bold"))
        notes = Table.grid(padding=(0, 2))
        for note in found.notes:
            notes.add_row(Text(note.id, style="dim"), note.what)
        console.print(notes)
    step = found.next_level
    if step is not None:
        console.print(
            Text.assemble(("\nNext level", "bold"), f"  level {step.level} adds {step.adds}")
        )
        if step.because:
            console.print(Text.assemble(("  because  ", "dim"), step.because))
        console.print(Text.assemble(("  change   ", "dim"), step.change), soft_wrap=True)
        console.print(Text.assemble(("  risk     ", "dim"), step.risk))


def _coverage(rows: Sequence[CoverageRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("tap")
    table.add_column("rank", justify="right")
    table.add_column("state")
    for tier in Tier:
        table.add_column(tier.value, justify="right")
    for row in rows:
        table.add_row(row.tap, str(row.rank), row.state, *(row.tiers[tier] for tier in Tier))
    return table


def _finding(finding: Finding, console: Console) -> None:
    style = STYLE[finding.severity]
    console.print(Text.assemble((f"{finding.severity} ", style), (finding.id, "bold")))
    console.print(f"  {finding.what}", highlight=False)
    parts = Table.grid(padding=(0, 0, 0, 2))
    parts.add_row(Text("evidence", style="dim"), finding.evidence)
    parts.add_row(Text("cost", style="dim"), finding.cost)
    console.print(parts)
    # Not in the table: a flag must survive being copied.
    console.print(Text.assemble(("  change    ", "dim"), finding.fix), soft_wrap=True)
