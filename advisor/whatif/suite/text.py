"""The suite for a terminal of 80 columns: the table, then why rows miss or agree weakly."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kvready.advisor.whatif.suite.ranges import Kind
from kvready.advisor.whatif.suite.rows import Row, Verdict
from kvready.advisor.whatif.suite.study import Held

STYLES = {Verdict.COVERED: "green", Verdict.MISSED: "red"}


def print_held(held: Held, console: Console) -> None:
    """Every row, every reason, and what was taken for granted."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("claim", overflow="fold", ratio=1)
    table.add_column("paper", justify="right", max_width=14)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in held.rows:
        style = "dim" if row.verdict is None else STYLES[row.verdict]
        verdict = Text(verdict_text(row), style=style)
        table.add_row(row.name, row.claim, row.paper, ours_text(row), range_text(row), verdict)
    reasons = Table.grid(padding=(0, 2))
    for row in held.rows:
        if row.why:
            reasons.add_row(Text(row.name, style="dim"), Text(row.why))
    unknowns = Table.grid(padding=(0, 2))
    for name, told in (*held.unknowns.items(), *held.held_fixed.items()):
        unknowns.add_row(Text(name.replace("_", " "), style="dim"), told)
    for name, told in held.corrections.items():
        unknowns.add_row(Text(f"corrected: {name}", style="dim"), told)
    console.print(
        Group(
            Text(f"Held against {held.paper}  {held.evidence}; {counts_text(held)}", style="bold"),
            table,
            _heading("Why"),
            reasons,
            _heading("Rule, fixed before the first run"),
            Text(held.rule),
            _heading("Unknowns and what was held fixed"),
            unknowns,
        )
    )


def counts_text(held: Held) -> str:
    """How many of the predictions are covered, and what the other rows are."""
    predictions = [row for row in held.rows if row.verdict is not None]
    covered = sum(row.verdict is Verdict.COVERED for row in predictions)
    inputs = sum(row.kind is Kind.INPUT for row in held.rows)
    untested = len(held.rows) - len(predictions) - inputs
    return (
        f"{covered} of {len(predictions)} predictions covered, {inputs} inputs, "
        f"{untested} not testable"
    )


def verdict_text(row: Row) -> str:
    """Of a prediction its verdict, of others what they are."""
    return row.kind.value if row.verdict is None else row.verdict.value


def ours_text(row: Row) -> str:
    """The middle setting's."""
    if row.held:
        return row.held
    return "-" if row.ours is None else _figure(row.ours, row.unit)


def range_text(row: Row) -> str:
    """Over all settings and readings."""
    if row.range is None or row.range[0] == row.range[1]:
        return ""
    low, high = row.range
    return f"{_figure(low, row.unit)} to {_figure(high, row.unit)}"


def _figure(value: float, unit: str) -> str:
    if unit == "%":
        shown = f"{value * 100:.1f}" if abs(value) < 0.1 else f"{value * 100:.0f}"
        return "0%" if float(shown) == 0.0 else f"{shown}%"
    return f"{value:.3g}" if value < 100.0 else f"{value:.1f}"


def _heading(title: str) -> Text:
    return Text("\n" + title, style="bold")
