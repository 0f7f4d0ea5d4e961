"""What the report tells, as sections of the page: waits, hits, copies, shapes, taps, conditions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kvready.advisor.markup import definitions, folded, marked, section, table
from kvready.advisor.report import BackcastScore, CellScore, Hits, Report
from kvready.advisor.report_text import (
    backcast_figures,
    backcast_states,
    drift_text,
    format_seconds,
    format_width,
    stale_text,
)
from kvready.advisor.service.models import Status
from kvready.advisor.waits import WaitState
from kvready.advisor.would_be import saving_text
from kvready.collectors.records import TapState

MEANINGS = {
    WaitState.FRONTEND: "before the scheduler",
    WaitState.QUEUE: "not yet scheduled",
    WaitState.FETCH: "copied into host memory",
    WaitState.LOAD: "copied into HBM",
    WaitState.READY: "usable, not dispatched",
    WaitState.PREFILL: "being computed",
    WaitState.DELIVER: "on its way out",
}
MAX_COVERAGE_SHORTFALL = 0.05
WELL = (TapState.LIVE, TapState.CLOSED)


def waits_section(report: Report) -> str:
    """One bar a state, in the order in which a request goes through them."""
    title = "Wait before the first token"
    if not any(share.seconds for share in report.waits):
        return section("waits", title, '<p class="dim">No request has its first token yet.</p>')
    order = list(MEANINGS)
    rows = [
        [
            f"{escape(share.state)} {marked('dim', MEANINGS[share.state])}",
            f'<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="rail" width="100" height="8"/>'
            f'<rect class="wait-{share.state}" width="{100 * share.ratio:.2f}" height="8"/></svg>',
            f"{share.ratio:.1%}",
            format_seconds(share.seconds) if share.seconds else "0 s",
        ]
        for share in sorted(report.waits, key=lambda share: order.index(share.state))
    ]
    rows.append([marked("dim", "unattributed"), "", f"{report.unattributed_ratio:.1%}", ""])
    return section("waits", title, table("waits", ["state", "", "share", "sum"], rows, 2))


def taps_section(status: Status) -> str:
    """What each tap delivers, and since when not."""
    if status.replayed:
        text = f"None: this is {status.replayed}, replayed."
        return section("taps", "Taps", f"<p>{marked('dim', text)}</p>")
    if not status.taps:
        text = "None is configured; see `kvready serve --help`."
        return section("taps", "Taps", f"<p>{marked('bad', text)}</p>")
    rows = [
        [
            escape(tap.tap),
            marked("good" if tap.state in WELL else "bad", tap.state),
            f"{tap.messages:,}",
            f"{tap.gaps:,}",
            f"{tap.decode_errors:,}",
            "never" if tap.quiet_seconds is None else _since(tap.quiet_seconds),
        ]
        for tap in status.taps
    ]
    heads = ["tap", "state", "messages", "gaps", "errors", "quiet for"]
    blind = {tap.tap: "; ".join(tap.blind_to) for tap in status.taps if tap.blind_to}
    unseen = folded("taps-blind", "What they cannot see", definitions(blind)) if blind else ""
    return section("taps", "Taps", table("taps", heads, rows, text_columns=2) + unseen)


def hits_section(hits: Hits) -> str:
    """Prompt tokens by what their cache hit was worth."""
    in_time = "unknown" if hits.in_time_ratio is None else f"{hits.in_time_ratio:.1%}"
    nominal = "unknown" if hits.nominal_ratio is None else f"{hits.nominal_ratio:.1%}"
    head = (
        f'<p class="big">{in_time}</p><p class="dim">of prompt tokens hit in time; '
        f"nominally {nominal}</p>"
    )
    values = [
        ("prompt", hits.prompt_tokens),
        ("nominal", hits.nominal_tokens),
        ("in time", hits.in_time_tokens),
        ("late", hits.late_tokens),
        ("late but worthwhile", hits.worthwhile_tokens),
        ("lost: computed all the same", hits.lost_tokens),
        ("delay hits", hits.delay_hit_tokens),
        ("duplicate prefill", hits.duplicate_prefill_tokens),
    ]
    rows = [[escape(name), f"{value:,}"] for name, value in values]
    rows.append(["exposed load", format_seconds(hits.exposed_load_seconds)])
    rows.append(["hidden load", format_seconds(hits.hidden_load_seconds)])
    return section("hits", "Hits, in prompt tokens", head + table("hits", [], rows))


def more_section(report: Report) -> str:
    """What is looked up rather than watched, each part folded."""
    parts = [
        folded("shapes", "Predictions by shape of request", _cells(report.cells)),
        folded("copies", "Copies between tiers", _movements(report)),
    ]
    if report.would_be is not None:
        rows = [(escape(one.name), escape(saving_text(one))) for one in report.would_be.savings]
        title = "Would-be savings, had Strata formed the batches"
        parts.append(folded("savings", title, table(title, (), rows, text_columns=2)))
    if report.drifts:
        told = "".join(f"<li>{escape(drift_text(one))}</li>" for one in report.drifts)
        parts.append(folded("drifts", "Drift alarms", f"<ul>{told}</ul>"))
    if report.contradictions:
        parts.append(folded("contradictions", "Contradictions", _contradictions(report)))
    if report.backcasts:
        title = "Backcasts, from reports alone; never forecasts"
        parts.append(folded("backcasts", title, _backcasts(report.backcasts)))
    conditions = definitions(report.conditions, "conditions")
    parts.append(folded("conditions", "Conditions of every figure here", conditions))
    return section("more", "To look up", "".join(parts), "wide")


def _cells(cells: Sequence[CellScore]) -> str:
    if not cells:
        return '<p class="dim">No forecast has met its outcome yet.</p>'
    rows = []
    for cell in cells:
        short = cell.nominal_coverage_ratio - cell.coverage_ratio > MAX_COVERAGE_SHORTFALL
        sign = "+" if cell.median_signed_error_seconds >= 0 else ""
        covered = f"{cell.coverage_ratio:.0%} of {cell.nominal_coverage_ratio:.0%}"
        rows.append(
            [
                escape(cell.target),
                escape(cell.shape_cell),
                f"{cell.pairs:,}",
                format_seconds(cell.median_actual_seconds),
                sign + format_seconds(cell.median_signed_error_seconds),
                f"{cell.median_absolute_relative_error:.0%}",
                marked("bad", f"{covered}: too few") if short else covered,
                escape(format_width(cell.median_width_ratio)),
                f"{cell.bad_ratio:.0%}",
            ]
        )
    heads = ["target", "shape", "pairs", "actual p50", "signed error p50", "|error| p50"]
    return table("shapes", [*heads, "covered", "high/low", "bad"], rows, text_columns=2)


def _movements(report: Report) -> str:
    stale = "".join(
        f"<p>{marked('bad', stale_text(one))}</p>" for one in report.calibrations if one.stale
    )
    if not report.movements:
        return stale + '<p class="dim">None seen.</p>'
    rows = [
        [
            f"{escape(move.source)} → {escape(move.destination)}",
            f"{move.copies:,}",
            f"{move.payload_bytes / 1e9:.2f} GB",
            "" if move.bytes_per_second is None else f"{move.bytes_per_second / 1e9:.2f} GB/s",
        ]
        for move in report.movements
    ]
    return stale + table("copies", ["direction", "copies", "bytes", "while busy"], rows)


def _contradictions(report: Report) -> str:
    rows = [
        [
            marked("bad" if one.active else "dim", one.kind.replace("_", " ")),
            "now" if one.active else "earlier",
            escape(one.evidence),
        ]
        for one in report.contradictions
    ]
    return table("contradictions", ["kind", "when", "evidence"], rows, text_columns=3)


def _backcasts(scores: Sequence[BackcastScore]) -> str:
    rows = [
        [escape(score.target), escape(backcast_states(score)), *backcast_figures(score)]
        for score in scores
    ]
    heads = ["target", "requests", "actual p50", "signed error p50", "covered", "bad"]
    return table("backcasts", heads, rows, text_columns=2)


def _since(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60.0 else f"{seconds / 60.0:.0f} min"
