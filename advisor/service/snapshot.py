"""The values of all metrics at one moment, read from the parts that own them.

Runs in the ingest thread between two records, so that every value belongs to the same moment.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from kvready.advisor.inventory import InventoryCount
from kvready.advisor.ledger import PairState
from kvready.advisor.readiness import UNTOLD
from kvready.advisor.report import seen_drifts
from kvready.advisor.savings import Candidate, Verdict
from kvready.advisor.service import vitals
from kvready.advisor.service.catalogue_policy import INTENDED_PARTS, SAVED
from kvready.advisor.service.catalogue_prediction import SETTLED
from kvready.advisor.service.gate_view import gate_values
from kvready.advisor.service.metric import BOUNDS, PREFIX
from kvready.advisor.version import VERSION
from kvready.advisor.would_be import would_be
from kvready.collectors.collector import Coverage, Level
from kvready.collectors.records import Tier

if TYPE_CHECKING:
    from kvready.advisor.copy_model import CopyCalibration
    from kvready.advisor.distribution import Distribution
    from kvready.advisor.pipeline import Pipeline
    from kvready.advisor.service.calls import Calls
    from kvready.advisor.service.intake import Intake
    from kvready.advisor.service.tally import PairTally
    from kvready.advisor.service.tap_labels import TapLabels
    from kvready.collectors.otlp_forward import Forwarder
    from kvready.collectors.recorder import Recorder

Children = Mapping[tuple[str, ...], float]


# OpenMetrics allows 128 characters for names and values of all labels, of which a trace takes 40;
# and not every scraper reads an escaped quote there.
EXEMPLAR_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,78}")


class Exemplar(msgspec.Struct, frozen=True):
    """One value of a bucket: whose, and when by the wall clock; None: that cannot be placed."""

    value: float
    request_id: str
    wall_seconds: float | None
    trace_id: str = ""  # empty: it was not sampled, or no tap takes the engine's spans


class Histogram(msgspec.Struct, frozen=True):
    """One histogram child: observations per bucket, the last beyond all bounds, and their sum."""

    counts: tuple[int, ...]
    total: float
    exemplars: tuple[Exemplar | None, ...] = ()  # one per bucket, or none at all


Histograms = dict[str, dict[tuple[str, ...], Histogram]]


class Snapshot(msgspec.Struct, frozen=True):
    """All values. A child that is not named is zero, or absent where the catalogue says so."""

    levels: frozenset[Level]
    taps: tuple[str, ...]
    values: dict[str, Children]
    histograms: Histograms = {}
    classes: tuple[str, ...] = ()  # of requests, that have a label of their own


def own_values(
    coverages: tuple[Coverage, ...],
    labels: TapLabels,
    recorder: Recorder,
    intake: Intake,
    calls: Calls,
    memory_failures: int,
    now_seconds: float,
) -> dict[str, Children]:
    """The sidecar's own metrics."""
    recording = recorder.recording
    values: dict[str, Children] = {
        "build_info": {(VERSION, platform.python_version()): 1},
        "tap_state": labels.states(coverages),
        "tap_messages_total": labels.sums((c.tap, c.messages) for c in coverages),
        "tap_records_total": labels.sums((c.tap, c.records) for c in coverages),
        "tap_gaps_total": labels.sums((c.tap, c.gaps) for c in coverages),
        "tap_decode_errors_total": labels.sums((c.tap, c.decode_errors) for c in coverages),
        "tap_dropped_total": labels.sums((c.tap, c.dropped) for c in coverages),
        "tap_unknown_total": labels.sums((c.tap, sum(c.unknown.values())) for c in coverages),
        "tap_keyless_blocks_total": labels.sums((c.tap, c.keyless_blocks) for c in coverages),
        "tap_quiet_seconds": labels.longest(
            (c.tap, max(now_seconds - c.last_received_seconds, 0.0))
            for c in coverages
            if c.last_received_seconds is not None
        ),
        "replay_memory_failures_total": {(): memory_failures},
        "ingest_records_total": {(kind,): count for kind, count in recorder.kinds.items()},
        "ingest_dropped_total": labels.sums(intake.dropped.items()),
        "ingest_queue_records": {(): len(intake)},
        "ingest_lag_seconds": {(): intake.lag_seconds},
        "stepped_aside_total": calls.given(),
        "api_answers_total": calls.answers.told(),
        "recording_active": {(): float(recording.active)},
        "recording_records_total": {(): recording.records},
        "recording_bytes_total": {(): recording.written_bytes},
        "recording_failures_total": {(): recording.failures},
        "process_cpu_seconds_total": {(): vitals.cpu_seconds()},
        "process_resident_memory_bytes": {(): vitals.resident_bytes()},
        "process_start_time_seconds": {(): vitals.STARTED_WALL_SECONDS},
    }
    return named(values)


def pipeline_values(pipeline: Pipeline) -> dict[str, Children]:
    """What the pipeline counted."""
    totals = pipeline.totals
    inventory = pipeline.inventory
    trackers = [rank.requests for rank in pipeline.ranks.values()]
    values: dict[str, Children] = {
        "inventory_blocks": {(tier,): pipeline.inventory.live_blocks(tier) for tier in Tier},
        "inventory_oddities_total": {(one,): inventory.counts[one] for one in InventoryCount},
        "inventory_degraded": {(): float(pipeline.inventory.degraded)},
        "shed_requests_total": {(): sum(tracker.shed for tracker in trackers)},
        "unknown_request_records_total": {(): sum(tracker.unknown for tracker in trackers)},
        "shed_rank_records_total": {(): pipeline.shed_records},
        "implausible_records_total": {(): pipeline.refused_records},
        "unforecast_requests_total": {
            (): sum(rank.forecaster.unforecast for rank in pipeline.ranks.values())
        },
        "extrapolated_forecasts_total": {
            (): sum(rank.forecaster.extrapolated for rank in pipeline.ranks.values())
        },
        "unwatched_followers_total": {
            (): sum(rank.forecaster.inflight.unwatched for rank in pipeline.ranks.values())
        },
        "arrivals_total": {(): totals.arrivals},
        "requests_total": {(outcome,): count for outcome, count in totals.requests.items()},
        "first_tokens_total": {(): totals.first_tokens},
        "batches_total": {(): totals.batches},
        "batch_seconds_total": {(): totals.batch_seconds},
        "request_wait_seconds_total": {
            (state,): seconds for state, seconds in totals.wait_seconds.items()
        },
        "request_unattributed_seconds_total": {(): totals.unattributed_seconds},
        "prompt_tokens_total": {(): totals.prompt_tokens},
        "prompt_source_tokens_total": {
            ("hbm",): totals.hbm_hit_tokens,
            ("loaded",): totals.loaded_tokens,
            ("computed",): totals.computed_tokens,
        },
        "nominal_hit_tokens_total": {(): totals.nominal_hit_tokens},
        "in_time_hit_tokens_total": {(): totals.in_time_hit_tokens},
        "worthwhile_hit_tokens_total": {(): totals.worthwhile_hit_tokens},
        "lost_hit_tokens_total": {(): totals.lost_hit_tokens},
        "delay_hit_tokens_total": {(): totals.delay_hit_tokens},
        "duplicate_prefill_tokens_total": {(): totals.duplicate_prefill_tokens},
        "delay_hits_total": {(state,): count for state, count in totals.delay_hits.items()},
        "in_time_hits_total": {(): totals.in_time_hits},
        "late_hits_total": {(): totals.late_hits},
        "worthwhile_hits_total": {(): totals.worthwhile_hits},
        "unknown_residency_total": {(): totals.unknown_residency},
        "copies_total": _by_direction(totals.copies),
        "copy_bytes_total": _by_direction(totals.copy_bytes),
        "copy_seconds_total": _by_direction(totals.copy_seconds),
        "checked_loads_total": {(): totals.checked_loads},
        "mismatched_loads_total": {(): totals.mismatched_loads},
        "exposed_load_seconds_total": {(): totals.exposed_load_seconds},
        "hidden_load_seconds_total": {(): totals.hidden_load_seconds},
        "forecasts_open": {(): pipeline.ledger.open_count},
        "evidence_info": {(str(pipeline.evidence),): 1},
        "link_profile_info": {(pipeline.priors.kind, pipeline.priors.calibration_id): 1},
        "load_factor_ratio": {_path(one): one.factor for one in pipeline.calibrations},
        "load_calibration_stale": {_path(one): one.stale for one in pipeline.calibrations},
        "load_slowdown_ratio": {
            (one.kind, bound): value
            for one in pipeline.slowdowns
            for bound, value in zip(BOUNDS, (one.low, one.factor, one.high), strict=True)
        },
    }
    return named(
        values | _engine_values(pipeline) | _shadow_values(pipeline) | gate_values(pipeline)
    )


def _engine_values(pipeline: Pipeline) -> dict[str, Children]:
    """What the engine says it is."""
    engine = pipeline.engine
    if engine is None:
        return {}
    identity = (engine.engine, engine.engine_version, engine.model, str(engine.overlap))
    return {"engine_info": {identity: 1}}


def _shadow_values(pipeline: Pipeline) -> dict[str, Children]:
    """Strata's batches beside the engine's."""
    told = would_be(pipeline)
    intended = (
        told.intended_load_seconds,
        told.intended_compute_seconds,
        told.intended_stall_seconds,
    )
    seconds: dict[tuple[str, ...], float] = {}
    for saving in told.savings:
        if saving.verdict is not Verdict.SHOWN and saving.candidate is not Candidate.PLACEBO:
            continue
        for name, bounded in zip(SAVED, (saving.ttft, saving.busy), strict=True):
            bounds = bounded.low_seconds, bounded.seconds, bounded.high_seconds
            for bound, value in zip(BOUNDS, bounds, strict=True):
                if value is not None:
                    seconds[saving.candidate, name, bound] = value
    return {
        "shadow_batches_total": {(one,): count for one, count in told.batches.items()},
        "shadow_intended_seconds_total": {
            (part,): value for part, value in zip(INTENDED_PARTS, intended, strict=True)
        },
        "shadow_void_episodes_total": {(one,): count for one, count in told.voided.items()},
        "would_be_episodes": {(one.candidate,): one.episodes for one in told.savings},
        "would_be_verdict": {(one.candidate, one.verdict): 1 for one in told.savings},
        "would_be_saving_seconds": seconds,
    }


def outside_values(pipeline: Pipeline, forwarders: Iterable[Forwarder]) -> dict[str, Children]:
    """What taps outside the engine told."""
    outside = pipeline.outside
    backcaster = outside.backcaster
    passing = list(forwarders)
    error_seconds = outside.clock.error_seconds
    return named(
        {
            "contradictions": {(one.kind,): 1 for one in outside.contradictions.active},
            "scrapes_total": {(): outside.scrapes},
            "reports_total": {(): outside.reports},
            "reports_late_total": {(): backcaster.late},
            "reports_held": {(): backcaster.held},
            "backcasts_total": {
                (target, state): count for (target, state), count in backcaster.counts.items()
            },
            "backcast_bad_total": {(t,): count for t, count in backcaster.bad.items()},
            "backcast_covered_total": {(t,): count for t, count in backcaster.covered.items()},
            "forwarded_exports_total": {(): sum(one.sent for one in passing)},
            "forward_dropped_exports_total": {(): sum(one.dropped for one in passing)},
            "clock_steps_total": {(): outside.clock.steps},
            "clock_error_seconds": {} if error_seconds is None else {(): error_seconds},
        }
    )


def forecast_values(pipeline: Pipeline, tally: PairTally) -> dict[str, Children]:
    """What became of the forecasts."""
    targets = tally.targets.items()
    settled = SETTLED.values
    drifts = seen_drifts(pipeline)
    return named(
        {
            "forecasts_total": {
                (target, state): sums.states[PairState(state)]
                for target, sums in targets
                for state in settled
            },
            "forecast_bad_total": {(target,): sums.bad for target, sums in targets},
            "forecast_missed_total": {
                (target,): count for target, count in pipeline.ledger.missed.items()
            },
            "forecast_interval_total": {
                (target, outcome): count
                for target, sums in targets
                for outcome, count in sums.outcomes.items()
            },
            "forecast_drift_alarms_total": {(one.target, one.kind): one.alarms for one in drifts},
            "forecast_drift_active": {(one.target, one.kind): one.active for one in drifts},
            "forecast_predicted_seconds_total": {
                (target,): sums.predicted_seconds for target, sums in targets
            },
            "forecast_observed_seconds_total": {
                (target,): sums.observed_seconds for target, sums in targets
            },
            "forecast_under_seconds_total": {
                (target,): sums.under_seconds for target, sums in targets
            },
            "forecast_over_seconds_total": {
                (target,): sums.over_seconds for target, sums in targets
            },
        }
    )


def error_histograms(tally: PairTally, pipeline: Pipeline) -> Histograms:
    """The error of paired forecasts, by target."""
    return {
        f"{PREFIX}forecast_error_ratio": {
            (target,): histogram_of(sums.ratios, pipeline) for target, sums in tally.targets.items()
        }
    }


def histogram_of(distribution: Distribution, pipeline: Pipeline) -> Histogram:
    """As it stands now, its examples placed on the wall clock and in their traces."""
    offset_seconds = pipeline.outside.clock.offset_seconds
    trace_of = pipeline.service.traces.of
    exemplars = tuple(
        Exemplar(
            value=one.value,
            request_id=one.request_id,
            wall_seconds=_sum(one.seconds, offset_seconds),
            trace_id=trace_of(one.request_id),
        )
        if one is not None and EXEMPLAR_ID.fullmatch(one.request_id) is not None
        else None
        for one in distribution.examples
    )
    return Histogram(tuple(distribution.counts), distribution.total, exemplars)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _by_direction(moved: Mapping[tuple[Tier, Tier], float]) -> Children:
    return {(source, destination): value for (source, destination), value in moved.items()}


def _path(calibration: CopyCalibration) -> tuple[str, str, str]:
    return calibration.source, calibration.destination, calibration.method or UNTOLD


def named(values: dict[str, Children]) -> dict[str, Children]:
    """The same under the names that are exported."""
    return {PREFIX + name: children for name, children in values.items()}
