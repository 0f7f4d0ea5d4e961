"""A look for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvready.advisor.counter_change import Quantile
from kvready.advisor.look import COMPUTED, Copies, Look
from kvready.advisor.report_text import format_seconds
from kvready.advisor.terminal import heading
from kvready.collectors.metrics_page import FetchStage
from kvready.collectors.records import Tier

BAR_CELLS = 30
RARE = frozenset({Tier.DISK.value, Tier.REMOTE.value})  # shown where there is something


def print_look(look: Look, console: Console) -> None:
    """Print what was seen, then what to change next."""
    version = look.version or "of a version that it does not tell"
    console.print(
        Text.assemble(
            (f"vLLM {version}", "bold"),
            f"  {look.model}  {look.url}  {look.seconds:.0f} s, {look.scrapes} scrapes",
        )
    )
    if look.restarted:
        console.print("\nThe engine restarted in this time; look again.", style="yellow")
        return
    if look.idle:
        console.print(
            f"\nNo request arrived in these {look.seconds:.0f} s: nothing can be said of hits, "
            "loads or waits. Look again under traffic."
        )
    else:
        _traffic(look, console)
    for refused in look.refused:
        console.print(
            Text.assemble(("refused  ", "yellow"), refused.metric, ("  " + refused.reason, "dim")),
            soft_wrap=True,
        )
    _advice(look, console)


def _traffic(look: Look, console: Console) -> None:
    console.print(heading("Prompt tokens"))
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column()
        table.add_column(justify="right")
    table.add_column()
    for source in look.prompt:
        if not source.tokens and source.source in RARE:
            continue
        name = source.source if source.source == COMPUTED else f"found in {source.source}"
        table.add_row(
            name,
            f"{source.tokens:,.0f}",
            "",
            f"{source.tokens_per_second:,.0f}/s",
            f"{source.share:6.1%}  " + "█" * round(source.share * BAR_CELLS),
        )
    console.print(table if look.prompt else "unknown: this version has no counter that is right")
    console.print(heading("Loads"))
    rows = Table.grid(padding=(0, 2))
    rows.add_row("host → hbm", _copies(look.loads))
    rows.add_row("hbm → host", _copies(look.stores))
    if look.load_bytes_per_second is not None:
        rows.add_row("beside", _reference(look))
    rows.add_row("ready, not scheduled", _ready(look))
    if look.held:
        each = format_seconds((look.held_seconds or 0.0) / look.held)
        rows.add_row(
            "held", f"{look.held:,.0f} requests, {each} each: their blocks were on the way already"
        )
    if look.block_life_p50 is not None:
        rows.add_row("blocks stay", f"{_quantile(look.block_life_p50)} in HBM, the median evicted")
    console.print(rows)
    console.print(heading("Requests"))
    rows = Table.grid(padding=(0, 2))
    rows.add_row("first tokens", _count(look.requests))
    rows.add_row("running", _mean(look.running))
    rows.add_row("waiting", f"{_mean(look.waiting)}, {_mean(look.deferred)} of them deferred")
    rows.add_row("TTFT p50", _quantile(look.ttft_p50))
    rows.add_row("TTFT p95", _quantile(look.ttft_p95))
    console.print(rows)
    if look.stalled:
        console.print(
            "\nStalled: requests wait and none runs. Only a restart helps; see `kvready doctor`.",
            style="red",
        )


def _advice(look: Look, console: Console) -> None:
    change = look.change
    if change is not None:
        console.print(heading("Change next"))
        console.print(change.change, style="green", soft_wrap=True, highlight=False)
        for name, text in (("because", change.because), ("adds", change.adds)):
            if text:
                console.print(Text.assemble((f"  {name:<9}", "dim"), text), soft_wrap=True)
    elif not (look.idle or look.stalled):
        console.print("\nNothing to change shows from here.")
    step = look.next_level
    console.print(heading("Seen from here", f"level {look.level or 'none'}"))
    if step is None:
        console.print("Every level is there: `kvready attach` shows each request's wait.")
        return
    console.print(f"Level {step.level} would add: {step.adds}.")
    if change is None or change.change != step.change:
        console.print(f"  {step.change}", soft_wrap=True, highlight=False)
    console.print(Text.assemble(("  risk  ", "dim"), step.risk), soft_wrap=True)


def _copies(copies: Copies | None) -> str:
    if copies is None:
        return "unknown: no counter tells"
    if copies.bytes_per_second is None:
        return "none"
    return (
        f"{size_text(copies.payload_bytes)} in {format_seconds(copies.copy_seconds)} of copying, "
        f"{size_text(copies.bytes_per_second)}/s"
    )


def _reference(look: Look) -> str:
    reference = look.reference_bytes_per_second
    if reference is None:
        return "nothing: run `kvready calibrate` and give its --link-profile"
    share = (look.load_bytes_per_second or 0.0) / reference
    return f"{size_text(reference)}/s {look.reference_origin}; loads get {share:.0%} of it"


def _ready(look: Look) -> str:
    if look.fetching is None:
        return "unknown: vLLM tells it from 0.32 on, where a connector loads asynchronously"
    if look.ready_share is None:
        return "no request was seen on a load"
    requests = look.fetching[FetchStage.COMPLETED_WAITING]
    return f"{look.ready_share:.0%} of the time on a load; {requests:.2f} requests on average"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _mean(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _quantile(found: Quantile | None) -> str:
    """A quantile with the bucket that it lies in."""
    if found is None:
        return "unknown"
    if found.up_to_seconds is None:
        return f"above {format_seconds(found.above_seconds)}"
    lower, upper = format_seconds(found.above_seconds), format_seconds(found.up_to_seconds)
    return f"about {format_seconds(found.estimate_seconds)} (between {lower} and {upper})"


def size_text(size_bytes: float) -> str:
    """A size in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"
