"""Load or recompute: what loading KV takes against computing it again."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panel import Draw, Panel, Query, ask, words

LOAD_SECONDS = 'rate(kvready_copy_seconds_total{SCOPE,destination="hbm"}[WINDOW])'
LOAD_BYTES = 'rate(kvready_copy_bytes_total{SCOPE,destination="hbm"}[WINDOW])'
# Both by instance, so that their quotient is one engine's.
TOKEN_LOAD = (
    f"sum by (instance) ({LOAD_SECONDS}) / (sum by (instance) ({LOAD_BYTES}) > 0) "
    "* on (instance) max by (instance) (kvready_kv_bytes_per_token{SCOPE})"
)
TOKEN_COMPUTE = (
    'sum by (instance) (rate(kvready_request_wait_seconds_total{SCOPE,state="prefill"}[WINDOW])) '
    "/ (sum by (instance) "
    '(rate(kvready_prompt_source_tokens_total{SCOPE,source="computed"}[WINDOW])) > 0)'
)

BREAK_EVEN = Row(
    "Break-even",
    (
        words(
            "How to read this",
            "Loading a token's KV takes its bytes over the link's bandwidth. Computing it takes "
            "the model. The mean of each is shown; **below 1 loading is the quicker way**, before "
            "any waiting for the link. Near 1 it depends on the prefix: short ones are better "
            "computed, since a load costs a start. Late hits that were not *worthwhile* lost that "
            "race.\n\n"
            "For one prefix: `POST /v1/readiness`, and `kvready explain REQUEST`.",
            width=8,
        ),
        Panel(
            "Time of one prompt token",
            (
                Query(TOKEN_LOAD, "loaded {{instance}}"),
                Query(TOKEN_COMPUTE, "computed {{instance}}"),
            ),
            unit="s",
            about="Loaded: while copies run. Computed: time of prefill over tokens computed.",
            width=8,
        ),
        Panel(
            "Load over recompute",
            ask(f"({TOKEN_LOAD}) / on (instance) ({TOKEN_COMPUTE})", "{{instance}}"),
            about="Above 1 the cache below HBM costs more than it saves.",
            width=8,
            limit=1.0,
        ),
        Panel(
            "Late hits: sooner than a recompute, or not",
            (
                Query("sum(rate(kvready_worthwhile_hits_total{SCOPE}[WINDOW]))", "sooner"),
                Query(
                    "sum(rate(kvready_late_hits_total{SCOPE}[WINDOW])) - "
                    "sum(rate(kvready_worthwhile_hits_total{SCOPE}[WINDOW]))",
                    "a recompute would have been quicker",
                ),
            ),
            unit="reqps",
            draw=Draw.STACKED,
        ),
        Panel(
            "Prompt tokens loaded, and computed",
            ask(
                "sum by (source) (rate(kvready_prompt_source_tokens_total"
                '{SCOPE,source=~"loaded|computed"}[WINDOW]))',
                "{{source}}",
            ),
            draw=Draw.STACKED,
        ),
    ),
)

LINK = Row(
    "The link",
    (
        Panel(
            "Bandwidth by path",
            ask(
                "sum by (source, destination) (rate(kvready_copy_bytes_total{SCOPE}[WINDOW])) / "
                "(sum by (source, destination) (rate(kvready_copy_seconds_total{SCOPE}[WINDOW])) "
                "> 0)",
                "{{source}} to {{destination}}",
            ),
            unit="Bps",
            about="While a copy runs.",
            width=8,
        ),
        Panel(
            "Bytes moved",
            ask(
                "sum by (source, destination) (rate(kvready_copy_bytes_total{SCOPE}[WINDOW])) > 0",
                "{{source}} to {{destination}}",
            ),
            unit="Bps",
            draw=Draw.STACKED,
            width=8,
        ),
        Panel(
            "Copies",
            ask(
                "sum by (source, destination) (rate(kvready_copies_total{SCOPE}[WINDOW])) > 0",
                "{{source}} to {{destination}}",
            ),
            unit="ops",
            draw=Draw.STACKED,
            width=8,
        ),
        Panel(
            "Time of copies over what the link profile says",
            ask(
                "max by (source, destination, method) (kvready_load_factor_ratio{SCOPE})",
                "{{source}} to {{destination}}, {{method}}",
            ),
            about="1: as calibrated. Without a profile: over a generic link, and only its course "
            "says something.",
            alerts=("KvreadyCalibrationStale",),
        ),
        Panel(
            "Forecasts of loads: predicted and actual, mean",
            (
                Query(
                    "sum(rate(kvready_forecast_predicted_seconds_total"
                    '{SCOPE,target="load"}[WINDOW])) / (sum(rate(kvready_forecasts_total'
                    '{SCOPE,target="load",state="paired"}[WINDOW])) > 0)',
                    "predicted",
                ),
                Query(
                    "sum(rate(kvready_forecast_observed_seconds_total"
                    '{SCOPE,target="load"}[WINDOW])) / (sum(rate(kvready_forecasts_total'
                    '{SCOPE,target="load",state="paired"}[WINDOW])) > 0)',
                    "actual",
                ),
            ),
            unit="s",
        ),
    ),
)

BOARD = Board(
    "load_or_recompute",
    "kvready: load or recompute",
    "What does loading KV take, against computing it again?",
    (BREAK_EVEN, LINK),
)
