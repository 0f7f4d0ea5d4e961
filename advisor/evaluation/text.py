"""The tables of an evaluation, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvready.advisor.evaluation.evaluation import FEW
from kvready.advisor.evaluation.notes import between_text
from kvready.advisor.evaluation.results import OWN, Evaluation, GroupKind, TargetEvaluation
from kvready.advisor.evaluation.results import Group as Samples
from kvready.advisor.load_priors import PriorKind
from kvready.advisor.report_text import format_seconds, format_width
from kvready.advisor.terminal import figures_table, heading


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Conditions, then each target beside its rivals and by shape, first loads, and remarks."""
    console.print(_conditions(evaluation))
    for target in evaluation.targets:
        console.print(Group(*_target(target)))
    if evaluation.first_loads:
        console.print(heading("First loads", "the first 50 of each mover, by what they start from"))
        console.print(_first_loads(evaluation))
    console.print(heading("To be read with it"))
    notes = Table.grid(padding=(0, 1))
    for note in evaluation.notes:
        notes.add_row("-", Text(note))
    console.print(notes)


def _conditions(evaluation: Evaluation) -> Group:
    """Of each recording, and of all but the first only where they differ from it."""
    rows: list[RenderableType] = []
    first = evaluation.recordings[0].conditions
    for number, recording in enumerate(evaluation.recordings):
        rows.append(
            heading(
                recording.name,
                f"{evaluation.evidence}; {recording.records:,} records; the last "
                f"{recording.scored_seconds:.0f} s are scored, what came before is learned from",
            )
        )
        table = Table.grid(padding=(0, 2))
        for name, value in recording.conditions.items():
            if number == 0 or first.get(name) != value:
                table.add_row(Text(name, style="dim"), Text(value))
        rows.append(table)
    return Group(*rows)


def _target(target: TargetEvaluation) -> Iterator[RenderableType]:
    whole = target.groups[0]
    unscored = ", ".join(f"{count} {state}" for state, count in target.unscored.items() if count)
    yield heading(
        target.target,
        f"{target.scored:,} scored, {target.learned:,} learned from"
        + (f"; not scored: {unscored}" if unscored else "")
        + f"; median {format_seconds(whole.median_actual_seconds)}"
        + _noise(whole),
    )
    yield _models(whole)
    if whole.against:
        yield Text("\nkvready's losses over each rival's: below 1 kvready is better", style="dim")
        yield _ratios(target)
    yield Text("\nby tier and by shape, kvready beside its best rival's p50 loss", style="dim")
    yield _cells(target)


def _noise(group: Samples) -> str:
    if group.repeat_difference_seconds is None:
        return ""
    apart = format_seconds(group.repeat_difference_seconds)
    return f"; {group.repeats:,} came twice, {apart} apart (noise floor)"


def _models(group: Samples) -> Table:
    heads = ("error", "|error|", "p50 loss", "p90 loss", "int.score", "cov", "hi/lo")
    table = _table("", *heads)
    for model, score in group.scores.items():
        table.add_row(
            Text(model, style="bold" if model == OWN else ""),
            _signed(score.median_signed_error_seconds),
            format_seconds(score.median_absolute_error_seconds),
            format_seconds(score.pinball_p50_seconds),
            format_seconds(score.pinball_p90_seconds),
            format_seconds(score.interval_score_seconds),
            f"{score.coverage_ratio:.0%}",
            format_width(score.median_width_ratio),
        )
    return table


def _ratios(target: TargetEvaluation) -> Table:
    table = _table("", "p50 loss", "p90 loss", "interval score")
    for group in target.groups:
        if group.against and group.kind is not GroupKind.ALL:
            table.add_row(Text(group.name, style="dim"))
        for against in group.against:
            table.add_row(
                against.rival,
                between_text(against.pinball_p50),
                between_text(against.pinball_p90),
                between_text(against.interval_score),
            )
    return table


def _cells(target: TargetEvaluation) -> Table:
    table = _table("", "n", "error", "|error|", "noise", "cov", "hi/lo", "p50 loss", "best")
    for group in target.groups[1:]:
        own = group.scores[OWN]
        others = [s.pinball_p50_seconds for model, s in group.scores.items() if model != OWN]
        noise = group.repeat_difference_seconds
        table.add_row(
            group.name,
            str(group.samples),
            _signed(own.median_signed_error_seconds),
            format_seconds(own.median_absolute_error_seconds),
            "-" if noise is None else format_seconds(noise),
            f"{own.coverage_ratio:.0%}",
            format_width(own.median_width_ratio),
            format_seconds(own.pinball_p50_seconds),
            format_seconds(min(others)) if others else "-",
            style="dim" if group.samples < FEW else "",
        )
    return table


def _first_loads(evaluation: Evaluation) -> Table:
    table = _table("", "n", "|error|", "relative", "int.score", "cov")
    previous = None
    for row in evaluation.first_loads:
        way = f"{row.target} from {row.source} by {row.mover}"
        if way != previous:
            table.add_row(Text(way, style="dim"))
        previous = way
        table.add_row(
            "none: a generic link" if row.evidence is PriorKind.GENERIC else row.starts_from,
            str(row.copies),
            format_seconds(row.median_absolute_error_seconds),
            f"{row.median_absolute_relative_error:.0%}",
            format_seconds(row.interval_score_seconds),
            f"{row.coverage_ratio:.0%}",
        )
    return table


def _table(first: str, *heads: str) -> Table:
    table = figures_table()
    table.add_column(first)
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "") + format_seconds(seconds)
