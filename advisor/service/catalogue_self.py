"""The part of the catalogue that tells of the sidecar itself: taps, cost, what it misses."""

from __future__ import annotations

from kvready.advisor.contradictions import Kind as Contradicts
from kvready.advisor.service.api_answers import Ended, Route
from kvready.advisor.service.calls import Until, Work
from kvready.advisor.service.metric import (
    CONFIGURED,
    Family,
    Label,
    at,
    counter,
    gauge,
    identity,
)
from kvready.collectors.collector import Level
from kvready.collectors.records import AnyRecord, TapState


def record_kinds() -> tuple[str, ...]:
    """Every kind of record, as recordings spell it."""
    return tuple(str(kind.__struct_config__.tag) for kind in AnyRecord.__args__)


TAP = Label("tap", source=CONFIGURED)

SELF = (
    *at(
        None,
        gauge("build_info", "", "Version of kvready and of Python; always 1.",
              *identity("version", "python")),
        gauge("tap_state", "", "1 for the state that each tap is in, 0 for the others.",
              TAP, Label("state", tuple(TapState))),
        counter("tap_messages_total", "messages",
                "Messages received, whatever became of them.", TAP),
        counter("tap_records_total", "records", "Records that a tap delivered.", TAP),
        counter("tap_gaps_total", "gaps", "Times that a tap saw messages missing.", TAP),
        counter("tap_decode_errors_total", "messages",
                "Messages that a tap could not understand; another engine's events count here.",
                TAP),
        counter("tap_dropped_total", "records", "Records that a tap itself had to drop.", TAP),
        counter("tap_unknown_total", "events",
                "Events or records of types that a later version added; skipped.", TAP),
        counter("tap_keyless_blocks_total", "blocks",
                "Blocks that got no content key, because their chain's start is not known.", TAP),
        gauge("tap_quiet_seconds", "seconds",
              "Time since a tap received anything; absent until the first message.",
              TAP, sparse=True),
        counter("replay_memory_failures_total", "failures",
                "Times that past replay requests could not be read or kept."),
        counter("ingest_records_total", "records",
                "Records ingested, the recorder's own included.",
                Label("kind", record_kinds())),
        counter("ingest_dropped_total", "records",
                "Records dropped because the queue was full.", TAP),
        gauge("ingest_queue_records", "records", "Records received and not yet ingested."),
        gauge("ingest_lag_seconds", "seconds",
              "Time from reception to ingestion, of the latest record ingested."),
        counter("api_answers_total", "calls",
                "Calls of the API by what was asked for and how that ended; `flags` is what hooks "
                "poll, and `unknown` a path that is not there.",
                Label("route", tuple(Route)), Label("ended", tuple(Ended))),
        counter("stepped_aside_total", "",
                "Times that a thread that takes in records stepped aside for calls of the API, by "
                "whether all were answered or its bound ended it.",
                Label("thread", tuple(Work)), Label("until", tuple(Until))),
        gauge("evidence_info", "",
              "What kind of facts all of these are: measured, or simulated; always 1.",
              *identity("evidence")),
        gauge("link_profile_info", "",
              "Whose figures loads are forecast from before the engine has made any; always 1.",
              *identity("evidence", "calibration_id")),
        gauge("recording_active", "", "1 while records are kept in a file."),
        counter("recording_records_total", "records", "Records kept in the file."),
        counter("recording_bytes_total", "bytes", "Bytes written to the file."),
        counter("recording_failures_total", "failures",
                "Times that the recording ended early: a full disk, or its size limit."),
        counter("process_cpu_seconds_total", "seconds", "CPU time that the sidecar has used."),
        gauge("process_resident_memory_bytes", "bytes", "Memory that the sidecar holds."),
        gauge("process_start_time_seconds", "seconds",
              "When this sidecar started, in Unix time: another value is another sidecar."),
        gauge("level_reached", "",
              "1 for each level that a tap reaches, 0 for the others: metrics of these are absent.",
              Label("level", tuple(Level))),
        gauge("coverage_ratio", "ratio",
              "Share of each family's metrics that have a value now: what no tap tells has none.",
              Label("family", tuple(Family))),
        gauge("exported_series", "series", "Series of this page, buckets included."),
        gauge("left_out_series", "series",
              "Series left out of this page, since they would be too many."),
        counter("label_overflow_total", "",
                "Times that a value was counted under the label `overflow`, since there were too "
                "many: taps once each, classes once a request.",
                Label("label", ("tap", "class"))),
        gauge("snapshot_seconds", "seconds",
              "Time that reading these values kept records waiting; they queue meanwhile."),
    ),
    *at(
        Level.METRICS,
        gauge("contradictions", "", "1 while sources contradict each other in this way, else 0.",
              Label("kind", tuple(Contradicts))),
        counter("scrapes_total", "scrapes", "Pages of the engine's metrics that were read."),
    ),
    *at(
        Level.REQUESTS,
        counter("forwarded_exports_total", "exports",
                "Exports of spans passed on to the collector downstream."),
        counter("forward_dropped_exports_total", "exports",
                "Exports of spans that could not be passed on."),
        counter("clock_steps_total", "steps", "Times that the wall clock was stepped."),
        gauge("clock_error_seconds", "seconds",
              "Scatter of the map from wall to monotonic time; absent before the first second.",
              sparse=True),
    ),
    *at(
        Level.OBSERVER,
        counter("shed_requests_total", "requests", "Live requests forgotten for the bound."),
        counter("unknown_request_records_total", "records",
                "Records of requests that arrived before the sidecar did."),
        counter("shed_rank_records_total", "records", "Records of ranks beyond the bound."),
        counter("implausible_records_total", "records",
                "Records refused for a time or a count that no engine can have meant."),
    ),
)  # fmt: skip
