"""Waits and readiness: where requests' time goes, and which hits came in time."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panel import Draw, Panel, Query, ask

WAIT = "sum by (state) (rate(kvready_request_wait_seconds_total{SCOPE}[WINDOW]))"
FIRST_TOKENS = "sum(rate(kvready_first_tokens_total{SCOPE}[WINDOW]))"
PROMPT = "sum(rate(kvready_prompt_tokens_total{SCOPE}[WINDOW]))"


def share_of_prompt(hits: str) -> str:
    """Of prompt tokens, those of one kind of hit."""
    return f"sum(rate(kvready_{hits}_hit_tokens_total{{SCOPE}}[WINDOW])) / ({PROMPT} > 0)"


WAITS = Row(
    "Where the wait goes",
    (
        Panel(
            "Time of one request from arrival to first byte, by state",
            ask(f"{WAIT} / ignoring (state) group_left () ({FIRST_TOKENS} > 0)", "{{state}}"),
            unit="s",
            draw=Draw.STACKED,
            about="`load` and `fetch`: KV is on its way. `ready`: all is there and nothing runs "
            "it. `queue`: the rest. States never overlap.",
            width=16,
        ),
        Panel(
            "Time that no state explains",
            ask(
                "sum(rate(kvready_request_unattributed_seconds_total{SCOPE}[WINDOW])) / "
                "(sum(rate(kvready_request_unattributed_seconds_total{SCOPE}[WINDOW])) + "
                "sum(rate(kvready_request_wait_seconds_total{SCOPE}[WINDOW])) > 0)",
                "unexplained",
            ),
            unit="percentunit",
            about="Above 2 % the split beside is not to be trusted.",
            width=8,
            limit=0.02,
            alerts=("KvreadyWaitsUnexplained",),
        ),
        Panel(
            "Load time that cost something, and that cost nothing",
            (
                Query(
                    "sum(rate(kvready_exposed_load_seconds_total{SCOPE}[WINDOW]))",
                    "exposed: it could have run otherwise",
                ),
                Query(
                    "sum(rate(kvready_hidden_load_seconds_total{SCOPE}[WINDOW]))",
                    "hidden: it could not have run",
                ),
            ),
            unit="s",
            draw=Draw.STACKED,
            about="Seconds of load in each second. Only the exposed ones can be won.",
            width=8,
        ),
        Panel(
            "What serving is bound by",
            ask("max by (constraint) (kvready_serving_constraint{SCOPE})", "{{constraint}}"),
            draw=Draw.STATES,
            about="Where it is not the link, moving KV faster helps nobody.",
            width=8,
        ),
        Panel(
            "Requests wait and nothing runs",
            ask("max by (instance) (kvready_serving_stalled{SCOPE})", "{{instance}}"),
            draw=Draw.STATES,
            width=8,
            alerts=("KvreadyEngineStalled",),
        ),
    ),
)

HITS = Row(
    "Hits by name, and hits in time",
    (
        Panel(
            "Share of prompt tokens",
            (
                Query(
                    share_of_prompt("nominal"),
                    "nominal: some tier held them",
                ),
                Query(
                    share_of_prompt("in_time"),
                    "in time",
                ),
                Query(
                    share_of_prompt("worthwhile"),
                    "late, and sooner than a recompute",
                ),
                Query(
                    share_of_prompt("lost"),
                    "lost: computed all the same",
                ),
            ),
            unit="percentunit",
            about="A hit rate alone says nothing of time: nominal less in time is what waits.",
        ),
        Panel(
            "Prompt tokens by where their KV came from",
            ask(
                "sum by (source) (rate(kvready_prompt_source_tokens_total{SCOPE}[WINDOW]))",
                "{{source}}",
            ),
            draw=Draw.STACKED,
        ),
        Panel(
            "Requests by how their hit came",
            (
                Query("sum(rate(kvready_in_time_hits_total{SCOPE}[WINDOW]))", "in time"),
                Query("sum(rate(kvready_late_hits_total{SCOPE}[WINDOW]))", "late"),
                Query(
                    "sum(rate(kvready_worthwhile_hits_total{SCOPE}[WINDOW]))",
                    "of those, worthwhile",
                ),
                Query("sum(rate(kvready_unknown_residency_total{SCOPE}[WINDOW]))", "unknown"),
            ),
            unit="reqps",
            width=8,
            alerts=("KvreadyInventoryDoubtful",),
        ),
        Panel(
            "Prefixes that another request was computing",
            (Query("sum by (state) (rate(kvready_delay_hits_total{SCOPE}[WINDOW]))", "{{state}}"),),
            unit="reqps",
            about="Delay hits: an opportunity for `dedup`.",
            width=8,
        ),
        Panel(
            "Tokens that waiting would have spared",
            (
                Query("sum(rate(kvready_delay_hit_tokens_total{SCOPE}[WINDOW]))", "on their way"),
                Query(
                    "sum(rate(kvready_duplicate_prefill_tokens_total{SCOPE}[WINDOW]))",
                    "computed twice",
                ),
            ),
            about="What was computed twice is the loss.",
            width=8,
        ),
    ),
)

LOAD = Row(
    "What arrives and runs",
    (
        Panel(
            "Requests",
            (
                Query("sum(rate(kvready_arrivals_total{SCOPE}[WINDOW]))", "arrived"),
                Query(
                    "sum by (outcome) (rate(kvready_requests_total{SCOPE}[WINDOW]))", "{{outcome}}"
                ),
            ),
            unit="reqps",
            width=8,
        ),
        Panel(
            "Batches",
            (
                Query("sum(rate(kvready_batches_total{SCOPE}[WINDOW]))", "batches a second"),
                Query(
                    "sum(rate(kvready_batch_seconds_total{SCOPE}[WINDOW]))",
                    "share of time that one runs",
                ),
            ),
            width=8,
        ),
        Panel(
            "Prompt tokens",
            ask(PROMPT, "tokens a second"),
            width=8,
        ),
    ),
)

BOARD = Board(
    "waits",
    "kvready: waits and readiness",
    "Where does requests' time go, and which hits came in time?",
    (WAITS, HITS, LOAD),
)
