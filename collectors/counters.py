"""A page of an engine's metrics as one record, by our closed names."""

from __future__ import annotations

from kvready.collectors.metrics_page import EngineReading, FetchStage, MetricsPage, Reading, Refused
from kvready.collectors.records import CounterName, CountersScraped, Tier

HIT_TOKENS = {
    Tier.HBM: CounterName.HBM_HIT_TOKENS,
    Tier.HOST: CounterName.HOST_HIT_TOKENS,
    Tier.DISK: CounterName.DISK_HIT_TOKENS,
    Tier.REMOTE: CounterName.REMOTE_HIT_TOKENS,
}
FETCHING = {
    FetchStage.WAITING_TO_START: CounterName.FETCH_WAITING_TO_START,
    FetchStage.IN_PROGRESS: CounterName.FETCH_IN_PROGRESS,
    FetchStage.COMPLETED_WAITING: CounterName.FETCH_COMPLETED_WAITING,
}


def counters_of(page: MetricsPage, scraped_seconds: float) -> CountersScraped:
    """What the page says, summed over the engine's ranks; a ratio is their mean.

    A name that not every rank exports, or that is refused for one, is no sum and is left out.
    """
    readings = [_by_name(engine) for engine in page.engines.values()]
    values: dict[str, float] = {}
    refused: set[str] = set()
    for name in CounterName:
        told = [reading.get(name) for reading in readings]
        if any(isinstance(value, Refused) for value in told):
            refused.add(name)
            continue
        numbers = [value for value in told if isinstance(value, float)]
        if numbers and len(numbers) == len(told):
            divisor = len(numbers) if name is CounterName.CACHE_USAGE_RATIO else 1
            values[name] = sum(numbers) / divisor
    if page.started_wall_seconds is not None:
        values[CounterName.STARTED_WALL_SECONDS] = page.started_wall_seconds
    return CountersScraped(
        scraped_seconds=scraped_seconds,
        engine="vllm",
        engine_version=page.version or "",
        values=values,
        refused=tuple(sorted(refused)),
    )


def _by_name(engine: EngineReading) -> dict[CounterName, Reading]:
    ttft, queue = engine.ttft_seconds, engine.queue_seconds
    named: dict[CounterName, Reading] = {
        CounterName.RUNNING: engine.running,
        CounterName.WAITING: engine.waiting,
        CounterName.DEFERRED: engine.deferred,
        CounterName.CACHE_USAGE_RATIO: engine.cache_usage,
        CounterName.PROMPT_TOKENS: engine.prompt_tokens,
        CounterName.COMPUTED_TOKENS: engine.computed_tokens,
        CounterName.UNPLACED_HIT_TOKENS: engine.unplaced_hit_tokens,
        CounterName.LOAD_BYTES: engine.load_bytes,
        CounterName.LOAD_SECONDS: engine.load_seconds,
        CounterName.STORE_BYTES: engine.store_bytes,
        CounterName.STORE_SECONDS: engine.store_seconds,
        CounterName.PREEMPTIONS: engine.preemptions,
        CounterName.FIRST_TOKENS: None if ttft is None else ttft.count,
        CounterName.TTFT_SECONDS: None if ttft is None else ttft.total,
        CounterName.QUEUE_SECONDS: None if queue is None else queue.total,
    }
    for tier, tokens in engine.hit_tokens.items():
        named[HIT_TOKENS[tier]] = tokens
    for stage, requests in (engine.fetching or {}).items():
        named[FETCHING[stage]] = requests
    return named
