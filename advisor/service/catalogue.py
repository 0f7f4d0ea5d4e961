"""The one catalogue of metrics: what is exported, in which unit, with which labels, at which level.

Names follow Prometheus: one prefix, base units, `_total` for counters. Label values come from
closed sets (`closed`) or from the configuration (`configured`); nothing that traffic can grow.
A metric of a level that no tap reaches is absent rather than zero: unknown is not zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kvready.advisor.backcasts import BackcastState
from kvready.advisor.contradictions import Kind as Contradicts
from kvready.advisor.drift import DriftKind
from kvready.advisor.interference import BatchKind
from kvready.advisor.inventory import InventoryCount
from kvready.advisor.kill_switch import Holder
from kvready.advisor.ledger import PairState
from kvready.advisor.modes import Need, Trigger
from kvready.advisor.outside_model import BackcastTarget
from kvready.advisor.policies import Mode, Overlay
from kvready.advisor.readiness import UNTOLD
from kvready.advisor.savings import Candidate, Verdict
from kvready.advisor.service.calls import Until, Work
from kvready.advisor.service.catalogue_gates import GATES
from kvready.advisor.service.metric import (
    CONFIGURED,
    IDENTITY,
    POLICY,
    PREFIX,
    TARGET,
    Kind,
    Label,
    Metric,
    counter,
    gauge,
)
from kvready.advisor.service.tally import RATIO_BUCKETS, IntervalOutcome
from kvready.advisor.shadow import Compared, Voided
from kvready.advisor.waits import WaitState
from kvready.collectors.collector import Level
from kvready.collectors.records import AnyRecord, CopyMethod, Outcome, TapState, Tier


def record_kinds() -> tuple[str, ...]:
    """Every kind of record, as recordings spell it."""
    return tuple(str(kind.__struct_config__.tag) for kind in AnyRecord.__args__)


def _identity(*names: str) -> tuple[Label, ...]:
    return tuple(Label(name, source=IDENTITY) for name in names)


TAP = Label("tap", source=CONFIGURED)
SOURCE = Label("source", tuple(Tier))
DESTINATION = Label("destination", tuple(Tier))
METHOD = Label("method", (*CopyMethod, UNTOLD))
BACKCAST_TARGET = Label("target", tuple(BackcastTarget))
BOUNDS = ("low", "middle", "high")
CANDIDATE = Label("policy", tuple(Candidate))
INTENDED_PARTS = ("load", "compute", "stall")
SAVED = ("ttft", "busy")
DELAY_HIT_STATES = ("in_queue", "in_flight")
SETTLED = Label("state", tuple(state for state in PairState if state is not PairState.OPEN))

KEPT = Label("part", ("audit", "store"))

OWN = (
    gauge("build_info", "", "Version of kvready and of Python; always 1.",
          *_identity("version", "python")),
    gauge("tap_state", "", "1 for the state that each tap is in, 0 for the others.",
          TAP, Label("state", tuple(TapState))),
    counter("tap_messages_total", "messages", "Messages received, whatever became of them.", TAP),
    counter("tap_records_total", "records", "Records that a tap delivered.", TAP),
    counter("tap_gaps_total", "gaps", "Times that a tap saw messages missing.", TAP),
    counter("tap_decode_errors_total", "messages",
            "Messages that a tap could not understand; another engine's events count here.", TAP),
    counter("tap_dropped_total", "records", "Records that a tap itself had to drop.", TAP),
    counter("tap_unknown_total", "events",
            "Events or records of types that a later version added; skipped.", TAP),
    counter("tap_keyless_blocks_total", "blocks",
            "Blocks that got no content key, because their chain's start is not known.", TAP),
    gauge("tap_quiet_seconds", "seconds",
          "Time since a tap received anything; absent until the first message.", TAP, sparse=True),
    counter("replay_memory_failures_total", "failures",
            "Times that past replay requests could not be read or kept."),
    counter("ingest_records_total", "records", "Records ingested, the recorder's own included.",
            Label("kind", record_kinds())),
    counter("ingest_dropped_total", "records", "Records dropped because the queue was full.", TAP),
    gauge("ingest_queue_records", "records", "Records received and not yet ingested."),
    gauge("ingest_lag_seconds", "seconds",
          "Time from reception to ingestion, of the latest record ingested."),
    counter("stepped_aside_total", "",
            "Times that a thread that takes in records stepped aside for calls of the API, by "
            "whether all were answered or its bound ended it.",
            Label("thread", tuple(Work)), Label("until", tuple(Until))),
    gauge("evidence_info", "",
          "What kind of facts all of these are: measured, or simulated; always 1.",
          *_identity("evidence")),
    gauge("link_profile_info", "",
          "Whose figures loads are forecast from before the engine has made any; always 1.",
          *_identity("evidence", "calibration_id")),
    gauge("recording_active", "", "1 while records are kept in a file."),
    counter("recording_records_total", "records", "Records kept in the file."),
    counter("recording_bytes_total", "bytes", "Bytes written to the file."),
    counter("recording_failures_total", "failures",
            "Times that the recording ended early: a full disk, or its size limit."),
    counter("process_cpu_seconds_total", "seconds", "CPU time that the sidecar has used."),
    gauge("process_resident_memory_bytes", "bytes", "Memory that the sidecar holds."),
)  # fmt: skip

POLICIES = (
    gauge("policy_mode", "",
          "1 for the furthest mode that each policy is in, over all its scopes, 0 for the others.",
          POLICY, Label("mode", tuple(Mode))),
    gauge("policy_overlay", "",
          "1 for the gravest that lies over each policy in any scope, 0 for the others.",
          POLICY, Label("overlay", tuple(Overlay))),
    counter("policy_transitions_total", "transitions", "Moves of policies, by what caused them.",
            POLICY, Label("trigger", tuple(Trigger))),
    counter("policy_refusals_total", "refusals", "What commands lacked that were refused.",
            Label("lacks", tuple(Need))),
    gauge("kill_switch_active", "", "1 while this holds the kill switch, else 0.",
          Label("holder", tuple(Holder))),
    counter("kill_switch_failures_total", "failures",
            "Times that a kill, or its end, could not be written to its file."),
    gauge("policy_keeping_failing", "",
          "1 while the audit, or the store, does not take what is written: what acts says OFF.",
          KEPT),
    counter("policy_keeping_failures_total", "failures",
            "Writes that the audit, or the store, refused; what was written waits.", KEPT),
    gauge("policy_keeping_waiting", "entries",
          "Audit entries and gate reports that no disk has taken yet."),
    counter("policy_keeping_lost_total", "entries",
            "Of those, forgotten because too many waited."),
    counter("audit_entries_total", "entries", "Entries that this audit ever held."),
    gauge("audit_head", "",
          "The first 48 bits of the latest entry's hash, as a number: a head that moves without "
          "entries is another audit."),
)  # fmt: skip

OUTSIDE = (
    gauge("contradictions", "", "1 while sources contradict each other in this way, else 0.",
          Label("kind", tuple(Contradicts)), level=Level.METRICS),
    counter("scrapes_total", "scrapes", "Pages of the engine's metrics that were read.",
            level=Level.METRICS),
)  # fmt: skip

REPORTED = tuple(
    msgspec.structs.replace(metric, level=Level.REQUESTS)
    for metric in (
        counter("reports_total", "requests", "Requests that a tap told of once they had ended."),
        counter("reports_late_total", "requests",
                "Of those, told too late for the model of backcasts to learn from."),
        gauge("reports_held", "requests",
              "Reports that wait until all that ended before them should have come."),
        counter("backcasts_total", "requests",
                "Reported requests by what became of their backcast; never part of forecasts.",
                BACKCAST_TARGET, Label("state", tuple(BackcastState))),
        counter("backcast_bad_total", "requests",
                "Backcasts that were off by more than a factor of two.", BACKCAST_TARGET),
        counter("backcast_covered_total", "requests",
                "Backcasts whose interval held the outcome.", BACKCAST_TARGET),
        counter("forwarded_exports_total", "exports",
                "Exports of spans passed on to the collector downstream."),
        counter("forward_dropped_exports_total", "exports",
                "Exports of spans that could not be passed on."),
        counter("clock_steps_total", "steps", "Times that the wall clock was stepped."),
        gauge("clock_error_seconds", "seconds",
              "Scatter of the map from wall to monotonic time; absent before the first second.",
              sparse=True),
    )
)  # fmt: skip

EVENTS = tuple(
    msgspec.structs.replace(metric, level=Level.KV_EVENTS)
    for metric in (
        gauge("inventory_blocks", "blocks", "KV blocks that can be found now.",
              Label("tier", tuple(Tier))),
        counter("inventory_oddities_total", "events",
                "What was odd in the events: stores read as hit reports, removals of what was not "
                "held, blocks shed for a bound or dropped for a loss.",
                Label("kind", tuple(InventoryCount))),
        gauge("inventory_degraded", "",
              "1 while lost messages make the inventory doubtful, 0 while it is whole."),
    )
)  # fmt: skip

OBSERVED = tuple(
    msgspec.structs.replace(metric, level=Level.OBSERVER)
    for metric in (
        gauge("engine_info", "", "What the engine said that it is; absent until it did.",
              *_identity("engine", "engine_version", "model", "overlap"), sparse=True),
        counter("shed_requests_total", "requests", "Live requests forgotten for the bound."),
        counter("unknown_request_records_total", "records",
                "Records of requests that arrived before the sidecar did."),
        counter("shed_rank_records_total", "records", "Records of ranks beyond the bound."),
        counter("implausible_records_total", "records",
                "Records refused for a time or a count that no engine can have meant."),
        counter("unforecast_requests_total", "requests",
                "Arrivals without a forecast: more requests live than are foreseen, one that "
                "never fits, an engine not described yet, or a KV state of another kind."),
        counter("extrapolated_forecasts_total", "requests",
                "Arrivals whose first token is farther off than a forecast's bounded work "
                "reaches: foretold at the pace of what it reached."),
        counter("unwatched_followers_total", "requests",
                "Requests that wait for another one's prefix, beyond the bound of those watched: "
                "when it is ready was not forecast."),
        counter("arrivals_total", "requests", "Requests that arrived."),
        counter("requests_total", "requests", "Requests that ended.",
                Label("outcome", tuple(Outcome))),
        counter("first_tokens_total", "requests", "Requests that got their first token."),
        counter("batches_total", "batches", "Batches that finished."),
        counter("batch_seconds_total", "seconds", "Time that those batches took."),
        counter("request_wait_seconds_total", "seconds",
                "Where requests' time went, from arrival to first byte; states never overlap.",
                Label("state", tuple(WaitState))),
        counter("request_unattributed_seconds_total", "seconds",
                "Time of requests that no state explains; should stay below 2 % of the whole."),
        counter("prompt_tokens_total", "tokens", "Prompt tokens of first admissions."),
        counter("prompt_source_tokens_total", "tokens",
                "The same tokens by where their KV came from.",
                Label("source", ("hbm", "loaded", "computed"))),
        counter("nominal_hit_tokens_total", "tokens",
                "Prompt tokens that some tier held at arrival."),
        counter("in_time_hit_tokens_total", "tokens",
                "Nominal hits that delayed their request by no more than a step."),
        counter("worthwhile_hit_tokens_total", "tokens",
                "Nominal hits that came late, but sooner than a recompute would have."),
        counter("lost_hit_tokens_total", "tokens",
                "Nominal hits that were computed all the same."),
        counter("delay_hit_tokens_total", "tokens",
                "Prompt tokens that an earlier, unfinished request was about to provide."),
        counter("duplicate_prefill_tokens_total", "tokens",
                "Tokens computed while the same prefix was being computed, or was live already."),
        counter("delay_hits_total", "requests",
                "Requests whose prefix an earlier one was computing, or was waiting to compute.",
                Label("state", DELAY_HIT_STATES)),
        counter("in_time_hits_total", "requests", "Requests whose nominal hit came in time."),
        counter("late_hits_total", "requests", "Requests whose nominal hit came late."),
        counter("worthwhile_hits_total", "requests",
                "Late hits that still came sooner than a recompute would have."),
        counter("unknown_residency_total", "requests",
                "Requests that arrived while the inventory was in doubt; no hit is counted."),
        counter("copies_total", "copies", "Copies of KV between tiers that finished.",
                SOURCE, DESTINATION),
        counter("copy_bytes_total", "bytes", "KV bytes that those copies moved.",
                SOURCE, DESTINATION),
        counter("copy_seconds_total", "seconds", "Time that those copies took.",
                SOURCE, DESTINATION),
        gauge("load_factor_ratio", "ratio",
              "Fitted time of copies over what the link profile, or the generic link, says of "
              "them; of several ranks the one furthest from 1.",
              SOURCE, DESTINATION, METHOD, sparse=True),
        gauge("load_calibration_stale", "",
              "1 while that factor of a link profile's path is outside 0.5 to 2, else 0.",
              SOURCE, DESTINATION, METHOD, sparse=True),
        gauge("load_slowdown_ratio", "ratio",
              "Time of batches beside a load over that of quiet ones, with the bounds of its 95 % "
              "interval; of several ranks the slowest. Absent until there were 30 of either.",
              Label("batch", tuple(BatchKind)), Label("bound", BOUNDS), sparse=True),
        counter("checked_loads_total", "copies",
                "Copies whose bytes were compared with a per-page copy of the same pages."),
        counter("mismatched_loads_total", "copies",
                "Of those, copies that differed and were repaired; the mover then stays off."),
        counter("exposed_load_seconds_total", "seconds",
                "Load time in which the engine could have run the request otherwise."),
        counter("hidden_load_seconds_total", "seconds",
                "Load time that cost nothing: the engine could not have run the request."),
        counter("shadow_batches_total", "batches",
                "Batches beside those that Strata would have formed; `no_choice`: nobody waited "
                "for a load or for another's prefix; `in_episode`: compared as part of one.",
                Label("compared", tuple(Compared))),
        counter("shadow_intended_seconds_total", "seconds",
                "What Strata's batches would have loaded, computed and stalled, as predicted, "
                "where there was a choice.", Label("part", INTENDED_PARTS)),
        counter("shadow_void_episodes_total", "episodes",
                "Episodes that came to nothing, by why.", Label("reason", tuple(Voided))),
        gauge("would_be_episodes", "episodes",
              "Of the latest 256 episodes, in which the policy decided otherwise; `engine` is the "
              "placebo.", CANDIDATE),
        gauge("would_be_verdict", "",
              "1 for what is said of each policy's saving, 0 for the others.",
              CANDIDATE, Label("verdict", tuple(Verdict))),
        gauge("would_be_saving_seconds", "seconds",
              "What the policy would have saved in these episodes of waiting for first tokens, "
              "summed, or of engine time, with the bounds of its 90 % interval. Absent unless it "
              "may be shown; the placebo always, and it should be 0.",
              CANDIDATE, Label("of", SAVED), Label("bound", BOUNDS), sparse=True),
        gauge("forecasts_open", "forecasts", "Forecasts that wait for their outcome."),
        counter("forecasts_total", "forecasts", "Forecasts by what became of them.",
                TARGET, SETTLED),
        counter("forecast_bad_total", "forecasts",
                "Paired forecasts that were off by more than a factor of two.", TARGET),
        counter("forecast_missed_total", "forecasts",
                "Forecasts whose upper bound passed before the outcome came.", TARGET),
        counter("forecast_interval_total", "forecasts",
                "Paired forecasts by where the outcome lay: below, inside or above the interval.",
                TARGET, Label("outcome", tuple(IntervalOutcome))),
        counter("forecast_drift_alarms_total", "alarms",
                "Times that forecasts were found to have become worse: outcomes slower or quicker "
                "than beside earlier forecasts, or missed by their intervals too often.",
                TARGET, Label("kind", tuple(DriftKind))),
        gauge("forecast_drift_active", "",
              "1 while one of the latest 200 outcomes raised this alarm, else 0.",
              TARGET, Label("kind", tuple(DriftKind))),
        counter("forecast_predicted_seconds_total", "seconds",
                "Sum of what paired forecasts predicted.", TARGET),
        counter("forecast_observed_seconds_total", "seconds",
                "Sum of what really happened, over the same forecasts.", TARGET),
        counter("forecast_under_seconds_total", "seconds",
                "Sum of errors where reality took longer than predicted.", TARGET),
        counter("forecast_over_seconds_total", "seconds",
                "Sum of errors where reality was quicker than predicted.", TARGET),
        Metric(f"{PREFIX}forecast_error_ratio", Kind.HISTOGRAM, "ratio",
               "Observed over predicted time, each after 25 ms of grace; 1 is a perfect forecast.",
               (TARGET,), buckets=RATIO_BUCKETS),
    )
)  # fmt: skip

CATALOGUE: tuple[Metric, ...] = OWN + POLICIES + GATES + OUTSIDE + EVENTS + REPORTED + OBSERVED
MAX_CHILDREN = 2_000


def reachable(levels: Collection[Level]) -> tuple[Metric, ...]:
    """The metrics that exist when there are taps of these levels."""
    return tuple(metric for metric in CATALOGUE if metric.level is None or metric.level in levels)


def by_name() -> Mapping[str, Metric]:
    """The catalogue keyed by name."""
    return {metric.name: metric for metric in CATALOGUE}
