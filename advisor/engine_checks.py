"""What a doctor finds in the engine itself: from its counters, configuration and version."""

from __future__ import annotations

from collections.abc import Iterator

from kvready.advisor.counter_change import increment
from kvready.advisor.diagnosis import Evidence, Finding, Severity
from kvready.advisor.engine_hazards import Surface, hazards_of
from kvready.advisor.levels import level_now
from kvready.collectors.collector import Level
from kvready.collectors.counter_hazards import UNKNOWN_VERSION, Action, parse_version, span
from kvready.collectors.counter_hazards import hazards_of as counter_hazards
from kvready.collectors.metrics_page import EngineReading, MetricsPage

MIN_STALL_SECONDS = 2.0
COARSE_SECONDS = 0.3  # vLLM's default first bucket of queue times
FINE_BUCKETS = (
    "--custom-histogram-buckets "
    "'{\"request_latency\": [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]}' (0.32 and later)"
)


def engine_findings(evidence: Evidence) -> Iterator[Finding]:
    """All of them."""
    page = evidence.after
    if page is None:
        yield Finding(
            "no-metrics",
            Severity.CRITICAL,
            "the engine shows no metrics",
            evidence.surfaces.page_problem,
            "whether a tap is silent or the engine idle cannot be told",
            "remove --disable-log-stats, and let this host reach /metrics",
        )
        return
    yield from _stalled(evidence, page)
    yield from _caching_off(page)
    yield from _unsupported(evidence, page)
    yield from _coarse(evidence, page)
    yield from _refused(page)
    yield from _native(page)
    yield from _version(evidence, page)


def _stalled(evidence: Evidence, page: MetricsPage) -> Iterator[Finding]:
    before = evidence.before
    if before is None or evidence.seconds < MIN_STALL_SECONDS:
        return
    moved = increment(before, page, lambda e: e.prompt_tokens)
    for rank, engine in page.engines.items():
        earlier = before.engines.get(rank)
        if earlier is not None and not moved and _hangs(earlier) and _hangs(engine):
            yield Finding(
                "stalled-engine",
                Severity.CRITICAL,
                f"rank {rank} is stalled: requests wait and none runs",
                f"waiting {engine.waiting:.0f}, running 0, no prompt token in "
                f"{evidence.seconds:.0f} s",
                "throughput is zero and stays so",
                "restart the engine; known under KV pressure with offloading: more free blocks or "
                "fewer --max-num-seqs make it rarer",
            )


def _hangs(engine: EngineReading) -> bool:
    return bool(engine.waiting) and engine.running == 0


def _caching_off(page: MetricsPage) -> Iterator[Finding]:
    for rank, engine in page.engines.items():
        if engine.cache is not None and engine.cache.prefix_caching is False:
            yield Finding(
                "prefix-caching-off",
                Severity.WARNING,
                f"prefix caching is off on rank {rank}",
                "cache_config_info: enable_prefix_caching=False",
                "every prompt is computed whole, and KV events stay empty",
                "--enable-prefix-caching",
            )


def _unsupported(evidence: Evidence, page: MetricsPage) -> Iterator[Finding]:
    reasons = [tap.unsupported for tap in evidence.observer_taps + evidence.kv_taps]
    for engine in page.engines.values():
        if engine.cache is None:
            continue
        if engine.cache.sliding_window:
            reasons.append(f"sliding window of {engine.cache.sliding_window} tokens")
        if engine.cache.has_recurrent_state:
            reasons.append("recurrent (mamba) state")
    reasons = sorted(set(filter(None, reasons)))
    if reasons:
        yield Finding(
            "unsupported-kv-state",
            Severity.WARNING,
            "this model's KV state is unsupported: no readiness is told for it",
            "; ".join(reasons),
            "blocks that are resident make no prefix by themselves; hits would be overstated",
            "use kvready's waits and batches only; its readiness needs dense attention, one group",
        )


def _coarse(evidence: Evidence, page: MetricsPage) -> Iterator[Finding]:
    if level_now(evidence.surfaces) is Level.OBSERVER:
        return  # each wait is seen itself
    firsts = [e.queue_seconds.bounds[0] for e in page.engines.values() if e.queue_seconds]
    if firsts and max(firsts) >= COARSE_SECONDS:
        yield Finding(
            "coarse-queue-histogram",
            Severity.WARNING,
            f"queue times are told in steps that start at {max(firsts) * 1e3:.0f} ms",
            f"vllm:request_queue_time_seconds has its first bucket at {max(firsts):g} s",
            "waits for loads, most of them shorter, all look alike",
            FINE_BUCKETS,
        )


def _refused(page: MetricsPage) -> Iterator[Finding]:
    if parse_version(page.version) is None:
        yield Finding(
            "unknown-version",
            Severity.WARNING,
            UNKNOWN_VERSION,
            f"/version says {page.version!r}" if page.version else "/version did not answer",
            "counters that some version got wrong are refused, and hazards cannot be told",
            "let this host reach /version, or run a released version",
        )
    for refused in page.refused:
        yield Finding(
            "refused-counter",
            Severity.NOTE,
            f"{refused.metric} is refused",
            refused.reason,
            "dashboards that show it are wrong",
            "see docs/vllm-counters.md for what to use instead",
        )
    for hazard in counter_hazards(parse_version(page.version), Action.CAUTION):
        for name in sorted(page.names & set(hazard.metrics)):
            yield Finding(
                "doubtful-counter",
                Severity.NOTE,
                f"{name} may mislead",
                f"{span(hazard)}, {hazard.wrong} ({', '.join(hazard.sources)})",
                "a hit ratio made of it is too low where such requests come",
                f"use {hazard.instead}",
            )


def _native(page: MetricsPage) -> Iterator[Finding]:
    if page.offloads:
        yield Finding(
            "native-dedup",
            Severity.NOTE,
            "dedup of loads is native: OffloadingConnector holds a request whose blocks another "
            "one is loading",
            "vllm:kv_offload_* metrics are there",
            "none; a saving by dedup of loads would count what the engine does already",
            "nothing to change",
        )


def _version(evidence: Evidence, page: MetricsPage) -> Iterator[Finding]:
    surfaces = {Surface.KV_EVENTS} if evidence.surfaces.sources else set()
    if page.offloads:
        surfaces.add(Surface.OFFLOAD)
    for hazard in hazards_of(parse_version(page.version), frozenset(surfaces)):
        yield Finding(
            f"hazard-{hazard.id}",
            Severity.WARNING if hazard.is_finding else Severity.NOTE,
            hazard.what,
            f"vLLM {page.version}; {hazard.versions} ({', '.join(hazard.sources)})",
            hazard.cost,
            hazard.fix,
        )
