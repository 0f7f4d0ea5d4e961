"""The simulated engine's /metrics: vLLM's names, and what the accounts say under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvready.advisor.whatif.sim_engine.accounts import Accounts
from kvready.collectors.metrics_page import FetchStage

PREFIX = "vllm:"


class Identity:
    """What a page says of the engine beside its counts."""

    def __init__(
        self, model: str, block_tokens: int, hbm_blocks: int, started_wall_seconds: float
    ) -> None:
        self.model = model
        self.block_tokens = block_tokens
        self.hbm_blocks = hbm_blocks
        self.started_wall_seconds = started_wall_seconds


def render(accounts: Accounts, identity: Identity) -> bytes:
    """The whole page at one moment."""
    with accounts.lock:
        lines = list(_lines(accounts, identity))
    return ("\n".join(lines) + "\n").encode()


def _lines(accounts: Accounts, identity: Identity) -> Iterator[str]:
    labels = f'engine="0",model_name="{identity.model}"'
    counters = accounts.counters
    yield "# HELP kvready_simulated_engine 1: no engine stands behind this page."
    yield "# TYPE kvready_simulated_engine gauge"
    yield f"kvready_simulated_engine{{{labels}}} 1"
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {identity.started_wall_seconds!r}"
    yield from _family("num_requests_running", "gauge", [(labels, accounts.running)])
    yield from _family("num_requests_waiting", "gauge", [(labels, accounts.waiting)])
    deferred = accounts.deferred
    yield from _family(
        "num_requests_waiting_by_reason",
        "gauge",
        [
            (f'{labels},reason="capacity"', accounts.waiting - deferred),
            (f'{labels},reason="deferred"', deferred),
        ],
    )
    fetching = accounts.fetching
    yield from _family(
        "num_requests_kv_fetch_by_stage",
        "gauge",
        [(f'{labels},stage="{stage}"', fetching[stage]) for stage in FetchStage],
    )
    used = 1.0 - accounts.free_blocks / identity.hbm_blocks
    yield from _family("kv_cache_usage_perc", "gauge", [(labels, used)])
    cached = counters["hbm_tokens"] + counters["host_tokens"]
    for name, value in (
        ("prompt_tokens", counters["prompt_tokens"]),
        ("prompt_tokens_cached", cached),
        ("generation_tokens", counters["generation_tokens"]),
        ("num_preemptions", counters["num_preemptions"]),
        ("prefix_cache_queries", counters["prompt_tokens"]),
        ("prefix_cache_hits", counters["hbm_tokens"]),
        ("external_prefix_cache_queries", counters["prompt_tokens"] - counters["hbm_tokens"]),
        ("external_prefix_cache_hits", counters["host_tokens"]),
        ("kv_offload_load_bytes", counters["kv_offload_load_bytes"]),
        ("kv_offload_load_time", counters["kv_offload_load_time"]),
        ("kv_offload_store_bytes", counters["kv_offload_store_bytes"]),
        ("kv_offload_store_time", counters["kv_offload_store_time"]),
    ):
        yield from _counter(name, [(labels, value)])
    yield from _by_source(labels, accounts)
    yield from _counter(
        "request_success",
        [
            (f'{labels},finished_reason="{reason}"', counters[f"success_{reason}"])
            for reason in ("stop", "length", "abort", "error")
        ],
    )
    for name, histogram in accounts.histograms.items():
        yield f"# TYPE {PREFIX}{name} histogram"
        yield from histogram.lines(PREFIX + name, labels)
    shape = (
        f'block_size="{identity.block_tokens}",enable_prefix_caching="True",{labels},'
        f'num_gpu_blocks="{identity.hbm_blocks + 1}"'
    )
    yield from _family("cache_config_info", "gauge", [(shape, 1.0)])


def _by_source(labels: str, accounts: Accounts) -> Iterator[str]:
    counters = accounts.counters
    yield from _counter(
        "prompt_tokens_by_source",
        [
            (f'{labels},source="local_compute"', counters["computed_tokens"]),
            (f'{labels},source="local_cache_hit"', counters["hbm_tokens"]),
            (f'{labels},source="external_kv_transfer"', counters["host_tokens"]),
        ],
    )
    yield from _counter(
        "prompt_tokens_cached_by_source",
        [
            (f'{labels},source="device"', counters["hbm_tokens"]),
            (f'{labels},source="host"', counters["host_tokens"]),
            (f'{labels},source="p2p"', 0),
            (f'{labels},source="disk"', 0),
        ],
    )


def _counter(name: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    return _family(f"{name}_total", "counter", samples)


def _family(name: str, kind: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# TYPE {PREFIX}{name.removesuffix('_total')} {kind}"
    for labels, value in samples:
        yield f"{PREFIX}{name}{{{labels}}} {float(value)!r}"
