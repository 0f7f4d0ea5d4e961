"""The part of the catalogue that tells what memory there is for KV, and what lies in it."""

from __future__ import annotations

from kvready.advisor.distribution import TOKEN_BUCKETS
from kvready.advisor.inventory import InventoryCount
from kvready.advisor.service.metric import Label, at, counter, gauge, histogram
from kvready.collectors.collector import Level
from kvready.collectors.records import Tier

TIER = Label("tier", tuple(Tier))

CAPACITY = (
    *at(
        Level.KV_EVENTS,
        gauge("inventory_blocks", "blocks", "KV blocks that can be found now.",
              Label("tier", tuple(Tier))),
        counter("inventory_oddities_total", "events",
                "What was odd in the events: stores read as hit reports, removals of what was not "
                "held, blocks shed for a bound or dropped for a loss.",
                Label("kind", tuple(InventoryCount))),
        gauge("inventory_degraded", "",
              "1 while lost messages make the inventory doubtful, 0 while it is whole."),
        gauge("inventory_distinct_blocks", "blocks",
              "Different KV blocks that can be found now in any tier."),
        gauge("disk_share_ratio", "ratio",
              "Of those, the share that disk holds, whether or not another tier does too; absent "
              "while nothing is held, or known.", sparse=True),
    ),
    *at(
        Level.OBSERVER,
        gauge("kv_bytes_per_token", "bytes",
              "KV that one token takes, over all layers; absent until the engine told.",
              sparse=True),
        gauge("tier_capacity_bytes", "bytes",
              "Memory for KV over all ranks; `host` is pinned where the engine pins it. Absent "
              "where the engine has none, or does not tell.", TIER, sparse=True),
        gauge("tier_held_bytes", "bytes",
              "KV that can be found in each tier; absent without KV events, or for a KV state of "
              "another kind.", TIER, sparse=True),
        gauge("hbm_free_bytes", "bytes",
              "HBM left for decode, as the latest batch of each rank left it: blocks that nobody "
              "runs on, whether or not they hold a prefix. Absent where batches do not tell.",
              sparse=True),
        histogram("request_prompt_tokens", "tokens", "Prompt tokens of requests that arrived.",
                  TOKEN_BUCKETS),
        histogram("request_prefix_tokens", "tokens",
                  "Of those, tokens that some tier held, or an earlier request was about to "
                  "provide; only requests of which that was known.", TOKEN_BUCKETS),
        counter("nominal_hit_tier_tokens_total", "tokens",
                "Prompt tokens that some tier held at arrival, by the nearest tier.",
                TIER),
    ),
)  # fmt: skip
