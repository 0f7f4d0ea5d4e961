"""What an engine's counters, histograms and spans are made of: the records that it told of itself.

So the surfaces cannot disagree by accident: all of them follow from one stream.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from kvready.advisor.whatif.sim_engine import histogram
from kvready.advisor.whatif.sim_engine.histogram import Histogram
from kvready.collectors.records import (
    AnyRecord,
    BatchFinished,
    BatchPlanned,
    DeferReason,
    FirstToken,
    LoadDecided,
    LoadFinished,
    LoadStarted,
    Outcome,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    Tier,
)

MAX_LIVE = 65_536
HISTOGRAMS = {
    "time_to_first_token_seconds": histogram.TTFT,
    "inter_token_latency_seconds": histogram.INTER_TOKEN,
    "request_time_per_output_token_seconds": histogram.INTER_TOKEN,
    "e2e_request_latency_seconds": histogram.LATENCY,
    "request_queue_time_seconds": histogram.LATENCY,
    "request_prefill_time_seconds": histogram.LATENCY,
    "request_decode_time_seconds": histogram.LATENCY,
    "request_inference_time_seconds": histogram.LATENCY,
    "request_prompt_tokens": histogram.TOKENS,
    "request_generation_tokens": histogram.TOKENS,
    "request_prefill_kv_computed_tokens": histogram.TOKENS,
    "iteration_tokens_total": histogram.ITERATION,
    "kv_offload_load_size": histogram.SIZES,
    "kv_offload_store_size": histogram.SIZES,
    "kv_offload_lookup_async_delay_seconds": histogram.DELAYS,
}


class _Live:
    """A request between arrival and end; seconds of the monotonic clock."""

    __slots__ = (
        "arrived",
        "deferred_seconds",
        "first_token_seconds",
        "hbm_tokens",
        "loaded_tokens",
        "loading",
        "preemptions",
        "running",
        "scheduled_seconds",
    )

    def __init__(self, arrived: RequestArrived) -> None:
        self.arrived = arrived
        self.deferred_seconds: float | None = None
        self.scheduled_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.hbm_tokens = 0
        self.loaded_tokens = 0
        self.loading: str | None = None  # a stage of vLLM's kv fetch
        self.running = False
        self.preemptions = 0


class Served(NamedTuple):
    """A request that ended well, in real seconds of one clock."""

    request_id: str
    arrived_seconds: float
    scheduled_seconds: float
    first_token_seconds: float
    finished_seconds: float
    prompt_tokens: int
    output_tokens: int
    output_token_limit: int


class _Open(NamedTuple):
    order: LoadDecided
    started_seconds: float | None


class Accounts:
    """Takes records in real seconds; a lock parts the engine from whoever reads the page."""

    def __init__(self, hbm_blocks: int, on_served: Callable[[Served], None] | None = None) -> None:
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.histograms = {name: Histogram(bounds) for name, bounds in HISTOGRAMS.items()}
        self.free_blocks = hbm_blocks
        self.hbm_blocks = hbm_blocks
        self.miscounts_loads = False  # a fault: bytes of loads count twice
        self.shed = 0
        self._on_served = on_served
        self._live: dict[str, _Live] = {}
        self._loads: dict[int, _Open] = {}
        self._decoding: dict[str, float] = {}  # when the last token came
        self._members: dict[int, BatchPlanned] = {}

    @property
    def running(self) -> int:
        """Requests that hold a place in the batch."""
        return sum(one.running for one in self._live.values())

    @property
    def waiting(self) -> int:
        """Requests that hold none, deferred ones included."""
        return len(self._live) - self.running

    @property
    def fetching(self) -> Counter[str]:
        """Waiting requests that need a load, by vLLM's stage."""
        return Counter(
            one.loading for one in self._live.values() if one.loading and not one.running
        )

    @property
    def deferred(self) -> int:
        """Waiting requests that were set aside."""
        return sum(
            not one.running and (one.loading is not None or one.deferred_seconds is not None)
            for one in self._live.values()
        )

    def take(self, record: AnyRecord) -> None:
        """One more thing that the engine did."""
        with self.lock:
            self._take(record)

    def _take(self, record: AnyRecord) -> None:
        match record:
            case BatchPlanned():
                self._planned(record)
            case BatchFinished():
                self._finished_batch(record)
            case RequestArrived():
                if len(self._live) < MAX_LIVE:
                    self._live[record.request_id] = _Live(record)
                else:
                    self.shed += 1
            case LoadDecided() | LoadStarted() | LoadFinished():
                self._load(record)
            case RequestDeferred():
                live = self._live.get(record.request_id)
                if live is not None and record.reason is DeferReason.LOAD:
                    live.deferred_seconds = record.deferred_seconds
            case RequestScheduled():
                self._scheduled(record)
            case RequestPreempted():
                live = self._live.get(record.request_id)
                if live is not None:
                    live.running = False
                    live.preemptions += 1
                    self.counters["num_preemptions"] += 1
            case FirstToken():
                live = self._live.get(record.request_id)
                if live is not None:
                    live.first_token_seconds = record.first_token_seconds
                    seconds = record.first_token_seconds - live.arrived.arrived_seconds
                    self.histograms["time_to_first_token_seconds"].observe(seconds)
            case RequestFinished():
                self._finished(record)
            case _:
                pass  # the rest is told on other surfaces

    def _planned(self, batch: BatchPlanned) -> None:
        self._members[batch.step] = batch
        while len(self._members) > 64:
            del self._members[next(iter(self._members))]
        if batch.free_blocks is not None:
            self.free_blocks = batch.free_blocks

    def _finished_batch(self, record: BatchFinished) -> None:
        batch = self._members.pop(record.step, None)
        if batch is None:
            return
        tokens = sum(member.new_tokens for member in batch.members)
        self.histograms["iteration_tokens_total"].observe(tokens)
        decodes = sum(not member.is_prefill for member in batch.members)
        self.counters["generation_tokens"] += decodes
        if decodes:
            gaps = self.histograms["inter_token_latency_seconds"]
            gaps.observe(record.duration_seconds, decodes)

    def _load(self, record: LoadDecided | LoadStarted | LoadFinished) -> None:
        if isinstance(record, LoadDecided):
            self._loads[record.load_id] = _Open(record, None)
            live = self._live.get(record.request_id)
            if live is not None and record.destination is Tier.HBM:
                live.loading = "in_progress"
            return
        found = self._loads.get(record.load_id)
        if found is None:
            return
        if isinstance(record, LoadStarted):
            self._loads[record.load_id] = found._replace(started_seconds=record.started_seconds)
            return
        del self._loads[record.load_id]
        order = found.order
        way = "load" if order.destination is Tier.HBM else "store"
        begun = record.started_seconds or found.started_seconds or record.ready_seconds
        twice = 2 if way == "load" and self.miscounts_loads else 1
        self.counters[f"kv_offload_{way}_bytes"] += order.payload_bytes * twice
        self.counters[f"kv_offload_{way}_time"] += record.ready_seconds - begun  # type: ignore[assignment]
        self.histograms[f"kv_offload_{way}_size"].observe(order.payload_bytes)
        live = self._live.get(order.request_id)
        if live is not None and way == "load":
            live.loading = "completed_waiting"

    def _scheduled(self, record: RequestScheduled) -> None:
        live = self._live.get(record.request_id)
        if live is None:
            return
        live.running = True
        live.loading = None
        if live.deferred_seconds is not None:
            held = record.scheduled_seconds - live.deferred_seconds
            self.histograms["kv_offload_lookup_async_delay_seconds"].observe(held)
            live.deferred_seconds = None
        if live.scheduled_seconds is not None:
            return
        live.scheduled_seconds = record.scheduled_seconds
        live.hbm_tokens, live.loaded_tokens = record.hbm_tokens, record.loaded_tokens
        prompt = live.arrived.prompt_tokens
        self.counters["prompt_tokens"] += prompt
        self.counters["hbm_tokens"] += record.hbm_tokens
        self.counters["host_tokens"] += record.loaded_tokens
        self.counters["computed_tokens"] += prompt - record.hbm_tokens - record.loaded_tokens

    def _finished(self, record: RequestFinished) -> None:
        live = self._live.pop(record.request_id, None)
        if live is None:
            return
        ended = "length" if record.outcome is Outcome.FINISHED else "abort"
        self.counters[f"success_{ended}"] += 1
        scheduled, first = live.scheduled_seconds, live.first_token_seconds
        if record.outcome is not Outcome.FINISHED or scheduled is None or first is None:
            return
        self.counters["generation_tokens"] += 1  # the first one came with the prefill
        arrived = live.arrived
        served = Served(
            arrived.request_id,
            arrived.arrived_seconds,
            scheduled,
            first,
            record.finished_seconds,
            arrived.prompt_tokens,
            record.output_tokens,
            arrived.output_token_limit,
        )
        self._observe(served, live)
        if self._on_served is not None:
            self._on_served(served)

    def _observe(self, served: Served, live: _Live) -> None:
        seen = self.histograms
        decode = served.finished_seconds - served.first_token_seconds
        seen["request_queue_time_seconds"].observe(
            served.scheduled_seconds - served.arrived_seconds
        )
        seen["request_prefill_time_seconds"].observe(
            served.first_token_seconds - served.scheduled_seconds
        )
        seen["request_decode_time_seconds"].observe(decode)
        seen["request_inference_time_seconds"].observe(
            served.finished_seconds - served.scheduled_seconds
        )
        seen["e2e_request_latency_seconds"].observe(
            served.finished_seconds - served.arrived_seconds
        )
        seen["request_prompt_tokens"].observe(served.prompt_tokens)
        seen["request_generation_tokens"].observe(served.output_tokens)
        computed = served.prompt_tokens - live.hbm_tokens - live.loaded_tokens
        seen["request_prefill_kv_computed_tokens"].observe(computed)
        if served.output_tokens > 1:
            seen["request_time_per_output_token_seconds"].observe(
                decode / (served.output_tokens - 1)
            )
