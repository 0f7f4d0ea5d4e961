"""How deep an engine can be watched as it runs now, and what the next level takes and brings."""

from __future__ import annotations

import msgspec

from kvready.collectors.collector import Level
from kvready.collectors.counter_hazards import parse_version
from kvready.collectors.engine.engine_facts import TESTED_VERSIONS
from kvready.collectors.surfaces import Surfaces

SOURCES_SINCE = (0, 31, 0)  # the first version with /kv_event_sources

KV_EVENTS_FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "ipc:///run/kvready/kv.sock", '
    '"replay_endpoint": "ipc:///run/kvready/replay.sock"}\''
)
OBSERVER_FLAG = (
    "--scheduler-cls kvready.collectors.engine.vllm_observer.ObservedScheduler "
    "(with KVREADY_OBSERVER=/run/kvready in the engine's environment)"
)
SPANS_FLAG = (
    "--otlp-traces-endpoint grpc://127.0.0.1:4317 (and --otlp-grpc-port 4317 for kvready serve)"
)


class Step(msgspec.Struct, frozen=True):
    """What to change in the engine's start to be seen one level deeper."""

    level: Level
    change: str
    adds: str
    risk: str
    because: str = ""  # why this is the next step here, where that is not plain


OBSERVE = Step(
    Level.OBSERVER,
    OBSERVER_FLAG,
    "every request, batch, hit and load as it happens: forecasts before the outcome, where each "
    "wait went, in-time and delay hits",
    "vLLM's scheduler interface is private: other versions are refused, and another custom "
    "scheduler is excluded",
)
REPORT_REQUESTS = Step(
    Level.REQUESTS,
    SPANS_FLAG,
    "waits per request after it ended",
    "one endpoint only: chain an exporter that is already set; aborted requests have no span",
)
PUBLISH_EVENTS = Step(
    Level.KV_EVENTS,
    KV_EVENTS_FLAG,
    "which block is in which tier, churn, duplicate stores",
    "events carry prompt token ids, unauthenticated: keep them on ipc; a full queue can block the "
    "engine core",
)
SHOW_METRICS = Step(
    Level.METRICS,
    "remove --disable-log-stats",
    "hits by tier, load bandwidth, waiting and deferred requests, TTFT",
    "none",
)


def level_now(surfaces: Surfaces) -> Level | None:
    """The deepest level that can be attached without touching the engine; None: none at all."""
    if surfaces.scheduler_observed:
        return Level.OBSERVER
    if surfaces.frontend_observed:
        return Level.REQUESTS
    if surfaces.usable_sources:
        return Level.KV_EVENTS
    return None if surfaces.page is None else Level.METRICS


def next_step(surfaces: Surfaces) -> Step | None:
    """What would deepen the view; None where all is seen already."""
    if surfaces.page is None:
        return msgspec.structs.replace(SHOW_METRICS, because=surfaces.page_problem)
    if not surfaces.usable_sources:
        return msgspec.structs.replace(PUBLISH_EVENTS, because=_why_no_events(surfaces))
    if surfaces.scheduler_observed:
        return None
    if observer_supports(surfaces.version):
        return OBSERVE
    return msgspec.structs.replace(
        REPORT_REQUESTS,
        because=f"the observer was tested with vLLM {', '.join(TESTED_VERSIONS)} and refuses "
        f"{surfaces.version or 'an unknown version'}",
    )


def observer_supports(version: str | None) -> bool:
    """Whether the in-engine observer accepts that version."""
    return version is not None and ".".join(version.split(".")[:2]) in TESTED_VERSIONS


def _why_no_events(surfaces: Surfaces) -> str:
    broken = [source.problem for source in surfaces.sources if source.problem]
    if broken:
        return broken[0]
    if surfaces.tells_sources:
        return "the engine says that it publishes no KV events"
    version = parse_version(surfaces.version)
    if version is not None and version < SOURCES_SINCE:
        return (
            f"vLLM {surfaces.version} does not tell whether it publishes KV events; if it does, "
            "name their endpoint with --kv-events"
        )
    return (
        "the engine did not tell whether it publishes KV events; if it does, name their endpoint "
        "with --kv-events"
    )
