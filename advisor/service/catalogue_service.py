"""The part of the catalogue that tells how requests were served: goodput first."""

from __future__ import annotations

from kvready.advisor.constraint import Constraint
from kvready.advisor.distribution import WAIT_BUCKETS
from kvready.advisor.gateway_arrivals import Told
from kvready.advisor.served import Served
from kvready.advisor.service.metric import (
    BOUNDED,
    Label,
    Metric,
    at,
    counter,
    gauge,
    histogram,
    identity,
)
from kvready.advisor.service_account import GROUPS, By
from kvready.advisor.waits import WaitState
from kvready.collectors.collector import Level
from kvready.collectors.records import Outcome, Surface

DELAY_HIT_STATES = ("in_queue", "in_flight")
CLASS = Label("class", GROUPS[By.CLASS], source=BOUNDED)
SERVED = Label("served", tuple(Served))
DIMENSIONS: dict[By, tuple[Label, str]] = {
    By.STATE: (
        Label("initial_state", GROUPS[By.STATE]),
        "the farthest tier that their prefix was in when they arrived",
    ),
    By.REUSE: (
        Label("reuse_distance", GROUPS[By.REUSE]),
        "the prompt tokens that arrived from the last use of their prefix on",
    ),
    By.PREFIX: (
        Label("prefix_length", GROUPS[By.PREFIX]),
        "the tokens of their prompt that were held, or on their way, when they arrived",
    ),
    By.CLASS: (CLASS, "their class: the first few that came, all others together"),
}


def _by(by: By) -> tuple[Metric, ...]:
    """Wait and pace, by one thing that they depend on."""
    label, text = DIMENSIONS[by]
    return (
        histogram(f"ttft_by_{by}_seconds", "seconds",
                  f"Time from arrival to first token of requests, by {text}.", WAIT_BUCKETS, label),
        counter(f"output_tokens_by_{by}_total", "tokens",
                f"Output tokens of requests after their first, by {text}.", label),
        counter(f"decode_seconds_by_{by}_total", "seconds",
                "Time from first token to end of the same requests, summed; the tokens over it: "
                "throughput of one request.", label),
    )  # fmt: skip


SERVICE = (
    *at(
        Level.OBSERVER,
        counter("served_requests_total", "requests",
                "Requests that ended, or were lost in a restart, by how they fared over the whole "
                "path against their own target of the first token, else the configured one, and "
                "the configured pace: `good` is goodput.", CLASS, SERVED),
        counter("arrivals_by_surface_total", "requests",
                "Requests by where they were first seen: what comes before that counts nowhere.",
                Label("surface", tuple(Surface))),
        counter("gateway_arrivals_total", "requests",
                "Requests that a gateway told of, by what became of them; `lost`: of one name "
                "with another, or too many at once, so that their wait counts from the scheduler.",
                Label("outcome", tuple(Told))),
        *(metric for by in By for metric in _by(by)),
        counter("reuses_total", "requests", "Requests whose prefix had been asked for before."),
        counter("reuse_distance_tokens_total", "tokens",
                "Prompt tokens that arrived from the last use of their prefix on, summed."),
        gauge("engine_info", "", "What the engine said that it is; absent until it did.",
              *identity("engine", "engine_version", "model", "overlap"), sparse=True),
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
    ),
    *at(
        Level.REQUESTS,
        counter("reported_served_requests_total", "requests",
                "Requests that a tap told of once they had ended, likewise, over the path that it "
                "saw; never part of the others.", SERVED),
        histogram("reported_ttft_seconds", "seconds",
                  "Time to first token of those requests, as told.", WAIT_BUCKETS),
    ),
    *at(
        None,
        gauge("serving_constraint", "",
              "1 for what the last minute of serving was bound by, 0 for the others.",
              Label("constraint", tuple(Constraint))),
        gauge("serving_stalled", "", "1 while requests wait and no batch runs."),
        gauge("target_ttft_seconds", "seconds",
              "Configured time to first token that counts as served; absent: none.", sparse=True),
        gauge("target_output_tokens_per_second", "tokens",
              "Configured pace of output tokens that counts as served; absent: none.", sparse=True),
    ),
)  # fmt: skip
