"""An engine whose costs are formulas, for tests of what is decided from them."""

from __future__ import annotations

import msgspec

from kvready.advisor.estimates import Interference
from kvready.advisor.ranges import NOTHING, Range
from kvready.collectors.records import OverlapMode, Tier


class PlainEstimates(msgspec.Struct, frozen=True):
    """Costs as formulas; every interval reaches from `narrow` to `wide` times its median."""

    overlap: OverlapMode = OverlapMode.BEFORE_ADMISSION
    layers: int = 32
    block_tokens: int = 16
    interference: Interference = Interference()
    copy_seconds: float = 1e-3
    fragment_seconds: float = 5e-6
    bytes_per_second: float = 10e9
    wait_seconds: float = 0.0
    chunk_tokens: int = 0  # 0: no cost per chunk
    chunk_seconds: float = 2e-3
    token_seconds: float = 5e-5
    pair_seconds: float = 5e-9
    queue: float | None = 0.0
    others: bool | None = None
    narrow: float = 0.8
    wide: float = 1.3
    unseen: frozenset[Tier] = frozenset()

    def _range(self, seconds: float) -> Range:
        return Range(seconds, seconds * self.narrow, seconds * self.wide)

    def load_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        if source in self.unseen:
            return None
        moved = fragments * self.fragment_seconds + payload_bytes / self.bytes_per_second
        return self._range(self.copy_seconds + moved)

    def fetch_seconds(self, source: Tier, payload_bytes: int, fragments: int) -> Range | None:
        if source is Tier.HOST:
            return NOTHING
        return self._range(5e-3 + 3.0 * payload_bytes / self.bytes_per_second)

    def link_wait_seconds(self) -> Range:
        return self._range(self.wait_seconds)

    def prefill_seconds(self, new_tokens: int, context_tokens: int) -> Range:
        pairs = new_tokens * context_tokens + new_tokens * (new_tokens + 1) / 2
        seconds = new_tokens * self.token_seconds + pairs * self.pair_seconds
        if self.chunk_tokens:
            seconds += -(-new_tokens // self.chunk_tokens) * self.chunk_seconds
        return self._range(seconds)

    def queue_seconds(self) -> Range | None:
        return None if self.queue is None else self._range(self.queue)

    def has_other_work(self, request_id: str) -> bool | None:
        return self.others
