"""Prediction error: are forecasts right, which are not, and since when."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panel import Draw, Needs, Panel, Query, ask, words

JUDGED = "sum by (target) (rate(kvready_forecast_interval_total{SCOPE}[WINDOW]))"

BUDGET = Row(
    "The budget of bad forecasts",
    (
        words(
            "How to read this",
            "A forecast is **bad** when it was off by more than a factor of two, after 25 ms of "
            "grace. The objective says how many must be good; the rest is the budget. **Burn** is "
            "how many times too fast the budget goes: 1 uses it up exactly. Somebody is woken at "
            "6 (1 h and 5 min) and at 3 (6 h and 30 min) of the time to first token. By then every "
            "policy that acts on these forecasts has stepped back by itself.",
            width=8,
        ),
        Panel(
            "Burn over 1 h and 5 min, as the alert sees it",
            (
                Query(
                    "max by (instance) (instance_target:kvready_bad_forecasts:ratio_rate1h"
                    '{SCOPE,target="ttft"} / ignoring (target) group_left () '
                    "instance:kvready_bad_forecast_budget:ratio{SCOPE})",
                    "1 h {{instance}}",
                ),
                Query(
                    "max by (instance) (instance_target:kvready_bad_forecasts:ratio_rate5m"
                    '{SCOPE,target="ttft"} / ignoring (target) group_left () '
                    "instance:kvready_bad_forecast_budget:ratio{SCOPE})",
                    "5 min {{instance}}",
                ),
            ),
            about="Both must be at 6 or above. From recorded series: load the rule file.",
            width=8,
            alerts=("KvreadyForecastsBadFast",),
            limit=6.0,
        ),
        Panel(
            "Burn over 6 h and 30 min, as the alert sees it",
            (
                Query(
                    "max by (instance) (instance_target:kvready_bad_forecasts:ratio_rate6h"
                    '{SCOPE,target="ttft"} / ignoring (target) group_left () '
                    "instance:kvready_bad_forecast_budget:ratio{SCOPE})",
                    "6 h {{instance}}",
                ),
                Query(
                    "max by (instance) (instance_target:kvready_bad_forecasts:ratio_rate30m"
                    '{SCOPE,target="ttft"} / ignoring (target) group_left () '
                    "instance:kvready_bad_forecast_budget:ratio{SCOPE})",
                    "30 min {{instance}}",
                ),
            ),
            width=8,
            alerts=("KvreadyForecastsBadSlow",),
            limit=3.0,
        ),
        Panel(
            "Share of bad forecasts by target",
            ask(
                "sum by (target) (rate(kvready_forecast_bad_total{SCOPE}[WINDOW])) "
                f"/ ({JUDGED} > 0)",
                "{{target}}",
            ),
            unit="percentunit",
            alerts=("KvreadyForecastBudgetSpent",),
        ),
        Panel(
            "Forecasts judged",
            ask(JUDGED, "{{target}}"),
            unit="reqps",
            about="Below 50 in a long window nothing is alerted of.",
            alerts=("KvreadyForecastsMissing",),
        ),
    ),
)

ERROR = Row(
    "How wrong, and which way",
    (
        Panel(
            "Observed over predicted, time to first token",
            ask(
                "sum by (le) "
                '(increase(kvready_forecast_error_ratio_bucket{SCOPE,target="ttft"}[WINDOW]))',
                "{{le}}",
            ),
            draw=Draw.HEAT,
            about="1 is a perfect forecast; below 0.5 and above 2 is bad.",
        ),
        Panel(
            "Median of observed over predicted",
            ask(
                "histogram_quantile(0.5, sum by (le, target) "
                "(rate(kvready_forecast_error_ratio_bucket{SCOPE}[WINDOW])))",
                "{{target}}",
            ),
            about="Above 1: reality was slower. The middle of the histogram's buckets, roughly.",
        ),
        Panel(
            "Predicted against actual, time to first token, mean",
            (
                Query(
                    "sum(rate(kvready_forecast_predicted_seconds_total"
                    '{SCOPE,target="ttft"}[WINDOW])) / sum(rate(kvready_forecasts_total'
                    '{SCOPE,target="ttft",state="paired"}[WINDOW]))',
                    "predicted",
                ),
                Query(
                    "sum(rate(kvready_forecast_observed_seconds_total"
                    '{SCOPE,target="ttft"}[WINDOW])) / sum(rate(kvready_forecasts_total'
                    '{SCOPE,target="ttft",state="paired"}[WINDOW]))',
                    "actual",
                ),
            ),
            unit="s",
            about="Over the same forecasts. Equal means hide errors that cancel: see beside.",
        ),
        Panel(
            "Error for each second that really passed",
            (
                Query(
                    "sum by (target) (rate(kvready_forecast_under_seconds_total{SCOPE}[WINDOW])) "
                    "/ sum by (target) "
                    "(rate(kvready_forecast_observed_seconds_total{SCOPE}[WINDOW]))",
                    "{{target}}: took longer",
                ),
                Query(
                    "-sum by (target) (rate(kvready_forecast_over_seconds_total{SCOPE}[WINDOW])) "
                    "/ sum by (target) "
                    "(rate(kvready_forecast_observed_seconds_total{SCOPE}[WINDOW]))",
                    "{{target}}: was quicker",
                ),
            ),
            unit="percentunit",
        ),
    ),
)

RANGES = Row(
    "Ranges, drift and what was not judged",
    (
        Panel(
            "Share of outcomes inside their range",
            ask(
                'sum by (target) (rate(kvready_forecast_interval_total{SCOPE,outcome="inside"}'
                f"[WINDOW])) / ({JUDGED} > 0)",
                "{{target}}",
            ),
            unit="percentunit",
            about="Nominal: 90 %.",
            width=8,
            alerts=("KvreadyForecastRangesMiss",),
        ),
        Panel(
            "Upper bounds that passed before the outcome came",
            ask(
                "sum by (target) (rate(kvready_forecast_missed_total{SCOPE}[WINDOW]))",
                "{{target}}",
            ),
            unit="reqps",
            width=8,
        ),
        Panel(
            "Forecasts by what became of them",
            ask("sum by (state) (rate(kvready_forecasts_total{SCOPE}[WINDOW]))", "{{state}}"),
            unit="reqps",
            draw=Draw.STACKED,
            about="`late`: the outcome was known when the forecast was written; never scored.",
            width=8,
        ),
        Panel(
            "Drift: forecasts that have become worse",
            ask(
                "max by (target, kind) (kvready_forecast_drift_active{SCOPE})",
                "{{target}} {{kind}}",
            ),
            draw=Draw.STATES,
            about="One of the latest 200 outcomes raised this alarm.",
        ),
        Panel(
            "Shapes left out of every policy's scope",
            ask("sum by (target) (kvready_bad_cells{SCOPE})", "{{target}}"),
            about="Persistently bad. `GET /v1/report` names them, with examples.",
            width=6,
        ),
        Panel(
            "Backcasts: judged after the fact, never part of the above",
            ask(
                "sum by (target) (rate(kvready_backcast_bad_total{SCOPE}[WINDOW])) / (sum by "
                '(target) (rate(kvready_backcasts_total{SCOPE,state="scored"}[WINDOW])) > 0)',
                "{{target}} bad",
            ),
            unit="percentunit",
            about="Where no observer tells: from spans or reports of requests that have ended.",
            width=6,
            needs=Needs.NO_OBSERVER,
        ),
    ),
)

BOARD = Board(
    "prediction_error",
    "kvready: prediction error",
    "Are forecasts right, which are not, and since when?",
    (BUDGET, ERROR, RANGES),
)
