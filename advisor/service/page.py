"""The page for a person: the report and the status as one self-contained HTML document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from kvready.advisor.contract import Evidence
from kvready.advisor.report import BackcastScore, CellScore, Hits, Report
from kvready.advisor.report_text import (
    backcast_figures,
    backcast_states,
    drift_text,
    format_seconds,
)
from kvready.advisor.service.models import Status
from kvready.advisor.waits import WaitState
from kvready.advisor.would_be import saving_text
from kvready.collectors.records import TapState

# Nothing is loaded from anywhere, and nothing on the page runs.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

COLOURS = {
    WaitState.FRONTEND: "#9aa5b1",
    WaitState.QUEUE: "#e0a030",
    WaitState.FETCH: "#8e5fd0",
    WaitState.LOAD: "#d0503c",
    WaitState.READY: "#d87fb0",
    WaitState.PREFILL: "#2f7fd8",
    WaitState.DELIVER: "#43a085",
}
MAX_COVERAGE_SHORTFALL = 0.05


@cache
def _template() -> Template:
    return Template((files(__package__) / "page.html").read_text(encoding="utf-8"))


def render_page(status: Status, report: Report) -> str:
    """The whole document."""
    engine = status.engine or {}
    subject = f"{engine['engine']} · {engine['model']}" if engine else "no engine described yet"
    sections = [
        _section("Where the wait before the first token went", _waits(report)),
        _section("Hits, in prompt tokens", _hits(report.hits)),
        _section("Predicted against actual", _cells(report.cells), wide=True),
        _section("Copies between tiers", _movements(report)),
        *_would_be(report),
        *_outside(report),
        _section("Taps", _taps(status)),
        _section("Conditions", _conditions(report.conditions), wide=True),
    ]
    return _template().substitute(
        subject=escape(subject), badges=_badges(status, report), sections="\n".join(sections)
    )


def _would_be(report: Report) -> list[str]:
    if report.would_be is None:
        return []
    rows = [(escape(one.name), escape(saving_text(one))) for one in report.would_be.savings]
    table = _table((), rows, text_columns=2)
    return [_section("Would-be savings, had Strata formed the batches", table)]


def _badges(status: Status, report: Report) -> str:
    texts = [f"evidence: {report.evidence}", f"level {status.level}", f"v{status.version}"]
    if status.replayed:
        texts.insert(0, f"replay of {status.replayed}")
    badges = [f'<span class="badge">{escape(text)}</span>' for text in texts]
    if report.evidence == Evidence.SIMULATED:
        badges.insert(0, '<span class="badge bad">SIMULATED: no engine stands behind this</span>')
    badges += [
        f'<span class="badge bad">{escape(f"{tap} is {state}")}</span>'
        for tap, state in report.taps.items()
        if state not in (TapState.LIVE, TapState.CLOSED)
    ]
    if active := [one for one in report.contradictions if one.active]:
        badges.append(f'<span class="badge bad">{len(active)} contradictions</span>')
    badges += [
        f'<span class="badge bad">{escape(drift_text(drift))}</span>'
        for drift in report.drifts
        if drift.active
    ]
    if status.recording.problem:
        badges.append(f'<span class="badge bad">{escape(status.recording.problem)}</span>')
    return " ".join(badges)


def _outside(report: Report) -> list[str]:
    """Sections that are there only where taps outside the engine told something."""
    sections = []
    if report.contradictions:
        sections.append(_section("Contradictions", _contradictions(report), wide=True))
    if report.backcasts:
        title = "Backcasts, from reports alone; never forecasts"
        sections.append(_section(title, _backcasts(report.backcasts), wide=True))
    return sections


def _contradictions(report: Report) -> str:
    rows = [
        [
            f'<span class="{"bad" if one.active else "dim"}">'
            f"{escape(one.kind.replace('_', ' '))}</span>",
            "now" if one.active else "earlier",
            escape(one.evidence),
        ]
        for one in report.contradictions
    ]
    return _table(["kind", "when", "evidence"], rows, text_columns=3)


def _backcasts(scores: Sequence[BackcastScore]) -> str:
    rows = [
        [escape(score.target), escape(backcast_states(score)), *backcast_figures(score)]
        for score in scores
    ]
    heads = ["target", "requests", "actual p50", "signed error p50", "covered", "bad"]
    return _table(heads, rows, text_columns=2)


def _section(title: str, body: str, wide: bool = False) -> str:
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{escape(title)}</h2>{body}</section>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Rows of ready HTML cells; the columns after the first few are numbers."""

    def cell(tag: str, index: int, content: str) -> str:
        kind = ' class="number"' if index >= text_columns else ""
        return f"<{tag}{kind}>{content}</{tag}>"

    head = "".join(cell("th", i, escape(name)) for i, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell("td", i, content) for i, content in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if heads else ''}{body}</table>"


def _conditions(conditions: dict[str, str]) -> str:
    pairs = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in conditions.items()
    )
    return f'<dl class="conditions">{"".join(pairs)}</dl>'


def _taps(status: Status) -> str:
    if status.replayed:
        return f'<p class="dim">None: this is {escape(status.replayed)}, replayed.</p>'
    if not status.taps:
        return '<p class="bad">None is configured; see `kvready serve --help`.</p>'
    rows = [
        [
            escape(tap.tap),
            f'<span class="{"good" if tap.state == "live" else "bad"}">{escape(tap.state)}</span>',
            f"{tap.messages:,}",
            f"{tap.gaps:,}",
            f"{tap.decode_errors:,}",
            "never" if tap.quiet_seconds is None else f"{format_seconds(tap.quiet_seconds)} ago",
        ]
        for tap in status.taps
    ]
    return _table(["tap", "state", "messages", "gaps", "errors", "last"], rows, text_columns=2)


def _waits(report: Report) -> str:
    if not any(share.seconds for share in report.waits):
        return '<p class="dim">No request has reached its first token yet.</p>'
    bars, rows, offset = [], [], 0.0
    for share in report.waits:
        colour = COLOURS[share.state]
        width = 100 * share.ratio
        bars.append(
            f'<rect x="{offset:.3f}" width="{width:.3f}" height="10" fill="{colour}">'
            f"<title>{escape(share.state)} {share.ratio:.1%}</title></rect>"
        )
        offset += width
        rows.append(
            [
                f'<svg class="key" viewBox="0 0 1 1"><rect width="1" height="1" fill="{colour}"/>'
                f"</svg>{escape(share.state)}",
                f"{share.ratio:.1%}",
                format_seconds(share.seconds),
            ]
        )
    rows.append(['<span class="dim">unattributed</span>', f"{report.unattributed_ratio:.1%}", ""])
    bar = f'<svg viewBox="0 0 100 10" preserveAspectRatio="none">{"".join(bars)}</svg>'
    return bar + _table(["state", "share", "seconds"], rows)


def _cells(cells: Sequence[CellScore]) -> str:
    if not cells:
        return '<p class="dim">No forecast has met its outcome yet.</p>'
    rows = []
    for cell in cells:
        short = cell.nominal_coverage_ratio - cell.coverage_ratio > MAX_COVERAGE_SHORTFALL
        sign = "+" if cell.median_signed_error_seconds >= 0 else ""
        rows.append(
            [
                escape(cell.target),
                escape(cell.shape_cell),
                f"{cell.pairs:,}",
                format_seconds(cell.median_actual_seconds),
                sign + format_seconds(cell.median_signed_error_seconds),
                f"{cell.median_absolute_relative_error:.0%}",
                f'<span class="{"bad" if short else "good"}">{cell.coverage_ratio:.0%}</span>'
                f" of {cell.nominal_coverage_ratio:.0%}",
                f"&times;{cell.median_width_ratio:.1f}",
                f"{cell.bad_ratio:.0%}",
            ]
        )
    heads = ["target", "shape", "pairs", "actual p50", "signed error p50", "|error| p50"]
    return _table([*heads, "covered", "high/low", "bad"], rows, text_columns=2)


def _hits(hits: Hits) -> str:
    in_time = "unknown" if hits.in_time_ratio is None else f"{hits.in_time_ratio:.1%}"
    nominal = "unknown" if hits.nominal_ratio is None else f"{hits.nominal_ratio:.1%}"
    head = (
        f'<div class="big">{in_time}</div><p class="dim">of prompt tokens hit in time; '
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
    return head + _table([], rows)


def _movements(report: Report) -> str:
    if not report.movements:
        return '<p class="dim">None seen.</p>'
    rows = [
        [
            f"{escape(move.source)} → {escape(move.destination)}",
            f"{move.copies:,}",
            f"{move.payload_bytes / 1e9:.2f} GB",
            "" if move.bytes_per_second is None else f"{move.bytes_per_second / 1e9:.2f} GB/s",
        ]
        for move in report.movements
    ]
    return _table(["direction", "copies", "bytes", "while busy"], rows)
