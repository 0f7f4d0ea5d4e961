"""Taps and the sidecar: is what we see whole, and what does seeing it cost."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panel import Draw, Panel, Query, ask

STATES = Row(
    "What we see",
    (
        Panel(
            "State of taps",
            ask(
                "max by (instance, tap, state) (kvready_tap_state{SCOPE}) == 1",
                "{{instance}} {{tap}}: {{state}}",
            ),
            draw=Draw.STATES,
            alerts=("KvreadyTapSilent",),
        ),
        Panel(
            "Time since a tap received anything",
            ask(
                "max by (instance, tap) (kvready_tap_quiet_seconds{SCOPE})", "{{instance}} {{tap}}"
            ),
            unit="s",
        ),
        Panel(
            "Levels that a tap reaches",
            ask("max by (level) (kvready_level_reached{SCOPE})", "level {{level}}"),
            draw=Draw.STATES,
            about="Metrics of the others are absent: unknown is not zero.",
            width=8,
        ),
        Panel(
            "Share of each family's metrics that have a value",
            ask("min by (family) (kvready_coverage_ratio{SCOPE})", "{{family}}"),
            unit="percentunit",
            width=8,
        ),
        Panel(
            "Sources that contradict each other",
            ask("max by (kind) (kvready_contradictions{SCOPE})", "{{kind}}"),
            draw=Draw.STATES,
            width=8,
            alerts=("KvreadyContradiction",),
        ),
    ),
)

LOSSES = Row(
    "What got lost",
    (
        Panel(
            "Gaps",
            ask("sum by (tap) (increase(kvready_tap_gaps_total{SCOPE}[WINDOW]))", "{{tap}}"),
            width=8,
            alerts=("KvreadyTapGap",),
        ),
        Panel(
            "Messages that could not be read",
            ask(
                "sum by (tap) (increase(kvready_tap_decode_errors_total{SCOPE}[WINDOW]))", "{{tap}}"
            ),
            width=8,
            alerts=("KvreadyTapUnreadable",),
        ),
        Panel(
            "Records dropped",
            (
                Query(
                    "sum by (tap) (increase(kvready_ingest_dropped_total{SCOPE}[WINDOW]))",
                    "queue full: {{tap}}",
                ),
                Query(
                    "sum by (tap) (increase(kvready_tap_dropped_total{SCOPE}[WINDOW]))",
                    "by the tap: {{tap}}",
                ),
            ),
            width=8,
            alerts=("KvreadyRecordsDropped",),
        ),
        Panel(
            "Inventory in doubt",
            ask("max by (instance) (kvready_inventory_degraded{SCOPE})", "{{instance}}"),
            draw=Draw.STATES,
            width=8,
            alerts=("KvreadyInventoryDoubtful",),
        ),
        Panel(
            "Oddities in events",
            ask(
                "sum by (kind) (rate(kvready_inventory_oddities_total{SCOPE}[WINDOW]))", "{{kind}}"
            ),
            width=8,
        ),
        Panel(
            "Records refused, unknown or shed",
            (
                Query("sum(rate(kvready_implausible_records_total{SCOPE}[WINDOW]))", "implausible"),
                Query(
                    "sum(rate(kvready_unknown_request_records_total{SCOPE}[WINDOW]))",
                    "of requests from before",
                ),
                Query("sum(rate(kvready_shed_requests_total{SCOPE}[WINDOW]))", "requests shed"),
                Query("sum(rate(kvready_shed_rank_records_total{SCOPE}[WINDOW]))", "ranks shed"),
            ),
            width=8,
        ),
    ),
)

SIDECAR = Row(
    "The sidecar itself",
    (
        Panel(
            "Records taken in",
            ask("sum by (tap) (rate(kvready_tap_records_total{SCOPE}[WINDOW]))", "{{tap}}"),
            draw=Draw.STACKED,
            width=8,
        ),
        Panel(
            "From reception to ingestion",
            ask("max by (instance) (kvready_ingest_lag_seconds{SCOPE})", "{{instance}}"),
            unit="s",
            width=8,
            limit=5.0,
            alerts=("KvreadyIngestBehind",),
        ),
        Panel(
            "Records that wait",
            ask("max by (instance) (kvready_ingest_queue_records{SCOPE})", "{{instance}}"),
            width=8,
        ),
        Panel(
            "CPU",
            ask(
                "sum by (instance) (rate(kvready_process_cpu_seconds_total{SCOPE}[WINDOW]))",
                "{{instance}}",
            ),
            unit="percentunit",
            about="Of one core.",
            width=8,
        ),
        Panel(
            "Memory",
            ask("max by (instance) (kvready_process_resident_memory_bytes{SCOPE})", "{{instance}}"),
            unit="bytes",
            width=8,
        ),
        Panel(
            "Time since it began",
            ask(
                "time() - max by (instance) (kvready_process_start_time_seconds{SCOPE})",
                "{{instance}}",
            ),
            unit="s",
            draw=Draw.NUMBER,
            width=8,
            alerts=("KvreadySidecarDown", "KvreadySidecarRestarts", "KvreadySidecarsAbsent"),
        ),
        Panel(
            "Series of its page",
            (
                Query(
                    "max by (instance) (kvready_exported_series{SCOPE})", "exported {{instance}}"
                ),
                Query(
                    "max by (instance) (kvready_left_out_series{SCOPE})", "left out {{instance}}"
                ),
            ),
            width=8,
            alerts=("KvreadySeriesLeftOut",),
        ),
        Panel(
            "Time that a reading of these values held up records",
            ask("max by (instance) (kvready_snapshot_seconds{SCOPE})", "{{instance}}"),
            unit="s",
            width=8,
        ),
        Panel(
            "Exports over OTLP",
            ask(
                "sum by (signal, result) (rate(kvready_otel_exports_total{SCOPE}[WINDOW]))",
                "{{signal}} {{result}}",
            ),
            about="Zero where no collector is configured.",
            width=8,
        ),
    ),
)

BOARD = Board(
    "taps",
    "kvready: taps and sidecar",
    "Is what we see whole, and what does seeing it cost?",
    (STATES, LOSSES, SIDECAR),
)
