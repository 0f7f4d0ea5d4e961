"""Service, capacity, movement: a bigger cache and a higher TTFT, why, and what to change.

The path of the diagnosis: a larger working set is reused after a longer distance, lies in slower
tiers, is loaded by copies that overlap, and only requests with a long prefix suffer. Each step has
its panels, and beside them the words that say what they decide.
"""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panel import Draw, Needs, Panel, Query, ask, words


def median_ttft(by: str, label: str) -> str:
    """Of each group of requests."""
    return (
        f"histogram_quantile(0.5, sum by (le, {label}) "
        f"(rate(kvready_ttft_by_{by}_seconds_bucket{{SCOPE}}[WINDOW])))"
    )


def pace(by: str, label: str) -> str:
    """Output tokens a second of one request, in each group."""
    return (
        f"sum by ({label}) (rate(kvready_output_tokens_by_{by}_total{{SCOPE}}[WINDOW])) / "
        f"(sum by ({label}) (rate(kvready_decode_seconds_by_{by}_total{{SCOPE}}[WINDOW])) > 0)"
    )


def bandwidth(by: str, matching: str = "") -> str:
    """Bytes a second while a copy runs, into HBM."""
    scope = f'SCOPE,path="load"{matching}'
    return (
        f"sum by ({by}) (rate(kvready_transfer_bytes_total{{{scope}}}[WINDOW])) / "
        f"(sum by ({by}) (rate(kvready_transfer_seconds_total{{{scope}}}[WINDOW])) > 0)"
    )


START = Row(
    "Start here: is service worse, and for whom?",
    (
        words(
            "The path",
            "**A bigger cache should lower the time to first token. Where it rises:**\n\n"
            "1. **Who is worse?** Panels in this row. Only requests with a *long prefix*, or whose "
            "prefix lies in *host* or *disk*: go on with 2. All alike: it is load, not the cache "
            "(dashboard *Waits and readiness*: `queue`).\n"
            "2. **Is more reused from farther away?** Row *Capacity*: reuse distance and the "
            "share of hits in slow tiers grow. Not so: step 4.\n"
            "3. **Do loads get in each other's way?** Row *Movement*: bandwidth beside other "
            "copies far below that alone, decision to usable grows.\n"
            "4. **Is the link idle while somebody waits?** Row *Movement*: idle by reason.\n\n"
            "The last row says which of four things to change.",
            width=8,
            height=16,
        ),
        Panel(
            "Requests by how they were served: good is goodput",
            ask(
                "sum by (served) (rate(kvready_served_requests_total{SCOPE}[WINDOW]))", "{{served}}"
            ),
            unit="reqps",
            draw=Draw.STACKED,
            about="Against their own targets, else the configured ones, over the whole path.",
            width=8,
        ),
        Panel(
            "Goodput: share inside its targets",
            ask(
                'sum(rate(kvready_served_requests_total{SCOPE,served="good"}[WINDOW])) / '
                '(sum(rate(kvready_served_requests_total{SCOPE,served=~"good|late|slow|failed"}'
                "[WINDOW])) > 0)",
                "good",
            ),
            unit="percentunit",
            about="Of requests that have a target: their own, or `targets` in the settings.",
            width=8,
        ),
        Panel(
            "Median time to first token by length of the prefix",
            ask(median_ttft("prefix", "prefix_length"), "{{prefix_length}}"),
            unit="s",
            about="Only the longest worse: loads. All worse: queueing.",
            width=8,
        ),
        Panel(
            "Median time to first token by where the prefix was",
            ask(median_ttft("state", "initial_state"), "{{initial_state}}"),
            unit="s",
            width=8,
        ),
        Panel(
            "Median time to first token by class",
            ask(median_ttft("class", "class"), "{{class}}"),
            unit="s",
            about="The first few classes that came; all others together.",
            width=8,
        ),
        Panel(
            "Median time to first token by reuse distance",
            ask(median_ttft("reuse", "reuse_distance"), "{{reuse_distance}}"),
            unit="s",
            width=8,
        ),
        Panel(
            "Output tokens a second of one request, by where its prefix was",
            ask(pace("state", "initial_state"), "{{initial_state}}"),
            about="Falls for all while some load: copies take from decode.",
            width=8,
        ),
    ),
)

CAPACITY = Row(
    "Capacity: is more reused from farther away?",
    (
        words(
            "What this decides",
            "**Reuse distance** is what arrived since a prefix was last used. It grows with the "
            "working set: the cache now keeps what would have been recomputed, and keeps it far "
            "away.\n\n"
            "* Distance grows, and hits move to *host* or *disk*: **placement**. Keep what is "
            "reused soon near; what is farther than a recompute does not belong in the cache.\n"
            "* HBM left for decode near zero while tiers below have room: **admission**. Prefixes "
            "crowd out those who run.",
            width=8,
        ),
        Panel(
            "Mean reuse distance",
            ask(
                "sum(rate(kvready_reuse_distance_tokens_total{SCOPE}[WINDOW])) / "
                "(sum(rate(kvready_reuses_total{SCOPE}[WINDOW])) > 0)",
                "prompt tokens since the last use",
            ),
            width=8,
        ),
        Panel(
            "Nominal hits by tier",
            ask(
                "sum by (tier) (rate(kvready_nominal_hit_tier_tokens_total{SCOPE}[WINDOW]))",
                "{{tier}}",
            ),
            draw=Draw.STACKED,
            about="Prompt tokens a second, by the nearest tier that held them.",
            width=8,
        ),
        Panel(
            "KV held, by tier",
            ask("sum by (tier) (kvready_tier_held_bytes{SCOPE})", "{{tier}}"),
            unit="bytes",
            width=8,
        ),
        Panel(
            "Memory for KV, by tier",
            ask("sum by (tier) (kvready_tier_capacity_bytes{SCOPE})", "{{tier}}"),
            unit="bytes",
            about="`host` is pinned where the engine pins it.",
            width=8,
        ),
        Panel(
            "HBM left for decode",
            ask("sum by (instance) (kvready_hbm_free_bytes{SCOPE})", "{{instance}}"),
            unit="bytes",
            width=8,
        ),
        Panel(
            "Length of prefixes found",
            ask(
                "sum by (le) (increase(kvready_request_prefix_tokens_bucket{SCOPE}[WINDOW]))",
                "{{le}}",
            ),
            draw=Draw.HEAT,
            width=8,
        ),
        Panel(
            "Blocks",
            (
                Query("sum by (tier) (kvready_inventory_blocks{SCOPE})", "{{tier}}"),
                Query("sum(kvready_inventory_distinct_blocks{SCOPE})", "different ones"),
            ),
            width=8,
        ),
        Panel(
            "Share of different blocks that disk holds",
            ask("max by (instance) (kvready_disk_share_ratio{SCOPE})", "{{instance}}"),
            unit="percentunit",
            width=4,
        ),
        Panel(
            "KV of one token",
            ask("max by (instance) (kvready_kv_bytes_per_token{SCOPE})", "{{instance}}"),
            unit="bytes",
            draw=Draw.NUMBER,
            width=4,
        ),
    ),
)

MOVEMENT = Row(
    "Movement: do loads get in each other's way, or wait for nothing?",
    (
        words(
            "What this decides",
            "* Bandwidth beside **copies** far below that beside **nothing**: backups and loads "
            "share the link. **Link reservation**: give loads that somebody waits for the link, "
            "and let backups wait.\n"
            "* Batches slower beside a load (slow-down above 1.1): the mover takes from compute. "
            "**SLO isolation**: fewer workers, or loads only where nobody decodes close to a "
            "target.\n"
            "* Idle and `passed_over`: who waits for a load was passed over with room. Its "
            "**admission** order (`balance`) is what to change, not the link.\n"
            "* Idle and `no_room`: **admission** again, or HBM. Idle and `fetching`: the tier "
            "below is too slow: **placement**.",
            width=8,
            height=10,
        ),
        Panel(
            "Bandwidth into HBM: alone, beside batches, beside other copies",
            ask(bandwidth("beside"), "{{beside}}"),
            unit="Bps",
            width=8,
            height=10,
        ),
        Panel(
            "Time of the link",
            (
                Query("sum(rate(kvready_link_busy_seconds_total{SCOPE}[WINDOW]))", "busy"),
                Query(
                    "sum by (reason) (rate(kvready_link_idle_seconds_total{SCOPE}[WINDOW]))",
                    "idle: {{reason}}",
                ),
                Query("sum(rate(kvready_link_untold_seconds_total{SCOPE}[WINDOW]))", "unknown"),
            ),
            unit="s",
            draw=Draw.STACKED,
            about="Seconds in each second, summed over ranks.",
            width=8,
            height=10,
        ),
        Panel(
            "Bandwidth into HBM by size of the copy",
            ask(bandwidth("size"), "{{size}}"),
            unit="Bps",
            width=8,
        ),
        Panel(
            "From decision to usable: 50th and 90th percentile",
            (
                Query(
                    "histogram_quantile(0.5, sum by (le, path) "
                    "(rate(kvready_decision_to_usable_seconds_bucket{SCOPE}[WINDOW])))",
                    "{{path}} p50",
                ),
                Query(
                    "histogram_quantile(0.9, sum by (le, path) "
                    "(rate(kvready_decision_to_usable_seconds_bucket{SCOPE}[WINDOW])))",
                    "{{path}} p90",
                ),
            ),
            unit="s",
            width=8,
        ),
        Panel(
            "Of that, until the mover began",
            ask(
                "sum by (path) (rate(kvready_decision_to_start_seconds_total{SCOPE}[WINDOW])) / "
                "(sum by (path) (rate(kvready_decision_to_usable_seconds_sum{SCOPE}[WINDOW])) > 0)",
                "{{path}}",
            ),
            unit="percentunit",
            about="High: loads wait for loads, not for bytes.",
            width=8,
        ),
        Panel(
            "Batches beside a load, over quiet ones",
            ask(
                "max by (batch, bound) (kvready_load_slowdown_ratio{SCOPE})", "{{batch}} {{bound}}"
            ),
            about="Interference, with the bounds of its 95 % interval.",
            width=8,
        ),
        Panel(
            "What moving one piece costs, by mover",
            ask(
                "sum by (path, method) (rate(kvready_mover_seconds_total{SCOPE}[WINDOW])) / "
                "(sum by (path, method) (rate(kvready_mover_fragments_total{SCOPE}[WINDOW])) > 0)",
                "{{path}} {{method}}",
            ),
            unit="s",
            about="Gather against page by page.",
            width=8,
        ),
        Panel(
            "Threads or SMs that gather",
            ask("max by (instance) (kvready_gather_workers{SCOPE})", "{{instance}}"),
            draw=Draw.NUMBER,
            width=4,
            needs=Needs.GPU,
        ),
        Panel(
            "Copies of which no bandwidth is known",
            ask("sum by (path) (rate(kvready_untimed_transfers_total{SCOPE}[WINDOW]))", "{{path}}"),
            width=4,
        ),
    ),
)

CHANGE = Row(
    "What to change",
    (
        words(
            "Which of four",
            "| what the panels show | change | how, here |\n"
            "|---|---|---|\n"
            "| HBM left for decode near zero; idle link: `no_room` or `passed_over`; long `ready` "
            "in *Waits and readiness* | **admission**: who is let in, and when its load starts | "
            "`balance` (start loads under others' compute); fewer sequences at once |\n"
            "| reuse distance grows; hits in *host* and *disk*; late hits that are not worthwhile "
            "| **placement**: what is kept where | a smaller or nearer tier for what is reused "
            "late; recompute what loads slower (*Load or recompute*) |\n"
            "| bandwidth beside copies far below that alone; decision to start a large share | "
            "**link reservation**: loads before backups, one load at a time | fewer backups (store "
            "on second use), `gpu_copy` where pages are small |\n"
            "| one class or one prefix length worse, or output tokens slower for all while some "
            "load | **SLO isolation**: who suffers for whom | another pool for long prefixes; a "
            "mover with fewer SMs; targets by class |\n\n"
            "`kvready whatif` answers what each would give on your own traffic before you try it.",
            width=24,
            height=10,
        ),
    ),
)

BOARD = Board(
    "diagnosis",
    "kvready: service, capacity, movement",
    "A bigger cache and a higher time to first token: why, and what to change?",
    (START, CAPACITY, MOVEMENT, CHANGE),
)
