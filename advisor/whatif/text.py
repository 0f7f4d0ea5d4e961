"""A what-if for a terminal of 80 columns: goodput first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvready.advisor.report_text import format_seconds
from kvready.advisor.terminal import figures_table, heading
from kvready.advisor.whatif.comparison import Comparison, Report, Row
from kvready.advisor.whatif.pairing import Ratio
from kvready.advisor.whatif.verdict import Finding, Kind, ratio_text

GIGA = 1e9
ONE_SEED = "One draw: differences of a few per cent may be chance; --seeds 5 gives intervals"
CELL_POLICIES = 5  # columns that fit beside the cells' names
MARKS = {
    Kind.HELPS: ("+", "green"),
    Kind.TIER_PAYS: ("+", "green"),
    Kind.HARMS: ("-", "red"),
    Kind.TIER_DOES_NOT_PAY: ("-", "yellow"),
    Kind.NO_BENEFIT: ("=", "dim"),
}


def print_report(report: Report, console: Console) -> None:
    """Verdict, then figures, then the conditions of both."""
    several = len(report.comparisons) > 1
    if several:
        console.print(Group(*_sweep(report)))
    for one in report.comparisons:
        console.print(Group(*_compared(one, report, brief=several)))
    console.print(Group(*_conditions(report)))


def rate_text(rate: float | None) -> str:
    """The rate of a comparison as its heading."""
    return "the trace's own rate" if rate is None else f"{rate:g} requests/s"


def share_text(share: float) -> str:
    """A share, with as many digits as it has meaning for."""
    return f"{share:.0%}" if share == 0.0 or share >= 0.1 else f"{share:.1%}"


def seconds_text(seconds: float | None) -> str:
    """A duration, or that there was none."""
    return "-" if seconds is None else format_seconds(seconds)


def source_shares(row: Row) -> list[str]:
    """HBM, host, disk, computed, duplicate."""
    return [share_text(row.tokens[n]) for n in ("hbm", "host", "disk", "computed", "duplicate")]


def hit_shares(row: Row) -> list[str]:
    """Nominal, in time, late, lost."""
    hits = row.hits
    return [share_text(share) for share in (hits.nominal, hits.in_time, hits.late, hits.lost)]


def link_shares(row: Row) -> list[str]:
    """Stalled prefill, busy link, its idle time by reason, what it carried."""
    use = row.load_link
    shares = (
        row.stall_share, use.busy, use.idle_no_demand, use.idle_scheduler, use.idle_compute,
    )  # fmt: skip
    alone = use.effective_bandwidth
    return [
        *(share_text(share) for share in shares),
        f"{use.used_bandwidth / GIGA:.3g}",
        "-" if alone is None else f"{alone / GIGA:.3g}",
    ]


def rate_with_half(rate: float, half: float) -> str:
    """A rate, and half of its interval where several seeds tell one."""
    return f"{rate:.3g} ±{half:.2g}" if half else f"{rate:.3g}"


def _compared(one: Comparison, report: Report, *, brief: bool) -> list[RenderableType]:
    told: list[RenderableType] = [
        heading(f"What if, at {rate_text(one.rate)}", "simulated"),
        *(_finding(finding) for finding in one.findings),
    ]
    if brief:
        return told
    target = report.targets
    inside = f"TTFT of {target.ttft_seconds:g} s"
    if target.tokens_per_second is not None:
        inside += f" and {target.tokens_per_second:g} tokens/s"
    return [
        *told,
        heading("Goodput", f"requests that finish inside {inside}; ratios to {one.base}"),
        _goodput(one),
        heading("Time to first token", f"from {target.counted_from}"),
        _ttft(one),
        heading("Prompt tokens", "where they came from, and hits by what they were worth"),
        _table(
            "policy", ("HBM", "host", "disk", "new", "twice", "nominal", "in time", "late", "lost"),
            [(row.policy, [*source_shares(row), *hit_shares(row)]) for row in one.rows],
        ),
        heading("Prefill and the link", "shares of prefill time, and of all time"),
        _table(
            "policy", ("stall", "busy", "no one", "order", "batch", "GB/s", "alone"),
            [(row.policy, link_shares(row)) for row in one.rows],
        ),
        Text(
            "busy: copies run; idle since no one needs a load, since the order has not come to it, "
            "since a batch runs; GB/s over all time and while busy", style="dim",
        ),
        heading("Mean time to first token by kind of request"),
        _cells(one),
    ]  # fmt: skip


def _goodput(one: Comparison) -> Table:
    rows = [
        (
            row.policy,
            [
                rate_with_half(row.good_rate, row.good_rate_half),
                share_text(row.good_share),
                ratio_text(row.goodput_ratio),
                f"{row.output_rate:.3g}",
                _middle(row.output_ratio),
                row.constraint.value + (f", {row.unfinished} unfinished" if row.unfinished else ""),
            ],
        )
        for row in one.rows
    ]
    return _table("policy", ("good/s", "of all", "ratio", "tokens/s", "ratio", "bound by"), rows)


def _ttft(one: Comparison) -> Table:
    rows = [
        (
            row.policy,
            [
                *map(seconds_text, (row.ttft_mean, row.ttft_p50, row.ttft_p90, row.ttft_p99)),
                ratio_text(row.ttft_ratio),
            ],
        )
        for row in one.rows
    ]
    return _table("policy", ("mean", "p50", "p90", "p99", "ratio of means"), rows)


def _cells(one: Comparison) -> RenderableType:
    policies = [row.policy for row in one.rows]
    shown = policies[:CELL_POLICIES]
    table = figures_table()
    table.add_column("", no_wrap=True)
    table.add_column("requests", justify="right")
    for name in shown:
        table.add_column(name, justify="right", overflow="fold")
    previous = ""
    for cell in one.cells:
        if cell.kind != previous:
            table.add_row(Text(cell.kind, style="dim"))
        previous = cell.kind
        values = [seconds_text(cell.ttft_mean[name]) for name in shown]
        table.add_row("  " + cell.name, f"{cell.requests:,}", *values)
    if len(policies) == len(shown):
        return table
    rest = Text(f"{len(policies) - len(shown)} more policies: --html or --json", style="dim")
    return Group(table, rest)


def _sweep(report: Report) -> list[RenderableType]:
    """Rates downwards, policies across."""
    policies = [row.policy for row in report.comparisons[0].rows]
    good, ttft = _matrix(policies), _matrix(policies)
    for one in report.comparisons:
        rate = "-" if one.rate is None else f"{one.rate:g}"
        good.add_row(rate, *(f"{row.good_rate:.3g}" for row in one.rows))
        ttft.add_row(rate, *(seconds_text(row.ttft_mean) for row in one.rows))
    at_target = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("policy", "tokens/s", "ratio"):
        at_target.add_column(head, justify="left" if head == "policy" else "right")
    base = report.curves[0].output_rate_at_target
    for curve in report.curves:
        rate_at = curve.output_rate_at_target
        told = "-" if rate_at is None else f"{rate_at:.3g}"
        told += "" if curve.beyond_target or rate_at is None else " or more"
        ratio = f"x{rate_at / base:.2f}" if rate_at and base else "-"
        at_target.add_row(curve.policy, told, ratio)
    target = report.targets.ttft_seconds
    return [
        heading("Goodput", "requests/s inside their targets, by requests/s offered; simulated"),
        good,
        heading("Mean time to first token", f"from {report.targets.counted_from}"),
        ttft,
        heading("Throughput where mean TTFT reaches the target", f"{target:g} s"),
        at_target,
    ]


def _matrix(policies: Sequence[str]) -> Table:
    table = figures_table()
    table.add_column("rate", justify="right")
    for name in policies:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _conditions(report: Report) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2))
    for name, value in report.conditions.items():
        table.add_row(Text(name, style="dim"), value)
    own = Table.grid(padding=(0, 2))
    for policy, values in report.own.items():
        told = "; ".join(f"{name}: {value}" for name, value in values.items())
        if told:
            own.add_row(policy, Text(told, style="dim"))
    assumed = [
        Text(f"{policy + ': ' if policy else ''}{text}", style="dim")
        for policy, texts in report.assumed.items()
        for text in texts
    ]
    return [
        heading("Conditions", f"evidence: {report.evidence}"),
        table,
        own,
        heading("Assumed"),
        *assumed,
        *([Text(ONE_SEED, style="yellow")] if len({run.seed for run in report.runs}) == 1 else []),
    ]


def _table(first: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = figures_table()
    table.add_column(first, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for name, values in rows:
        table.add_row(name, *values)
    return table


def _finding(finding: Finding) -> Text:
    mark, style = MARKS.get(finding.kind, ("*", "bold"))
    return Text(f"{mark} {finding.text}", style=style)


def _middle(one: Ratio | None) -> str:
    return ratio_text(one).partition(" ")[0]
