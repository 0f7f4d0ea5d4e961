"""The report for a terminal."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kvready.advisor.backcasts import BackcastState
from kvready.advisor.contract import Evidence
from kvready.advisor.copy_model import CopyCalibration
from kvready.advisor.drift import DriftKind
from kvready.advisor.gate_text import bad_cell_text, summary_line
from kvready.advisor.interference import Slowdown
from kvready.advisor.report import BackcastScore, Drift, Hits, Report
from kvready.advisor.shadow import Compared
from kvready.advisor.terminal import figures_table, heading
from kvready.advisor.waits import WaitState
from kvready.advisor.would_be import WouldBe, saving_text
from kvready.collectors.records import TapState

BAR_CELLS = 40
WIDEST_SHOWN = 99.0


def print_report(report: Report, console: Console) -> None:
    """Print a report in the order in which it is read: conditions, predictions, waits, hits."""
    console.print(
        Group(
            *_simulated(report),
            heading("Conditions", f"evidence: {report.evidence}"),
            _conditions(report),
            heading(
                "Predicted against actual",
                "medians; + slower than predicted; cov should be 90%",
            ),
            _cells(report),
            _counts(report),
            heading("Where the wait before the first token went"),
            _waits(report),
            heading("Hits", "in prompt tokens"),
            _hits(report.hits),
            heading("Copies"),
            _movements(report),
            *(Text(stale_text(one), "yellow") for one in report.calibrations if one.stale),
        )
    )
    if report.would_be is not None:
        console.print(
            Group(
                heading("Would-be savings", "had Strata formed the batches; 90 % intervals"),
                _would_be(report.would_be),
            )
        )
    if report.gates:
        title = heading("Gates", "what stands between each policy and acting")
        console.print(Group(title, *_gates(report)))
    if report.backcasts:
        console.print(
            Group(
                heading("Backcasts", "from reports alone, as if at arrival; never forecasts"),
                _backcasts(report.backcasts),
            )
        )
    if report.contradictions:
        console.print(Group(heading("Contradictions"), _contradictions(report)))
    for name, state in report.taps.items():
        if state not in (TapState.LIVE, TapState.CLOSED):
            console.print(
                f"[yellow]tap {name} is {state}: something is missing from these figures[/]"
            )


def stale_text(calibration: CopyCalibration) -> str:
    """What is wrong with a link profile, and what to do."""
    return (
        f"{calibration.source} → {calibration.destination} by {calibration.method or 'a mover'} "
        f"takes {calibration.factor:.2g} times what link profile {calibration.calibration_id} "
        "says: it is stale, of another link or machine; run `kvready calibrate` here"
    )


def format_seconds(seconds: float) -> str:
    """A duration in the unit that reads best."""
    if abs(seconds) >= 1.0:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def format_width(ratio: float) -> str:
    """An interval's upper bound over its lower one."""
    if ratio > WIDEST_SHOWN:
        return f">x{WIDEST_SHOWN:.0f}"
    return f"x{ratio:.1f}" if ratio < 10.0 else f"x{ratio:.0f}"


def slowdown_text(slowdown: Slowdown) -> str:
    """What loads cost the batches beside them, in words."""
    return (
        f"{slowdown.kind} batches beside a load took x{slowdown.factor:.2f} as long as quiet ones "
        f"(x{slowdown.low:.2f} to x{slowdown.high:.2f}; {slowdown.beside_batches} beside, "
        f"{slowdown.quiet_batches} quiet)"
    )


def drift_text(drift: Drift) -> str:
    """A drift alarm in words."""
    what = "missed by its intervals" if drift.kind is DriftKind.UNCOVERED else drift.kind
    when = "now" if drift.active else "earlier"
    return f"{drift.target} became {what}, {when} ({drift.alarms} alarms)"


def backcast_states(score: BackcastScore) -> str:
    """What became of a target's reported requests, in words."""
    return ", ".join(
        f"{count:,} {state.replace('_', ' ')}"
        for state, count in score.states.items()
        if count or state is BackcastState.SCORED
    )


def backcast_figures(score: BackcastScore) -> tuple[str, str, str, str]:
    """Actual, signed error, coverage and bad share; dashes where nothing was scored."""
    if score.median_actual_seconds is None or score.median_signed_error_seconds is None:
        return "-", "-", "-", "-"
    sign = "+" if score.median_signed_error_seconds >= 0 else ""
    return (
        format_seconds(score.median_actual_seconds),
        sign + format_seconds(score.median_signed_error_seconds),
        "-" if score.coverage_ratio is None else f"{score.coverage_ratio:.0%}",
        "-" if score.bad_ratio is None else f"{score.bad_ratio:.0%}",
    )


def _simulated(report: Report) -> list[Text]:
    if report.evidence != Evidence.SIMULATED:
        return []
    return [Text("SIMULATED: no engine stands behind these figures", "bold yellow")]


def _conditions(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in report.conditions.items():
        table.add_row(Text(name, style="dim"), value)
    return table


def _cells(report: Report) -> Table:
    table = figures_table()
    table.add_column("target", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    for name in ("pairs", "actual", "error", "|err|", "cov", "hi/lo", "bad"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for cell in report.cells:
        table.add_row(
            cell.target if cell.target != previous else "",
            cell.shape_cell,
            str(cell.pairs),
            format_seconds(cell.median_actual_seconds),
            ("+" if cell.median_signed_error_seconds >= 0 else "")
            + format_seconds(cell.median_signed_error_seconds),
            f"{cell.median_absolute_relative_error:.0%}",
            f"{cell.coverage_ratio:.0%}",
            format_width(cell.median_width_ratio),
            f"{cell.bad_ratio:.0%}",
        )
        previous = cell.target
    return table


def _counts(report: Report) -> Text:
    pairs = sum(target.paired for target in report.targets)
    rest = ", ".join(
        f"{target.target}: {target.paired} paired, {target.late} late, {target.censored} censored, "
        f"{target.open} open, {target.missed} missed"
        for target in report.targets
    )
    leaning = report.pairs_leaning_on_degraded
    note = f"; {leaning} of them leant on a tap that was not whole" if leaning else ""
    drifted = "".join(f"\n{drift_text(drift)}" for drift in report.drifts)
    slowed = "".join(f"\n{slowdown_text(one)}" for one in report.slowdowns)
    return Text.assemble(
        (f"{pairs} pairs", "bold"), f"{note}  ({rest})", (drifted, "yellow"), slowed
    )


def _waits(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for share in report.waits:
        if share.seconds == 0.0 and share.state in (WaitState.FRONTEND, WaitState.DELIVER):
            continue
        bar = "█" * round(share.ratio * BAR_CELLS)
        table.add_row(share.state, f"{share.ratio:6.1%}", format_seconds(share.seconds), bar)
    table.add_row(Text("unattributed", style="dim"), f"{report.unattributed_ratio:6.1%}", "", "")
    return table


def _hits(hits: Hits) -> Table:
    table = Table.grid(padding=(0, 2))

    def row(name: str, tokens: int, note: str = "") -> None:
        table.add_row(name, f"{tokens:,}", Text(note, style="dim"))

    ratio = (
        "unknown" if hits.in_time_ratio is None else f"{hits.in_time_ratio:.1%} of prompt tokens"
    )
    row("prompt", hits.prompt_tokens, f"{hits.requests} requests reached their first token")
    row("nominal hit", hits.nominal_tokens, "resident in some tier at arrival")
    row("in time", hits.in_time_tokens, f"{hits.in_time_hits} hits; {ratio}")
    row("late", hits.late_tokens, f"{hits.late_hits} hits waited for their copy in the open")
    row("  worthwhile", hits.worthwhile_tokens, "late, yet sooner than computing again")
    row("lost", hits.lost_tokens, "nominal, computed all the same")
    row(
        "delay hits",
        hits.delay_hit_tokens,
        f"{hits.delay_hits_in_flight} being computed, {hits.delay_hits_in_queue} queued at arrival",
    )
    row("duplicate prefill", hits.duplicate_prefill_tokens, "computed although it existed")
    table.add_row(
        "load seconds",
        f"{hits.exposed_load_seconds:.1f} exposed",
        Text(f"{hits.hidden_load_seconds:.1f} hidden behind other work", style="dim"),
    )
    return table


def _would_be(told: WouldBe) -> Table:
    table = Table.grid(padding=(0, 2))
    judged = told.batches[Compared.SAME] + told.batches[Compared.DIFFERENT]
    table.add_row(
        "batches",
        f"{told.batches[Compared.SAME]} of {judged} as Strata would; "
        f"{told.batches[Compared.NO_CHOICE]} without a choice, "
        f"{told.batches[Compared.IN_EPISODE]} within episodes",
    )
    for saving in told.savings:
        table.add_row(saving.name, saving_text(saving))
    return table


def _gates(report: Report) -> list[Text]:
    lines = [Text(summary_line(one)) for one in report.gates]
    bad = [Text(f"out of scope: {bad_cell_text(one)}", "yellow") for one in report.bad_cells]
    return lines + bad


def _backcasts(scores: list[BackcastScore]) -> Table:
    table = figures_table()
    table.add_column("target", no_wrap=True)
    for name in ("actual", "error", "cov", "bad"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("requests")
    for score in scores:
        table.add_row(score.target, *backcast_figures(score), backcast_states(score))
    return table


def _contradictions(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for one in report.contradictions:
        style = "yellow" if one.active else "dim"
        when = "now" if one.active else "earlier"
        table.add_row(Text(one.kind.replace("_", " "), style=style), when, one.evidence)
    return table


def _movements(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for move in report.movements:
        rate = "" if move.bytes_per_second is None else f"{move.bytes_per_second / 1e9:.2f} GB/s"
        table.add_row(
            f"{move.source} → {move.destination}",
            f"{move.copies} copies",
            f"{move.payload_bytes / 1e9:.2f} GB",
            rate,
        )
    return table
