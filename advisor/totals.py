"""Running sums of what was seen: plain counters, read at scrape time."""

from __future__ import annotations

from collections.abc import Mapping

from kvready.advisor.waits import WaitState
from kvready.collectors.records import Outcome, Tier


class Totals:
    """Counters since start. Tokens are prompt tokens; seconds are event time."""

    def __init__(self) -> None:
        self.wait_seconds: dict[WaitState, float] = dict.fromkeys(WaitState, 0.0)
        self.unattributed_seconds = 0.0
        self.first_tokens = 0
        self.requests: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.arrivals = 0
        # of first admissions
        self.prompt_tokens = 0
        self.hbm_hit_tokens = 0
        self.loaded_tokens = 0
        self.computed_tokens = 0
        # of requests whose residency at arrival was known
        self.judged_prompt_tokens = 0
        self.nominal_hit_tokens = 0
        self.nominal_tier_tokens: dict[Tier, int] = dict.fromkeys(Tier, 0)  # the same, by tier
        self.lost_hit_tokens = 0
        self.in_time_hit_tokens = 0
        self.worthwhile_hit_tokens = 0
        self.late_hit_tokens = 0
        self.in_time_hits = 0
        self.late_hits = 0
        self.worthwhile_hits = 0
        self.unknown_residency = 0
        self.delay_hits: dict[str, int] = {"in_queue": 0, "in_flight": 0}
        self.delay_hit_tokens = 0
        self.duplicate_prefill_tokens = 0
        self.exposed_load_seconds = 0.0
        self.hidden_load_seconds = 0.0
        self.copies: dict[tuple[Tier, Tier], int] = {}
        self.copy_bytes: dict[tuple[Tier, Tier], int] = {}
        self.copy_seconds: dict[tuple[Tier, Tier], float] = {}
        self.checked_loads = 0
        self.mismatched_loads = 0
        self.batches = 0
        self.batch_seconds = 0.0

    def add_nominal(self, tokens_by_tier: Mapping[Tier, int]) -> None:
        """One request's nominal hit."""
        for tier, tokens in tokens_by_tier.items():
            self.nominal_hit_tokens += tokens
            self.nominal_tier_tokens[tier] += tokens

    def add_copy(self, source: Tier, destination: Tier, payload_bytes: int, seconds: float) -> None:
        """One finished copy: its bytes and the mover's busy time."""
        key = (source, destination)
        self.copies[key] = self.copies.get(key, 0) + 1
        self.copy_bytes[key] = self.copy_bytes.get(key, 0) + payload_bytes
        self.copy_seconds[key] = self.copy_seconds.get(key, 0.0) + seconds
