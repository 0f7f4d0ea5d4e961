"""What each alert is tested with: series as promtool writes them, and whether it fires.

`_` is a sample that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WHO = {"job": "kv", "instance": "a:8430"}


class Case(NamedTuple):
    """One alert under one course of things.

    `fires`: labels of each alert, beside job and instance. `step`: between two samples.
    """

    alert: str
    why: str
    series: Mapping[str, str]
    at: str
    fires: tuple[Mapping[str, str], ...] = ()
    step: str = "1m"


def series(name: str, **labels: str) -> str:
    """A series' name with its labels, as promtool reads it."""
    told = ",".join(f'{key}="{value}"' for key, value in (WHO | labels).items())
    return f"{name}{{{told}}}"


def forecasts(
    target: str,
    judged: str,
    bad: str,
    *,
    stalled: str = "0x500",
    began: str = "1000x500",
    objective: str = "0.95x500",
) -> dict[str, str]:
    """All that the burn alerts look at. Outcomes that are not bad lie inside their range."""
    return {
        series("kvready_forecast_interval_total", target=target, outcome="inside"): judged,
        series("kvready_forecast_interval_total", target=target, outcome="above"): "0x500",
        series("kvready_forecast_interval_total", target=target, outcome="below"): "0x500",
        series("kvready_forecast_bad_total", target=target): bad,
        series("kvready_bad_prediction_objective_ratio"): objective,
        series("kvready_serving_stalled"): stalled,
        series("kvready_process_start_time_seconds"): began,
    }


def held(name: str, value: str, **labels: str) -> dict[str, str]:
    """One series."""
    return {series(name, **labels): value}


TTFT = ({"target": "ttft"},)
FAST, SLOW = "KvreadyForecastsBadFast", "KvreadyForecastsBadSlow"
BUDGET = "KvreadyForecastBudgetSpent"

BURNS = (
    Case(FAST, "a third is bad", forecasts("ttft", "0+9x90", "0+3x90"), "60m", TTFT),
    Case(FAST, "a fifth is bad", forecasts("ttft", "0+10x90", "0+2x90"), "60m"),
    Case(FAST, "no forecast at all", {}, "60m"),
    Case(FAST, "another target's are bad", forecasts("queue", "0+9x90", "0+9x90"), "60m"),
    Case(
        FAST,
        "it was bad, and is over",
        forecasts("ttft", "0+9x90", "0+6x50 300+0x40"),
        "60m",
    ),
    Case(
        FAST,
        "bad for five minutes after a good hour",
        forecasts("ttft", "0+9x90", "0+0x55 0+9x35"),
        "60m",
    ),
    Case(FAST, "49 forecasts an hour, all bad", forecasts("ttft", "0+0.8x90", "0+0.8x90"), "60m"),
    Case(
        FAST,
        "many bad forecasts, all of eight minutes",
        forecasts("ttft", "0+0x52 0+50x8", "0+0x52 0+50x8"),
        "60m",
    ),
    Case(
        FAST,
        "bad since it began, for a quarter of an hour",
        forecasts("ttft", "0+9x15", "0+9x15"),
        "15m",
        TTFT,
    ),
    Case(
        FAST,
        "the engine stalls",
        forecasts("ttft", "0+9x90", "0+6x90", stalled="0x58 1x40"),
        "61m",
    ),
    Case(
        FAST,
        "the stall is over, and forecasts are still bad",
        forecasts("ttft", "0+9x90", "0+6x90", stalled="0x40 1x5 0x60"),
        "61m",
        TTFT,
    ),
    Case(
        FAST,
        "the sidecar began anew, and learns",
        forecasts("ttft", "0+9x58 0+9x40", "0+2.6x58 0+9x40", began="1000x58 5000x40"),
        "61m",
    ),
    Case(
        FAST,
        "the sidecar was away for ten minutes, and learns",
        forecasts("ttft", "0+9x48 _x10 0+9x40", "0+2.6x48 _x10 0+9x40", began="9x48 _x10 99x40"),
        "61m",
    ),
    Case(
        FAST,
        "a scrape failed five minutes ago",
        forecasts("ttft", "0+9x55 _x1 513+9x40", "0+6x55 _x1 342+6x40", began="9x55 _x1 9x40"),
        "61m",
        TTFT,
    ),
    Case(
        FAST,
        "counters that fell back are no forecasts",
        forecasts("ttft", "10000+0x30 0+0x60", "10000+0x30 0+0x60", began="1000x30 5000x60"),
        "60m",
    ),
    Case(
        FAST,
        "shadow days ask for less, and nearly all are bad",
        forecasts("ttft", "0+10x90", "0+9.5x90", objective="0.80x90"),
        "60m",
        TTFT,
    ),
    Case(
        FAST,
        "shadow days ask for less, and many are bad",
        forecasts("ttft", "0+10x90", "0+8x90", objective="0.80x90"),
        "60m",
    ),
    Case(SLOW, "a fifth is bad", forecasts("ttft", "0+50x80", "0+10x80"), "6h", TTFT, "5m"),
    Case(SLOW, "a tenth is bad", forecasts("ttft", "0+50x80", "0+5x80"), "6h", step="5m"),
    Case(
        SLOW,
        "it was bad, and is over",
        forecasts("ttft", "0+50x80", "0+40x60 2400x20"),
        "6h",
        step="5m",
    ),
    Case(SLOW, "few of them", forecasts("ttft", "0+0.6x80", "0+0.6x80"), "6h", step="5m"),
    Case(
        SLOW,
        "the engine stalls",
        forecasts("ttft", "0+50x80", "0+25x80", stalled="0x68 1x12"),
        "6h",
        step="5m",
    ),
    Case(
        SLOW,
        "the sidecar began anew a quarter of an hour ago",
        forecasts("ttft", "0+50x80", "0+25x80", began="1000x69 5000x12"),
        "6h",
        step="5m",
    ),
    Case(
        BUDGET,
        "a tenth of one target's is bad",
        forecasts("load", "0+99x440", "0+10x440"),
        "72h",
        ({"target": "load"},),
        step="10m",
    ),
    Case(
        BUDGET,
        "one in fifty is bad",
        forecasts("load", "0+100x440", "0+2x440"),
        "72h",
        step="10m",
    ),
    Case(
        BUDGET,
        "bad three days ago, good by now",
        forecasts("load", "0+99x440", "0+90x200 18000x240"),
        "72h",
        step="10m",
    ),
    Case(BUDGET, "few of them", forecasts("load", "0+0.1x440", "0+0.1x440"), "72h", step="10m"),
    Case(
        BUDGET,
        "all in one hour",
        forecasts("load", "0x424 0+99x8", "0x424 0+99x8"),
        "72h",
        step="10m",
    ),
)

MISS, MISSING = "KvreadyForecastRangesMiss", "KvreadyForecastsMissing"
UNEXPLAINED = "KvreadyWaitsUnexplained"


def ranges(inside: str, above: str) -> dict[str, str]:
    """Outcomes inside and above their range."""
    return held("kvready_forecast_interval_total", inside, target="ttft", outcome="inside") | held(
        "kvready_forecast_interval_total", above, target="ttft", outcome="above"
    )


def arrived(arrivals: str, judged: str | None) -> dict[str, str]:
    """Requests, and forecasts of them that were judged."""
    found = held("kvready_arrivals_total", arrivals)
    return found if judged is None else found | ranges(judged, "0x200")


def explained(unexplained: str, queue: str, load: str, first_tokens: str) -> dict[str, str]:
    """Time of requests."""
    return {
        series("kvready_request_unattributed_seconds_total"): unexplained,
        series("kvready_request_wait_seconds_total", state="queue"): queue,
        series("kvready_request_wait_seconds_total", state="load"): load,
        series("kvready_first_tokens_total"): first_tokens,
    }


FORECASTS = (
    Case(MISS, "four in five held", ranges("0+40x80", "0+10x80"), "6h", TTFT, "5m"),
    Case(MISS, "nine in ten held", ranges("0+45x80", "0+5x80"), "6h", step="5m"),
    Case(MISS, "few of them", ranges("0+0.5x80", "0+0.5x80"), "6h", step="5m"),
    Case(MISS, "for ten minutes", ranges("0+50x80", "0x70 0+900x8"), "6h", step="5m"),
    Case(MISSING, "no forecast is judged", arrived("0+9x200", "0x200"), "90m", ({},)),
    Case(MISSING, "the series is not there", arrived("0+9x200", None), "90m", ({},)),
    Case(MISSING, "half are judged", arrived("0+9x200", "0+4.5x200"), "90m"),
    Case(MISSING, "few requests", arrived("0+1x200", "0x200"), "90m"),
    Case(MISSING, "no request is seen at all", {}, "90m"),
    Case(
        UNEXPLAINED,
        "a tenth is explained by nothing",
        explained("0+1x200", "0+5x200", "0+4x200", "0+5x200"),
        "90m",
        ({},),
    ),
    Case(
        UNEXPLAINED,
        "one in a hundred",
        explained("0+0.1x200", "0+5x200", "0+4.9x200", "0+5x200"),
        "90m",
    ),
    Case(
        UNEXPLAINED,
        "few requests",
        explained("0+1x200", "0+5x200", "0+4x200", "0+0.5x200"),
        "90m",
    ),
    Case(UNEXPLAINED, "no request", explained("0x200", "0x200", "0x200", "0x200"), "90m"),
)


def moved(trigger: str, counts: str) -> dict[str, str]:
    """How often one policy was moved."""
    return held("kvready_policy_transitions_total", counts, policy="dedup", trigger=trigger)


HARMED = ({"policy": "dedup", "trigger": "harm"},)
DEDUP = {"policy": "dedup", "overlay": "rolled_back"}

POLICIES = (
    Case("KvreadyPolicyHarm", "rolled back", moved("harm", "0x5 1x60"), "10m", HARMED),
    Case("KvreadyPolicyHarm", "an hour later", moved("harm", "0x5 1x90"), "80m"),
    Case("KvreadyPolicyHarm", "moved by a person", moved("lower", "0x5 1x60"), "10m"),
    Case("KvreadyPolicyHarm", "counts anew", moved("harm", "1x5 0x60"), "10m"),
    Case(
        "KvreadyWrongBytes", "one differed", held("kvready_mismatched_loads_total", "0x5 1x60"),
        "10m", ({},),
    ),
    Case("KvreadyWrongBytes", "none", held("kvready_mismatched_loads_total", "0x60"), "10m"),
    Case(
        "KvreadyPolicyRolledBack", "latched", held("kvready_policy_overlay", "0x5 1x30", **DEDUP),
        "20m", (DEDUP,),
    ),
    Case(
        "KvreadyPolicyRolledBack", "cleared at once",
        held("kvready_policy_overlay", "0x5 1x3 0x30", **DEDUP), "20m",
    ),
    Case(
        "KvreadyPolicyTakenBack", "by bad predictions", moved("bad_predictions", "0x5 1x60"),
        "10m", ({"policy": "dedup", "trigger": "bad_predictions"},),
    ),
    Case("KvreadyPolicyTakenBack", "by a person", moved("lower", "0x5 1x60"), "10m"),
    Case(
        "KvreadyPolicyPaused", "for two hours",
        held("kvready_policy_overlay", "1x180", policy="dedup", overlay="paused"), "120m",
        ({"policy": "dedup", "overlay": "paused"},),
    ),
    Case(
        "KvreadyPolicyPaused", "again and again, for minutes",
        held("kvready_policy_overlay", "1x50 0x10 1x50 0x10", policy="dedup", overlay="paused"),
        "100m",
    ),
    Case(
        "KvreadyKillSwitchActive", "killed", held("kvready_kill_switch_active", "0x5 1x9",
        holder="api"), "10m", ({"holder": "api"},),
    ),
    Case(
        "KvreadyKillSwitchActive", "revived", held("kvready_kill_switch_active", "1x5 0x9",
        holder="api"), "10m",
    ),
    Case(
        "KvreadyKillSwitchFailing", "once", held("kvready_kill_switch_failures_total", "0x5 1x9"),
        "10m", ({},),
    ),
    Case(
        "KvreadyKillSwitchFailing", "never", held("kvready_kill_switch_failures_total", "0x20"),
        "10m",
    ),
    Case(
        "KvreadyAuditFailing", "for ten minutes",
        held("kvready_policy_keeping_failing", "0x5 1x20", part="audit"), "20m",
        ({"part": "audit"},),
    ),
    Case(
        "KvreadyAuditFailing", "for a moment",
        held("kvready_policy_keeping_failing", "0x5 1x3 0x20", part="audit"), "20m",
    ),
    Case(
        "KvreadyAuditLost", "some", held("kvready_policy_keeping_lost_total", "0x5 3x20"), "10m",
        ({},),
    ),
    Case("KvreadyAuditLost", "none", held("kvready_policy_keeping_lost_total", "0x20"), "10m"),
    Case(
        "KvreadyAuditRewritten", "another head, no entry",
        held("kvready_audit_head", "77x10 99x10") | held("kvready_audit_entries_total", "4x20"),
        "12m", ({},),
    ),
    Case(
        "KvreadyAuditRewritten", "cut",
        held("kvready_audit_head", "77x10 99x10") | held("kvready_audit_entries_total", "4x10 3x9"),
        "12m", ({},),
    ),
    Case(
        "KvreadyAuditRewritten", "one more entry",
        held("kvready_audit_head", "77x10 99x10") | held("kvready_audit_entries_total", "4x10 5x9"),
        "12m",
    ),
    Case(
        "KvreadyAuditRewritten", "the sidecar was away and came back with the same",
        held("kvready_audit_head", "77x9 _x4 77x9")
        | held("kvready_audit_entries_total", "4x9 _x4 4x9"),
        "16m",
    ),
)  # fmt: skip

STALLED = "KvreadyEngineStalled"
STALE = {"source": "host", "destination": "hbm", "method": "gather"}
CONTRADICTS = {"kind": "events_silent"}

ENGINE = (
    Case(STALLED, "for five minutes", held("kvready_serving_stalled", "0x5 1x9"), "10m", ({},)),
    Case(STALLED, "not", held("kvready_serving_stalled", "0x20"), "10m"),
    Case(STALLED, "for one sample", held("kvready_serving_stalled", "0x5 1 0x9"), "6m"),
    Case(
        STALLED, "the observer is silent, so who knows",
        held("kvready_serving_stalled", "0x5 1x9")
        | held("kvready_tap_state", "0x4 1x9", tap="observer", state="silent"),
        "10m",
    ),
    Case(
        STALLED, "and the tap is live",
        held("kvready_serving_stalled", "0x5 1x9")
        | held("kvready_tap_state", "0x20", tap="observer", state="silent"),
        "10m", ({},),
    ),
    Case(
        "KvreadyCalibrationStale", "for long", held("kvready_load_calibration_stale", "1x30",
        **STALE), "20m", (STALE,),
    ),
    Case(
        "KvreadyCalibrationStale", "now and then", held("kvready_load_calibration_stale",
        "1x10 0x2 1x10", **STALE), "20m",
    ),
    Case(
        "KvreadyContradiction", "holds", held("kvready_contradictions", "1x20", **CONTRADICTS),
        "10m", (CONTRADICTS,),
    ),
    Case(
        "KvreadyContradiction", "for one judgement", held("kvready_contradictions", "1x3 0x20",
        **CONTRADICTS), "10m",
    ),
)  # fmt: skip

OBSERVER = {"tap": "observer"}
SILENT = {"tap": "observer", "state": "silent"}
DOWN = {"__name__": "up"}


def known(up: str, built: str) -> dict[str, str]:
    """A target, and whether it is a sidecar."""
    return held("up", up) | held("kvready_build_info", built, version="0.1.0", python="3.11.7")


def gaps(counts: str, began: str) -> dict[str, str]:
    """Gaps of a tap, and when the sidecar began."""
    return held("kvready_tap_gaps_total", counts, **OBSERVER) | held(
        "kvready_process_start_time_seconds", began
    )


TAPS = (
    Case("KvreadyTapSilent", "for ten minutes", held("kvready_tap_state", "0x5 1x20", **SILENT),
         "15m", (SILENT,)),
    Case("KvreadyTapSilent", "for two minutes", held("kvready_tap_state", "0x5 1x2 0x20", **SILENT),
         "15m"),
    Case("KvreadyTapSilent", "live", held("kvready_tap_state", "1x20", tap="x", state="live"),
         "15m"),
    Case("KvreadyTapGap", "one", gaps("0x25 1x20", "1000x50"), "30m", (OBSERVER,)),
    Case("KvreadyTapGap", "none since it joined", gaps("1x50", "1000x50"), "30m"),
    Case("KvreadyTapGap", "it began anew, and joined in the middle",
         gaps("5x5 1x20", "1000x5 5000x20"), "10m"),
    Case("KvreadyInventoryDoubtful", "for long", held("kvready_inventory_degraded", "1x30"), "20m",
         ({},)),
    Case("KvreadyInventoryDoubtful", "healed", held("kvready_inventory_degraded", "1x9 0x30"),
         "20m"),
    Case("KvreadyTapUnreadable", "some", held("kvready_tap_decode_errors_total", "0x5 4x20",
         **OBSERVER), "10m", (OBSERVER,)),
    Case("KvreadyTapUnreadable", "none", held("kvready_tap_decode_errors_total", "0x30",
         **OBSERVER), "10m"),
    Case("KvreadyRecordsDropped", "by the queue", held("kvready_ingest_dropped_total", "0x5 4x20",
         **OBSERVER), "10m", (OBSERVER,)),
    Case("KvreadyRecordsDropped", "by the tap", held("kvready_tap_dropped_total", "0x5 4x20",
         **OBSERVER), "10m", (OBSERVER,)),
    Case("KvreadyRecordsDropped", "none", held("kvready_ingest_dropped_total", "0x30", **OBSERVER)
         | held("kvready_tap_dropped_total", "0x30", **OBSERVER), "10m"),
    Case("KvreadyIngestBehind", "by nine seconds", held("kvready_ingest_lag_seconds", "9x20"),
         "10m", ({},)),
    Case("KvreadyIngestBehind", "for a moment", held("kvready_ingest_lag_seconds", "9x3 0x20"),
         "10m"),
    Case("KvreadySidecarDown", "it was one", known("1x5 0x20", "1x5"), "15m", ({},)),
    Case("KvreadySidecarDown", "another program's target", held("up", "0x30"), "15m"),
    Case("KvreadySidecarDown", "restarted", known("1x5 0x3 1x20", "1x5 _x3 1x20"), "15m"),
    Case("KvreadySidecarDown", "no target any more", known("1x5 _x20", "1x5 _x20"), "15m"),
    Case("KvreadySidecarsAbsent", "none", held("up", "1x30"), "20m", ({"everyone": ""},)),
    Case("KvreadySidecarsAbsent", "one", known("1x30", "1x30"), "20m"),
    Case("KvreadySidecarsAbsent", "restarted", known("1x30", "1x9 _x4 1x30"), "16m"),
    Case("KvreadySidecarRestarts", "three times", held("kvready_process_start_time_seconds",
         "1x9 2x9 3x9 4x9"), "36m", ({},)),
    Case("KvreadySidecarRestarts", "once", held("kvready_process_start_time_seconds",
         "1x9 2x30"), "36m"),
    Case("KvreadySeriesLeftOut", "some", held("kvready_left_out_series", "8x20"), "10m", ({},)),
    Case("KvreadySeriesLeftOut", "none", held("kvready_left_out_series", "0x20"), "10m"),
)  # fmt: skip

CASES: tuple[Case, ...] = BURNS + FORECASTS + POLICIES + ENGINE + TAPS
