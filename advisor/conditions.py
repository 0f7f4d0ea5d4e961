"""The conditions that every figure carries: what the engine is and what traffic it saw."""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median

from kvready.collectors.records import EngineDescribed, RequestArrived, Tier
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets

WINDOW_REQUESTS = 4_096
MAX_REMEMBERED_PREFIXES = 65_536


class Traffic:
    """What the last WINDOW_REQUESTS arrivals looked like."""

    def __init__(self, targets: ServiceTargets = NO_TARGETS) -> None:
        self._targets = targets
        self.initial_blocks: dict[Tier, int] | None = None
        self._arrivals: deque[float] = deque(maxlen=WINDOW_REQUESTS)
        self._prompt_tokens: deque[int] = deque(maxlen=WINDOW_REQUESTS)
        self._reuse_tokens: deque[int] = deque(maxlen=WINDOW_REQUESTS)
        self._arrived_tokens = 0
        # First block of a prompt -> tokens that had arrived when it was last asked for.
        self._last_use: OrderedDict[int, int] = OrderedDict()

    def arrive(self, record: RequestArrived, live_blocks: dict[Tier, int]) -> int | None:
        """Note an arrival; the first one also notes what the cache held.

        Returns its reuse distance: prompt tokens that arrived from the prefix's last use on, that
        one's included; None for a prefix that is new here.
        """
        if self.initial_blocks is None:
            self.initial_blocks = live_blocks
        self._arrivals.append(record.arrived_seconds)
        self._prompt_tokens.append(record.prompt_tokens)
        reuse_tokens = None
        if record.block_hashes:
            first = record.block_hashes[0]
            last = self._last_use.pop(first, None)
            if last is not None:
                reuse_tokens = self._arrived_tokens - last
                self._reuse_tokens.append(reuse_tokens)
            self._last_use[first] = self._arrived_tokens
            while len(self._last_use) > MAX_REMEMBERED_PREFIXES:
                self._last_use.popitem(last=False)
        self._arrived_tokens += record.prompt_tokens
        return reuse_tokens

    def described(self) -> dict[str, str]:
        """Request rate, context length, reuse distance and initial cache state, in words."""
        if len(self._arrivals) < 2 or self.initial_blocks is None:
            return {}
        span_seconds = self._arrivals[-1] - self._arrivals[0]
        rate = (len(self._arrivals) - 1) / span_seconds if span_seconds > 0 else 0.0
        held = {tier: blocks for tier, blocks in self.initial_blocks.items() if blocks}
        return {
            "request rate": f"{rate:.2f} requests/s",
            "context length": f"{_spread(self._prompt_tokens)} prompt tokens",
            "reuse distance": f"{_spread(self._reuse_tokens)} prompt tokens in between",
            "initial cache": ", ".join(f"{n:,} blocks in {tier}" for tier, n in held.items())
            or "cold, or nothing known to be live",
            "TTFT target": self._targets.described,
        }


def describe_engine(engine: EngineDescribed | None) -> dict[str, str]:
    """What the engine told about itself."""
    if engine is None:
        return {"engine": "unknown: no tap has described it"}
    host = f"{engine.host_bytes / 2**30:.1f} GiB" if engine.host_bytes else "none"
    disk = {"disk tier": f"{engine.disk_bytes / 2**30:.1f} GiB"} if engine.disk_bytes else {}
    return {
        "engine": f"{engine.engine} {engine.engine_version}",
        "model": engine.model,
        "KV bytes per token": f"{engine.kv_bytes_per_token:,}",
        "tokens per block": str(engine.block_tokens),
        "HBM": f"{engine.hbm_blocks:,} blocks, {engine.hbm_blocks * engine.block_tokens:,} tokens",
        "host tier": host,
        **disk,
        "link": f"host copies of {engine.host_fragment_bytes:,} bytes, "
        f"{engine.host_fragments_per_block} per block"
        if engine.host_fragment_bytes
        else "none",
        "overlap mode": engine.overlap,
        "batch limit": f"{engine.batch_token_limit} tokens, {engine.batch_request_limit} requests",
    }


def _spread(values: deque[int]) -> str:
    if not values:
        return "unknown"
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    return f"p50 {median(ordered):,.0f}, p90 {p90:,}"
