"""A what-if as one HTML file: no script, nothing fetched, light or dark as the reader has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from kvready.advisor.markup import definitions
from kvready.advisor.whatif.comparison import Comparison, Report
from kvready.advisor.whatif.curves import curves_caption
from kvready.advisor.whatif.panels import panels
from kvready.advisor.whatif.svg import drawn
from kvready.advisor.whatif.text import (
    hit_shares,
    link_shares,
    rate_text,
    rate_with_half,
    seconds_text,
    share_text,
    source_shares,
)
from kvready.advisor.whatif.verdict import Finding, Kind, ratio_text

GOOD = frozenset({Kind.HELPS, Kind.TIER_PAYS})
BAD = frozenset({Kind.HARMS, Kind.TIER_DOES_NOT_PAY})

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvready whatif: $title</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --dim: #66717f; --line: #dfe4ea; --card: #fff;
  --paper: #f4f6f8; --good: #16794c; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #93a0b0; --line: #2b3440;
  --card: #171d26; --paper: #0f141b; --good: #5cc98f; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 2rem clamp(1rem, 4vw, 3rem) 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; display: grid; gap: 1rem; }
h1 { font-size: 1.4rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.05rem; margin: 1.2rem 0 0; }
h3 { font-size: .8rem; margin: 0 0 .6rem; color: var(--dim); font-weight: 600;
  text-transform: uppercase; letter-spacing: .06em; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.25rem; overflow-x: auto; min-width: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--dim); font-size: .85rem; padding-bottom: .5rem; }
th { text-align: right; font-weight: 500; color: var(--dim); font-size: .85rem;
  vertical-align: bottom; }
td { text-align: right; white-space: nowrap; }
th, td { padding: .28rem 0 .28rem 1.1rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td.kind { color: var(--dim); }
ul { margin: 0; padding-left: 1.1rem; } li { margin: .2rem 0; }
.dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.badge { border: 1px solid var(--line); border-radius: 1rem; padding: .1rem .6rem;
  font-size: .8rem; background: var(--card); font-weight: 400; }
dl { margin: 0; display: grid; gap: .5rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); }
dt { color: var(--dim); font-size: .85rem; } dd { margin: 0; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<main>
<h1>kvready whatif <span class="badge">simulated</span></h1>
$sections
</main>
</body>
</html>
""")


def rendered(report: Report) -> str:
    """The whole page."""
    sections = []
    shown = panels(report)
    if shown:
        sections.append(_section("Curves", drawn(shown, curves_caption(report))))
        sections.append(_section("Throughput where mean TTFT reaches the target", _at(report)))
    for one in report.comparisons:
        sections += _compared(one, report)
    sections.append(_section("Conditions of every figure here", _card(report)))
    sections.append(_section("Assumed", _assumed(report)))
    title = escape(report.conditions.get("workload", ""))
    return PAGE.substitute(title=title, sections="\n".join(sections))


def _compared(one: Comparison, report: Report) -> list[str]:
    target = report.targets
    goodput = [
        [
            row.policy,
            rate_with_half(row.good_rate, row.good_rate_half),
            share_text(row.good_share),
            ratio_text(row.goodput_ratio),
            rate_with_half(row.output_rate, 0.0),
            ratio_text(row.output_ratio),
            row.constraint.value,
            str(row.unfinished),
        ]
        for row in one.rows
    ]
    ttft = [
        [
            row.policy,
            *map(seconds_text, (row.ttft_mean, row.ttft_p50, row.ttft_p90, row.ttft_p99)),
            ratio_text(row.ttft_ratio),
        ]
        for row in one.rows
    ]
    ratio = f"ratio to {one.base}"
    return [
        f"<h2>At {escape(rate_text(one.rate))}</h2>",
        _section("Verdict", _findings(one.findings)),
        _section(
            "Goodput: requests that finish inside their targets",
            _table(
                _short_card(report, one),
                ("policy", "requests/s", "of all", ratio, "tokens/s", ratio, "bound by",
                 "unfinished"),
                goodput,
            ),
        ),
        _section(
            "Time to first token",
            _table(
                f"from {target.counted_from}",
                ("policy", "mean", "p50", "p90", "p99", f"mean, {ratio}"),
                ttft,
            ),
        ),
        _section("Time to first token by kind of request", _cells(one)),
        _section(
            "Prompt tokens",
            _table(
                "shares of all prompt tokens; twice: computed while another request did or held it",
                ("policy", "HBM", "host", "disk", "new", "twice", "nominal hit", "in time", "late",
                 "lost"),
                [[row.policy, *source_shares(row), *hit_shares(row)] for row in one.rows],
            ),
        ),
        _section(
            "Prefill and the link into HBM",
            _table(
                "stall: of prefill time; the rest of all time. Idle: no one needs a load; its turn "
                "has not come; a batch runs",
                ("policy", "stall", "busy", "idle: no one", "idle: order", "idle: batch", "GB/s",
                 "GB/s while busy"),
                [[row.policy, *link_shares(row)] for row in one.rows],
            ),
        ),
    ]  # fmt: skip


def _cells(one: Comparison) -> str:
    policies = [row.policy for row in one.rows]
    rows: list[list[str]] = []
    previous = ""
    for cell in one.cells:
        name = cell.name if cell.kind == previous else f"{cell.kind}: {cell.name}"
        previous = cell.kind
        told = [
            f"{seconds_text(cell.ttft_mean[policy])} · {_good(cell.good_share[policy])}"
            for policy in policies
        ]
        rows.append([name, f"{cell.requests:,}", *told])
    return _table("mean, and share inside the targets", ("", "requests", *policies), rows)


def _good(share: float | None) -> str:
    return "-" if share is None else share_text(share)


def _at(report: Report) -> str:
    base = report.curves[0].output_rate_at_target
    rows = []
    for curve in report.curves:
        rate = curve.output_rate_at_target
        told = "-" if rate is None else f"{rate:.3g}"
        told += "" if curve.beyond_target or rate is None else " or more"
        rows.append([curve.policy, told, f"x{rate / base:.2f}" if rate and base else "-"])
    caption = f"target {report.targets.ttft_seconds:g} s; between two rates in proportion"
    heads = ("policy", "tokens/s", f"ratio to {report.curves[0].policy}")
    return _table(caption, heads, rows)


def _short_card(report: Report, one: Comparison) -> str:
    names = ("model", "machine", "host memory", "initial cache state", "TTFT target")
    told = [f"{name} {report.conditions[name]}" for name in names if name in report.conditions]
    return "; ".join(["simulated", rate_text(one.rate), *told, "all conditions below"])


def _card(report: Report) -> str:
    parts = [definitions(report.conditions)]
    for policy, values in report.own.items():
        if values:
            parts.append(f'<h3 style="margin-top:1rem">{escape(policy)}</h3>{definitions(values)}')
    return "".join(parts)


def _assumed(report: Report) -> str:
    return _items(
        escape(f"{policy}: {text}" if policy else text)
        for policy, texts in report.assumed.items()
        for text in texts
    )


def _findings(findings: Iterable[Finding]) -> str:
    def marked(finding: Finding) -> str:
        style = "good" if finding.kind in GOOD else "bad" if finding.kind in BAD else "plain"
        return f'<span class="{style}">{escape(finding.text)}</span>'

    return _items(map(marked, findings))


def _items(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in row)}</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h3>{escape(title)}</h3>{body}</section>"
