"""The closed lists of names that records use; `records` passes them on."""

from __future__ import annotations

from enum import StrEnum

# What an engine that is none calls itself: its facts are simulated, never measured.
SIMULATED_ENGINE = "sim"
SIMULATED_RELEASE = "+sim"  # at the end of its version


class Tier(StrEnum):
    """Where KV blocks live, one name for every engine's."""

    HBM = "hbm"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class CopyMethod(StrEnum):
    """How a mover turns scattered pages into transfers."""

    DMA_PER_PAGE = "dma_per_page"
    DMA_BATCH = "dma_batch"
    GATHER = "gather"


class Surface(StrEnum):
    """Where a request was first seen, most upstream first. A label; never merged."""

    GATEWAY = "gateway"
    FRONTEND = "frontend"
    SCHEDULER = "scheduler"


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class DeferReason(StrEnum):
    """Why the engine put a waiting request aside for this step."""

    LOAD = "load"
    HOLD = "hold"  # by a policy: another request computes its prefix
    OTHER = "other"


class OverlapMode(StrEnum):
    """How an engine overlaps a load with compute; it decides what a load costs a request."""

    LAYERWISE = "layerwise"
    BEFORE_ADMISSION = "before_admission"
    BLOCKING = "blocking"


class TapState(StrEnum):
    """How far a tap can be trusted now."""

    LIVE = "live"
    DEGRADED = "degraded"
    SILENT = "silent"
    CLOSED = "closed"


class TapEvent(StrEnum):
    """What made a tap report its status."""

    CONNECTED = "connected"
    GAP = "gap"
    HEALED = "healed"
    EPOCH = "epoch"
    SILENT = "silent"
    DECODE_ERROR = "decode_error"
    DROPPED = "dropped"
    CLOSED = "closed"


class CounterName(StrEnum):
    """Our names for what engines count; tokens, bytes and seconds since the engine's start."""

    STARTED_WALL_SECONDS = "started_wall_seconds"
    RUNNING = "running"  # requests, now
    WAITING = "waiting"
    DEFERRED = "deferred"
    CACHE_USAGE_RATIO = "cache_usage_ratio"
    FETCH_WAITING_TO_START = "fetch_waiting_to_start"
    FETCH_IN_PROGRESS = "fetch_in_progress"
    FETCH_COMPLETED_WAITING = "fetch_completed_waiting"
    PROMPT_TOKENS = "prompt_tokens"
    COMPUTED_TOKENS = "computed_tokens"
    HBM_HIT_TOKENS = "hbm_hit_tokens"
    HOST_HIT_TOKENS = "host_hit_tokens"
    DISK_HIT_TOKENS = "disk_hit_tokens"
    REMOTE_HIT_TOKENS = "remote_hit_tokens"
    UNPLACED_HIT_TOKENS = "unplaced_hit_tokens"  # from below HBM, nobody says where
    LOAD_BYTES = "load_bytes"
    LOAD_SECONDS = "load_seconds"
    STORE_BYTES = "store_bytes"
    STORE_SECONDS = "store_seconds"
    PREEMPTIONS = "preemptions"
    FIRST_TOKENS = "first_tokens"  # requests
    TTFT_SECONDS = "ttft_seconds"  # summed over those requests
    QUEUE_SECONDS = "queue_seconds"
