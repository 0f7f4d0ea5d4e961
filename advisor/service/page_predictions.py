"""Predicted against actual on the page: one target's pictures, and where every target stands."""

from __future__ import annotations

from html import escape

from kvready.advisor.demotion import MIN_PAIRS
from kvready.advisor.ledger import Target
from kvready.advisor.markup import folded, marked, section, table
from kvready.advisor.report_text import format_seconds
from kvready.advisor.service import page_plots
from kvready.advisor.service.page_facts import HISTORY_PAIRS, PageFacts

LISTED_PAIRS = 15


def predictions_section(facts: PageFacts) -> str:
    """The target that is looked at; the others are a step away."""
    if facts.pairs:
        said = page_plots.said(facts.pairs)
        body = (
            f'<div class="plots"><figure>{page_plots.scatter(facts.pairs)}</figure>'
            f"<figure>{page_plots.over_time(facts.history)}</figure></div>"
            f'<p class="dim">{escape(said)}. A line is the interval; the band is within a factor '
            f"of two. Over time: {len(facts.history)}, evenly chosen of the last "
            f"{HISTORY_PAIRS:,} at most.</p>"
        )
    else:
        body = '<p class="dim">No forecast of this target has met its outcome yet.</p>'
    if facts.overdue:
        text = f"{facts.overdue:,} past their bound without an outcome: misses already"
        body += f"<p>{marked('bad', text)}</p>"
    body += folded("newest", f"The newest {LISTED_PAIRS} as a table", _newest(facts))
    body += _targets(facts)
    title = f"Predicted against actual: {facts.target}"
    return section("predictions", title, body, "double", _choice(facts))


def _choice(facts: PageFacts) -> str:
    links = "".join(
        f'<a href="?target={target}" id="target-{target}"'
        + (' aria-current="true"' if target is facts.target else "")
        + f">{escape(target)}</a>"
        for target in Target
    )
    return f'<nav class="choice" aria-label="Target of the predictions">{links}</nav>'


def _newest(facts: PageFacts) -> str:
    rows = []
    for pair in facts.pairs[:LISTED_PAIRS]:
        forecast = pair.forecast
        low, high = map(format_seconds, (forecast.low_seconds, forecast.high_seconds))
        assert pair.actual_seconds is not None
        rows.append(
            [
                escape(forecast.subject),
                format_seconds(forecast.p50_seconds),
                f"{low} to {high}",
                format_seconds(pair.actual_seconds),
                "inside" if pair.covered else marked("bad", "outside"),
                marked("bad", "bad") if pair.bad else "good",
                escape(forecast.shape_cell),
            ]
        )
    heads = ["of", "predicted", "interval", "actual", "interval held", "within two", "shape"]
    return table("newest predictions", heads, rows, text_columns=7)


def _targets(facts: PageFacts) -> str:
    """Every target: how many of the last hour were bad, and what became of all."""
    allowed = 1.0 - facts.objective
    rows = []
    for counts in facts.report.targets:
        hour = facts.hours[counts.target]
        share = f"{hour.share:.1%} of {hour.pairs:,}" if hour.pairs else "no pairs"
        is_bad = hour.share > allowed and hour.pairs >= MIN_PAIRS
        rows.append(
            [
                escape(counts.target),
                marked("bad", f"{share}: too many") if is_bad else share,
                f"{counts.paired:,}",
                f"{counts.missed:,}",
                f"{counts.open:,}",
            ]
        )
    heads = ["target", f"bad, last hour (up to {allowed:.0%})", "paired", "missed", "open"]
    return table("targets", heads, rows)
