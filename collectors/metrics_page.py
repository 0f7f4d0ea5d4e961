"""What a page of vLLM's /metrics means, engine by engine, in this engine's version.

Each reading is a number, None (not on the page: unknown, not zero) or `Refused` where the running
version is known to count it wrongly. Counters are since the engine's start; differences are the
reader's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from kvready.collectors.counter_hazards import Version, parse_version, refusal
from kvready.collectors.prometheus_text import Sample, read_samples
from kvready.collectors.records import Tier

PREFIX = "vllm:"
STARTED = "process_start_time_seconds"
MAX_ENGINES = 256

TIER_OF_SOURCE = {
    "device": Tier.HBM,
    "host": Tier.HOST,
    "disk": Tier.DISK,
    "p2p": Tier.REMOTE,
}


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A counter that the running version is known to get wrong."""

    metric: str
    reason: str


Reading = float | Refused | None


class FetchStage(StrEnum):
    """Where a waiting request is that needs an asynchronous load (0.32 and later)."""

    WAITING_TO_START = "waiting_to_start"
    IN_PROGRESS = "in_progress"
    COMPLETED_WAITING = "completed_waiting"


class Histogram(msgspec.Struct, frozen=True):
    """Cumulative counts at upper bounds; the last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float  # the sum of what was observed

    @property
    def count(self) -> float:
        """How many were observed."""
        return self.counts[-1] if self.counts else 0.0


class CacheShape(msgspec.Struct, frozen=True):
    """The cache's configuration as the engine states it. None: not stated."""

    block_tokens: int | None
    hbm_blocks: int | None
    prefix_caching: bool | None
    offload_gib: float | None
    sliding_window: int | None
    has_recurrent_state: bool


class EngineReading(msgspec.Struct, frozen=True, kw_only=True):
    """One engine index's page. Tokens, bytes and seconds since its start; gauges are now's."""

    engine: int
    running: float | None
    waiting: float | None  # deferred ones included
    deferred: float | None
    cache_usage: float | None  # 0 to 1
    fetching: dict[FetchStage, float] | None
    prompt_tokens: Reading
    computed_tokens: Reading
    hit_tokens: dict[Tier, Reading]
    unplaced_hit_tokens: Reading  # from a connector that does not say which tier
    load_bytes: Reading
    load_seconds: Reading
    store_bytes: Reading
    store_seconds: Reading
    preemptions: Reading
    ttft_seconds: Histogram | None
    queue_seconds: Histogram | None
    lookup_held_seconds: Histogram | None  # requests held while their blocks were on the way
    block_lifetime_seconds: Histogram | None
    cache: CacheShape | None


class MetricsPage(msgspec.Struct, frozen=True):
    """A whole page."""

    version: str | None
    started_wall_seconds: float | None  # of the API process: a change is a restart
    models: tuple[str, ...]
    engines: dict[int, EngineReading]
    names: frozenset[str]
    malformed: int
    truncated: bool

    @property
    def refused(self) -> tuple[Refused, ...]:
        """Every counter that was refused, once."""
        found = {}
        for name in sorted(self.names):
            reason = refusal(name, parse_version(self.version))
            if reason is not None:
                found[name] = Refused(name, reason)
        return tuple(found.values())

    @property
    def offloads(self) -> bool:
        """Whether a connector that moves blocks between tiers reports at all."""
        return any(name.startswith(PREFIX + "kv_offload_") for name in self.names)


def read_page(text: str, version: str | None) -> MetricsPage:
    """A page's meaning in that version of vLLM; None where it is not known."""
    samples = read_samples(text, (PREFIX, STARTED))
    by_engine: dict[int, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    names = set()
    models = set()
    started = None
    for sample in samples.samples:
        if sample.name == STARTED:
            started = sample.value
            continue
        name = sample.name.removesuffix("_total")
        names.add(name)
        engine = sample.labels.get("engine", "0")
        if not engine.isdecimal() or (
            int(engine) not in by_engine and len(by_engine) >= MAX_ENGINES
        ):
            continue
        if model := sample.labels.get("model_name"):
            models.add(model)
        by_engine[int(engine)][name].append(sample)
    release = parse_version(version)
    return MetricsPage(
        version=version,
        started_wall_seconds=started,
        models=tuple(sorted(models)),
        engines={
            index: _engine(index, _Lines(found, release))
            for index, found in sorted(by_engine.items())
        },
        names=frozenset(names),
        malformed=samples.malformed,
        truncated=samples.truncated,
    )


class _Lines:
    """One engine's samples by name, and how its version must be read."""

    def __init__(self, found: Mapping[str, list[Sample]], version: Version | None) -> None:
        self._found = found
        self._version = version

    def gauge(self, name: str, **labels: str) -> float | None:
        """The sum over what matches, None where nothing does."""
        matching = [
            sample.value
            for sample in self._found.get(PREFIX + name, ())
            if labels.items() <= sample.labels.items()
        ]
        return sum(matching) if matching else None

    def counter(self, name: str, **labels: str) -> Reading:
        """As `gauge`, unless this version counts it wrongly."""
        value = self.gauge(name, **labels)
        reason = None if value is None else refusal(PREFIX + name, self._version)
        return value if reason is None else Refused(PREFIX + name, reason)

    def copies(self, name: str, sibling: str) -> Reading:
        """A counter of copies, zero where only its sibling for the other direction counts yet."""
        # vLLM shows each from its first copy on.
        value = self.counter(f"kv_offload_{name}")
        counts_already = value is None and self.gauge(f"kv_offload_{sibling}") is not None
        return 0.0 if counts_already else value

    def by_label(self, name: str, label: str) -> dict[str, float] | None:
        """Values by one label, None where the metric is not there."""
        found = self._found.get(PREFIX + name)
        if not found:
            return None
        values: dict[str, float] = defaultdict(float)
        for sample in found:
            values[sample.labels.get(label, "")] += sample.value
        return dict(values)

    def info(self, name: str) -> Mapping[str, str] | None:
        """The labels of a metric that only carries labels."""
        found = self._found.get(PREFIX + name)
        return found[0].labels if found else None

    def histogram(self, name: str) -> Histogram | None:
        """A histogram, None where it is not there or makes no sense."""
        buckets: dict[float, float] = defaultdict(float)
        for sample in self._found.get(f"{PREFIX}{name}_bucket", ()):
            try:
                buckets[float(sample.labels.get("le", ""))] += sample.value
            except ValueError:
                return None
        total = self.gauge(f"{name}_sum")
        if not buckets or total is None:
            return None
        bounds = tuple(sorted(buckets))
        return Histogram(bounds, tuple(buckets[bound] for bound in bounds), total)


def _engine(index: int, lines: _Lines) -> EngineReading:
    stages = lines.by_label("num_requests_kv_fetch_by_stage", "stage")
    placed, unplaced = _hits(lines)
    return EngineReading(
        engine=index,
        running=lines.gauge("num_requests_running"),
        waiting=lines.gauge("num_requests_waiting"),
        deferred=lines.gauge("num_requests_waiting_by_reason", reason="deferred"),
        cache_usage=lines.gauge("kv_cache_usage_perc"),
        fetching=None if stages is None else {s: stages.get(s, 0.0) for s in FetchStage},
        prompt_tokens=lines.counter("prompt_tokens"),
        computed_tokens=lines.counter("prompt_tokens_by_source", source="local_compute"),
        hit_tokens=placed,
        unplaced_hit_tokens=unplaced,
        load_bytes=lines.copies("load_bytes", "store_bytes"),
        load_seconds=lines.copies("load_time", "store_time"),
        store_bytes=lines.copies("store_bytes", "load_bytes"),
        store_seconds=lines.copies("store_time", "load_time"),
        preemptions=lines.counter("num_preemptions"),
        ttft_seconds=lines.histogram("time_to_first_token_seconds"),
        queue_seconds=lines.histogram("request_queue_time_seconds"),
        lookup_held_seconds=lines.histogram("kv_offload_lookup_async_delay_seconds"),
        block_lifetime_seconds=lines.histogram("kv_block_lifetime_seconds"),
        cache=_cache_shape(lines.info("cache_config_info")),
    )


def _hits(lines: _Lines) -> tuple[dict[Tier, Reading], Reading]:
    """Prompt tokens found in each tier, by the best counter that this version has."""
    tiers = lines.by_label("prompt_tokens_cached_by_source", "source")
    if tiers is not None:
        placed: dict[Tier, Reading] = dict.fromkeys(Tier, 0.0)
        unplaced = 0.0
        for source, tokens in tiers.items():
            tier = TIER_OF_SOURCE.get(source)
            if tier is None:
                unplaced += tokens
            else:
                placed[tier] = tokens
        return placed, unplaced
    if lines.by_label("prompt_tokens_by_source", "source") is not None:
        local = lines.counter("prompt_tokens_by_source", source="local_cache_hit")
        moved = lines.counter("prompt_tokens_by_source", source="external_kv_transfer")
        return {Tier.HBM: local}, moved
    return (
        {Tier.HBM: lines.counter("prefix_cache_hits")},
        lines.counter("external_prefix_cache_hits"),
    )


def _cache_shape(labels: Mapping[str, str] | None) -> CacheShape | None:
    if labels is None:
        return None
    recurrent = _number(labels.get("mamba_block_size")) is not None
    return CacheShape(
        block_tokens=_whole(labels.get("block_size")),
        hbm_blocks=_whole(labels.get("num_gpu_blocks")),
        prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        offload_gib=_number(labels.get("kv_offloading_size")),
        sliding_window=_whole(labels.get("sliding_window")),
        has_recurrent_state=recurrent,
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def known(readings: Iterable[Reading]) -> float | None:
    """The sum of readings of several engines; None if any of them is unknown or refused."""
    total = 0.0
    for reading in readings:
        if not isinstance(reading, float):
            return None
        total += reading
    return total
