"""The part of the catalogue that tells where policies stand, and what they would have saved."""

from __future__ import annotations

from kvready.advisor.kill_switch import Holder
from kvready.advisor.modes import Need, Trigger
from kvready.advisor.policies import Mode, Overlay
from kvready.advisor.savings import Candidate, Verdict
from kvready.advisor.service.catalogue_gates import GATES
from kvready.advisor.service.metric import BOUNDS, POLICY, Label, at, counter, gauge
from kvready.advisor.shadow import Compared, Voided
from kvready.collectors.collector import Level

CANDIDATE = Label("policy", tuple(Candidate))
INTENDED_PARTS = ("load", "compute", "stall")
SAVED = ("ttft", "busy")
KEPT = Label("part", ("audit", "store"))

POLICIES = (
    *at(
        None,
        gauge("policy_mode", "",
              "1 for the furthest mode that each policy is in, over all its scopes, 0 for the "
              "others.",
              POLICY, Label("mode", tuple(Mode))),
        gauge("policy_overlay", "",
              "1 for the gravest that lies over each policy in any scope, 0 for the others.",
              POLICY, Label("overlay", tuple(Overlay))),
        counter("policy_transitions_total", "transitions",
                "Moves of policies, by what caused them.",
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
              "The first 48 bits of the latest entry's hash, as a number: a head that moves "
              "without entries is another audit."),
    ),
    *GATES,
    *at(
        Level.OBSERVER,
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
    ),
)  # fmt: skip
