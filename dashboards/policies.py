"""Policies and gates: who may do what, on which evidence, and who moved it."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panel import Draw, Panel, Query, ask, words

MODES = Row(
    "Where policies stand",
    (
        Panel(
            "Mode",
            ask("max by (policy, mode) (kvready_policy_mode{SCOPE}) == 1", "{{policy}}: {{mode}}"),
            draw=Draw.STATES,
            about="The furthest over all scopes. Only canary and enforce reach the engine.",
        ),
        Panel(
            "What lies over it",
            ask(
                "max by (policy, overlay) (kvready_policy_overlay{SCOPE}) == 1",
                "{{policy}}: {{overlay}}",
            ),
            draw=Draw.STATES,
            about="Anything but `none` means that its flag says OFF.",
            alerts=("KvreadyPolicyRolledBack", "KvreadyPolicyPaused"),
        ),
        Panel(
            "Moves, by what caused them",
            ask(
                "sum by (policy, trigger) "
                "(increase(kvready_policy_transitions_total{SCOPE}[RANGE])) > 0",
                "{{policy}} {{trigger}}",
            ),
            draw=Draw.BARS,
            about="Over the time shown; empty where none moved.",
            width=8,
            alerts=("KvreadyPolicyHarm", "KvreadyPolicyTakenBack"),
        ),
        Panel(
            "What refused commands lacked",
            ask(
                "sum by (lacks) (increase(kvready_policy_refusals_total{SCOPE}[RANGE]))",
                "{{lacks}}",
            ),
            draw=Draw.BARS,
            width=8,
        ),
        Panel(
            "Kill switch",
            ask("max by (holder) (kvready_kill_switch_active{SCOPE})", "{{holder}}"),
            draw=Draw.STATES,
            about="Held by any of them, every policy says OFF.",
            width=8,
            alerts=("KvreadyKillSwitchActive", "KvreadyKillSwitchFailing"),
        ),
    ),
)

GATES = Row(
    "What the gates say",
    (
        Panel(
            "Verdict",
            ask(
                "max by (policy, verdict) (kvready_gate_verdict{SCOPE})", "{{policy}}: {{verdict}}"
            ),
            draw=Draw.STATES,
            about="Asked each minute, of the version in force.",
        ),
        Panel(
            "Gate by gate",
            ask(
                "max by (policy, gate, verdict) (kvready_gate_part_verdict{SCOPE}) == 1",
                "{{policy}} {{gate}}: {{verdict}}",
            ),
            draw=Draw.STATES,
            about="Data first: without it nothing else is asked.",
        ),
        Panel(
            "Figures of the accuracy gate",
            ask(
                'max by (policy, check) (kvready_gate_check_value{SCOPE,check=~"accuracy:.*"})',
                "{{policy}} {{check}}",
            ),
            about="Units and limits: `kvready gate report POLICY`.",
            width=8,
        ),
        Panel(
            "Figures of the data gate",
            ask(
                'max by (policy, check) (kvready_gate_check_value{SCOPE,check=~"data:.*"})',
                "{{policy}} {{check}}",
            ),
            width=8,
        ),
        Panel(
            "Times that gates were asked",
            ask(
                "sum by (instance) (rate(kvready_gate_evaluations_total{SCOPE}[WINDOW]))",
                "{{instance}}",
            ),
            about="One a minute, while the sidecar takes records in.",
            width=8,
        ),
    ),
)

SHADOW = Row(
    "What policies would have done",
    (
        words(
            "How to read this",
            "In shadow each policy's decision is paired with what the engine did. **engine** is "
            "the placebo: the engine's own choices through the same machinery. It must read zero "
            "within its range; until it does, no saving of anything is shown.",
            width=6,
        ),
        Panel(
            "Batches beside those that were intended",
            ask(
                "sum by (compared) (rate(kvready_shadow_batches_total{SCOPE}[WINDOW]))",
                "{{compared}}",
            ),
            draw=Draw.STACKED,
            width=9,
        ),
        Panel(
            "What is said of each saving",
            ask(
                "max by (policy, verdict) (kvready_would_be_verdict{SCOPE}) == 1",
                "{{policy}}: {{verdict}}",
            ),
            draw=Draw.STATES,
            width=9,
        ),
        Panel(
            "Saved waiting for first tokens, in the episodes counted",
            ask(
                'sum by (policy, bound) (kvready_would_be_saving_seconds{SCOPE,of="ttft"})',
                "{{policy}} {{bound}}",
            ),
            unit="s",
            about="With the bounds of its 90 % interval; absent until it may be shown.",
            width=8,
        ),
        Panel(
            "Episodes in which a policy decided otherwise",
            ask("sum by (policy) (kvready_would_be_episodes{SCOPE})", "{{policy}}"),
            width=8,
        ),
        Panel(
            "What intended batches would have cost",
            ask(
                "sum by (part) (rate(kvready_shadow_intended_seconds_total{SCOPE}[WINDOW]))",
                "{{part}}",
            ),
            unit="s",
            draw=Draw.STACKED,
            width=8,
        ),
    ),
)

AUDIT = Row(
    "The trail",
    (
        Panel(
            "Audit entries",
            ask("max by (instance) (kvready_audit_entries_total{SCOPE})", "{{instance}}"),
            width=6,
            alerts=("KvreadyAuditRewritten",),
        ),
        Panel(
            "Audit or store refuse what is written",
            ask(
                "max by (instance, part) (kvready_policy_keeping_failing{SCOPE})",
                "{{instance}} {{part}}",
            ),
            draw=Draw.STATES,
            width=6,
            alerts=("KvreadyAuditFailing",),
        ),
        Panel(
            "Entries that wait for a disk, or were lost",
            (
                Query(
                    "sum by (instance) (kvready_policy_keeping_waiting{SCOPE})",
                    "waiting {{instance}}",
                ),
                Query(
                    "sum by (instance) "
                    "(increase(kvready_policy_keeping_lost_total{SCOPE}[WINDOW]))",
                    "lost {{instance}}",
                ),
            ),
            width=6,
            alerts=("KvreadyAuditLost",),
        ),
        Panel(
            "Loads compared byte by byte",
            (
                Query("sum(increase(kvready_checked_loads_total{SCOPE}[RANGE]))", "compared"),
                Query("sum(increase(kvready_mismatched_loads_total{SCOPE}[RANGE]))", "differed"),
            ),
            draw=Draw.NUMBER,
            about="One that differs switches the mover off for good.",
            width=6,
            alerts=("KvreadyWrongBytes",),
        ),
    ),
)

BOARD = Board(
    "policies",
    "kvready: policies and gates",
    "Who may do what, on which evidence, and who moved it?",
    (MODES, GATES, SHADOW, AUDIT),
)
