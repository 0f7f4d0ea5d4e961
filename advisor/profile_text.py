"""A link profile for a terminal: a line per curve, then bandwidth over fragment size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvready.advisor.report_text import format_seconds
from kvready.kernels.profile import CONTIGUOUS, Claim, Curve, LinkProfile, Provenance
from kvready.kernels.summary import (
    SHOWN_FRAGMENT_BYTES,
    Point,
    bandwidth_at,
    busy_before,
    points,
    size_text,
    summarize,
)
from kvready.kernels.sweep import LARGEST_FRAGMENT_BYTES, SMALLEST_FRAGMENT_BYTES

BUSY = 0.05  # of the time
CURVES_BESIDE = 4  # fit beside each other into 80 columns
SHOWN_CONDITIONS = (  # endings of names
    "model",
    "left_out",
    "competing",
    "disk",
    "gather_fallback",
    "without_gather",
    "without_dma_batch",
)


def print_summary(profile: LinkProfile, console: Console) -> None:
    """A line per curve."""
    console.print(Text(profile.name, style="bold"))
    console.print(Text(described(profile)))
    if profile.provenance is Provenance.MEASURED:
        console.print(Text(f"calibration {profile.calibration_id}", style="dim"))
    busy = busy_before(profile)
    if busy is not None and busy > BUSY:
        console.print(
            f"other work waited for a CPU {busy:.0%} of the time before this began: what is called "
            "quiet here was not; calibrate again when the machine is idle",
            style="yellow",
        )
    for path, curves in _paths(profile.curves):
        console.print(_heading(path, "GB/s of payload by fragment size"))
        console.print(_summary_table(curves))
    console.print()
    console.print(Text(_legend(profile), style="dim"))
    published = profile.provenance is Provenance.PUBLISHED
    for name, told in profile.conditions.items():
        if published or name.endswith(SHOWN_CONDITIONS):
            console.print(Text.assemble((f"{name.replace('_', ' ')}: ", "dim"), told))
    if profile.claims:
        console.print(_heading("Claims", "an input fixed a constant, a prediction follows"))
        console.print(_claims_table(profile.claims))


def print_bandwidths(profile: LinkProfile, console: Console) -> None:
    """Bandwidth over fragment size with intervals, a table per path and condition."""
    for path, curves in _paths(profile.curves):
        for contended in (False, True):
            shown = [c for c in curves if c.contended == contended and c.mover != CONTIGUOUS]
            for start in range(0, len(shown), CURVES_BESIDE):
                note = "beside compute" if contended else "quiet"
                console.print(_heading(f"{path}, {note}", "GB/s: median (10th-90th percentile)"))
                console.print(_bandwidth_table(shown[start : start + CURVES_BESIDE]))


def described(profile: LinkProfile) -> str:
    """Whose figures these are, and of which machine."""
    machine = profile.machine
    if profile.provenance is Provenance.PUBLISHED:
        return f"published, not measured here: {machine.gpu or machine.cpu}"
    parts = [f"{machine.cpu}, {machine.cpus} CPUs", machine.operating_system]
    parts += [text for text in (machine.gpu, machine.disk) if text]
    return "measured on " + "; ".join(parts)


def label(curve: Curve) -> str:
    """A mover with its workers."""
    return f"{curve.mover} x{curve.workers}"


def _summary_table(curves: Sequence[Curve]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("mover")
    for size in SHOWN_FRAGMENT_BYTES:
        table.add_column(size_text(size), justify="right")
    for name in ("wait", "compute", "scatter"):
        table.add_column(name, justify="right")
    for curve in sorted(curves, key=lambda c: (c.mover, c.workers, c.contended)):
        told = summarize(curve)
        table.add_row(
            Text("  beside compute", style="dim") if curve.contended else label(curve),
            *(_rate(point) for point in told.bandwidths),
            "-" if told.wait_seconds is None else format_seconds(told.wait_seconds),
            "-" if told.compute_slowdown is None else f"x{told.compute_slowdown:.2f}",
            "-" if told.scatter is None else f"{told.scatter:.0%}",
        )
    return table


def _bandwidth_table(curves: Sequence[Curve]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("fragment", justify="right")
    along = [points(curve) for curve in curves]
    for curve in curves:
        table.add_column(label(curve), justify="right")
    size = SMALLEST_FRAGMENT_BYTES
    while size <= LARGEST_FRAGMENT_BYTES:
        found = [bandwidth_at(one, size) for one in along]
        if any(found):
            table.add_row(size_text(size), *(_interval(point) for point in found))
        size *= 2
    return table


def _claims_table(claims: Sequence[Claim]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("kind")
    table.add_column("figure")
    table.add_column("published", justify="right")
    table.add_column("ours", justify="right")
    table.add_column("source")
    for claim in claims:
        table.add_row(
            claim.kind,
            claim.name,
            f"{claim.published:.3g}",
            f"{claim.ours:.3g} {claim.unit}",
            Text(claim.source, style="dim"),
        )
    return table


def _interval(point: Point | None) -> Text:
    if point is None:
        return Text("-", style="dim")
    if point.low == point.high:
        return Text(_rate(point))
    between = f" ({_gigabytes(point.low)}-{_gigabytes(point.high)})"
    return Text.assemble(_rate(point), (between, "dim"))


def _rate(point: Point | None) -> str:
    return "-" if point is None else _gigabytes(point.middle)


def _gigabytes(bytes_per_second: float) -> str:
    value = bytes_per_second / 1e9
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def _legend(profile: LinkProfile) -> str:
    if profile.provenance is Provenance.PUBLISHED:
        return "bandwidths follow from a published cost; waits and slow-downs are not told"
    scatter = profile.repeat_scatter
    repeats = "" if scatter is None else f", {scatter:.0%} over all curves"
    return (
        "medians of repeats; xN: N threads, SMs or reads in flight; wait: from the order until the "
        "mover starts; compute: how much longer its steps take beside moves; scatter: (p90 - p10) "
        "/ median of a shape's repeats" + repeats
    )


def _paths(curves: Iterable[Curve]) -> Iterator[tuple[str, list[Curve]]]:
    """Curves of each path, in the order of the profile."""
    order: dict[str, int] = {}
    named = [(f"{c.source} to {c.destination}", c) for c in curves]
    for path, _ in named:
        order.setdefault(path, len(order))
    named.sort(key=lambda pair: order[pair[0]])
    for path, group in groupby(named, key=lambda pair: pair[0]):
        yield path, [curve for _, curve in group]


def _heading(title: str, note: str) -> Text:
    return Text.assemble("\n", (title, "bold"), (f"  {note}", "dim"))
