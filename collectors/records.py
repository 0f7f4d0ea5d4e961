"""The one vocabulary: what an engine did, as facts with units.

Every tap turns bytes into these records and nothing else; everything that predicts, pairs or
decides reads only these. Times are seconds on the host's monotonic clock unless a name says
`wall`. Block hashes are unsigned 64-bit and opaque outside one engine incarnation. Prompt text and
token ids never appear here: a collector hashes them on arrival and drops them.
"""

from __future__ import annotations

import msgspec

from kvready.collectors.asked import AskedCandidate
from kvready.collectors.commanded import (
    KeepingChanged,
    KillSwitched,
    PoliciesRestored,
    PolicyCommanded,
)
from kvready.collectors.names import (
    CopyMethod,
    CounterName,
    DeferReason,
    Outcome,
    OverlapMode,
    Surface,
    TapEvent,
    TapState,
    Tier,
)
from kvready.collectors.record import Record

# Passed on from other modules, beside the records defined here.
__all__ = [
    "CopyMethod",
    "CounterName",
    "DeferReason",
    "KeepingChanged",
    "KillSwitched",
    "Outcome",
    "OverlapMode",
    "PoliciesRestored",
    "PolicyCommanded",
    "Record",
    "Surface",
    "TapEvent",
    "TapState",
    "Tier",
]


class Observed(Record, frozen=True, kw_only=True):
    """A fact seen inside one engine process: load ids and steps count within its rank only."""

    rank: int = 0  # data-parallel; the observer's socket tells it


class EngineDescribed(Observed, frozen=True, tag="engine_described"):
    """What the engine is, said once when a tap learns it; the conditions of every figure."""

    engine: str
    engine_version: str
    model: str
    block_tokens: int
    hbm_blocks: int
    kv_bytes_per_token: int
    layers: int
    overlap: OverlapMode
    batch_token_limit: int = 0
    batch_request_limit: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0  # of a disk tier below the host tier
    host_fragment_bytes: int = 0  # bytes of one contiguous copy between host and HBM
    host_fragments_per_block: int = 0
    has_mover_times: bool = False  # the mover itself reports start and end of its copies
    supported_kv_state: bool = True  # dense attention in one group
    load_method: CopyMethod | None = None  # of the host tier's loads, where it is configured
    gather_workers: int = 0  # threads or SMs of the host tier's gather; 0: untold
    request_token_limit: int = 0  # prefill tokens of one request in a batch; 0: only the batch's
    reserves_output: bool = False  # a request's blocks are taken for its answer too, as it comes in
    finds_unfinished: bool = True  # a prompt's blocks are found as it is computed, not once it is


class BlocksStored(Record, frozen=True, tag="blocks_stored"):
    """Blocks became findable in a tier; a chain of hashes after `parent_hash` (None: the first).

    `block_tokens` 0 is a placeholder: the engine named the last block of a chunk without saying
    what it holds. `extra_key_hashes` stands for salts, adapters and media, one per block or none.
    """

    publisher: str
    rank: int
    sequence: int
    published_wall_seconds: float
    tier: Tier
    block_hashes: tuple[int, ...]
    parent_hash: int | None = None
    block_tokens: int = 0
    group: int = 0
    adapter: str | None = None
    extra_key_hashes: tuple[int, ...] = ()
    content_keys: tuple[int, ...] = ()
    session_hash: int | None = None


class BlocksRemoved(Record, frozen=True, tag="blocks_removed"):
    """Blocks stopped being findable in a tier."""

    publisher: str
    rank: int
    sequence: int
    published_wall_seconds: float
    tier: Tier
    block_hashes: tuple[int, ...]
    group: int = 0


class TierCleared(Record, frozen=True, tag="tier_cleared"):
    """An engine dropped everything it could find in one tier."""

    publisher: str
    rank: int
    sequence: int
    published_wall_seconds: float
    tier: Tier


class LoadDecided(Observed, frozen=True, tag="load_decided"):
    """The scheduler ordered a copy between tiers. A backup has HBM as its source."""

    load_id: int
    request_id: str
    source: Tier
    destination: Tier
    tokens: int
    payload_bytes: int
    fragments: int
    decided_seconds: float


class LoadStarted(Observed, frozen=True, tag="load_started"):
    """The mover took up a copy."""

    load_id: int
    source: Tier
    destination: Tier
    started_seconds: float


class LoadFinished(Observed, frozen=True, tag="load_finished"):
    """A copy became usable at its destination.

    `step_quantised`: seen only when the scheduler looked, at a step's end; then `started_seconds`
    is unknown (None) and `ready_seconds` is the moment of the look.
    """

    load_id: int
    source: Tier
    destination: Tier
    started_seconds: float | None
    ready_seconds: float
    payload_bytes: int = 0
    fragments: int = 0
    method: CopyMethod | None = None
    step_quantised: bool = False


class LoadChecked(Observed, frozen=True, tag="load_checked"):
    """What a mover brought was compared, byte for byte, with a per-page copy of the same pages.

    Told before the copy's end. `mismatched`: it was repaired by per-page copies.
    """

    load_id: int
    source: Tier
    destination: Tier
    mismatched: bool


class RequestArrived(Observed, frozen=True, tag="request_arrived"):
    """A request was first seen on a surface. Hashes are sent here once, never again."""

    request_id: str
    surface: Surface
    arrived_seconds: float
    prompt_tokens: int
    block_hashes: tuple[int, ...] = ()
    block_tokens: int = 0
    output_token_limit: int = 0
    request_class: str = ""
    tenant: str = ""
    ttft_target_seconds: float | None = None


class RequestDeferred(Observed, frozen=True, tag="request_deferred"):
    """The engine passed over a waiting request in this step. Sent when the reason changes."""

    request_id: str
    deferred_seconds: float
    reason: DeferReason


class RequestScheduled(Observed, frozen=True, tag="request_scheduled"):
    """A request entered a batch for the first time, or again after preemption.

    Tokens by source as the engine counted them at admission: `hbm_tokens` found in HBM,
    `loaded_tokens` brought from a lower tier; the rest of the prompt is computed.
    """

    request_id: str
    scheduled_seconds: float
    hbm_tokens: int
    loaded_tokens: int = 0
    resumed: bool = False


class RequestPreempted(Observed, frozen=True, tag="request_preempted"):
    """A running request lost its blocks and waits again."""

    request_id: str
    preempted_seconds: float


class FirstToken(Observed, frozen=True, tag="first_token"):
    """The engine produced a request's first output token (known at a step's end)."""

    request_id: str
    first_token_seconds: float


class RequestFinished(Observed, frozen=True, tag="request_finished"):
    """A request ended, well or not."""

    request_id: str
    finished_seconds: float
    outcome: Outcome
    output_tokens: int = 0


class RequestReported(Record, frozen=True, tag="request_reported"):
    """What a request turned out to have been, told from outside once it had ended (level 2).

    None: not told. Each duration was measured by one clock of the engine's host. The wall readings
    can be placed on our own clock only where `same_host` says that both clocks are one.
    """

    request_id: str
    surface: Surface
    arrived_wall_seconds: float | None = None
    ended_wall_seconds: float | None = None
    same_host: bool = False
    queue_seconds: float | None = None  # until first scheduled, asynchronous loads included
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    ttft_seconds: float | None = None
    whole_seconds: float | None = None  # from arrival to the last token
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    outcome: Outcome | None = None
    traceparent: str = ""  # W3C's, of the span that told; empty: no span did


class PromptTokensReported(Record, frozen=True, tag="prompt_tokens_reported"):
    """Prompt tokens of one engine step by where their KV came from (level 2); None: not told."""

    step_wall_seconds: float
    engine_index: int = 0
    computed_tokens: int | None = None
    hbm_tokens: int | None = None
    loaded_tokens: int | None = None
    prompt_tokens: int | None = None


class CountersScraped(Record, frozen=True, tag="counters_scraped"):
    """What an engine's counters and gauges said, by `CounterName` (level 0).

    Summed over the engine's ranks. A name that is missing was not exported; one in `refused` was,
    but this version is known to count it wrongly.
    """

    scraped_seconds: float
    engine: str = ""
    engine_version: str = ""
    values: dict[str, float] = msgspec.field(default_factory=dict)
    refused: tuple[str, ...] = ()


class BatchMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's share of a batch, in tokens. `context_tokens` lie before the new ones."""

    request_id: str
    new_tokens: int
    context_tokens: int
    is_prefill: bool


class BatchPlanned(Observed, frozen=True, tag="batch_planned"):
    """The scheduler chose a batch. The (monotonic, wall) pair keeps the clocks mapped."""

    step: int
    planned_seconds: float
    planned_wall_seconds: float
    members: tuple[BatchMember, ...]
    waiting: tuple[str, ...] = ()  # in queue order, at most MAX_WAITING_IDS
    waiting_total: int = 0
    free_blocks: int | None = None


class BatchFinished(Observed, frozen=True, tag="batch_finished"):
    """A batch's results reached the scheduler."""

    step: int
    finished_seconds: float
    duration_seconds: float
    kv_sequence: int | None = None  # the last KV-event message published so far


class TapStatus(Record, frozen=True, tag="tap_status"):
    """A tap's own news: what it lost, when it healed, what it cannot see."""

    tap: str
    rank: int
    event: TapEvent
    state: TapState
    epoch: int = 0
    first_missing: int | None = None
    last_missing: int | None = None
    count: int = 0
    detail: str = ""


class ReadinessAsked(Record, frozen=True, tag="readiness_asked"):
    """Somebody asked when these would be ready; replays answer it again from the same state."""

    candidates: tuple[AskedCandidate, ...]


class Tick(Record, frozen=True, tag="tick"):
    """Written each second by the recorder, so that silence and stalls replay too."""

    tick_seconds: float
    tick_wall_seconds: float


AnyRecord = (
    EngineDescribed
    | BlocksStored
    | BlocksRemoved
    | TierCleared
    | LoadDecided
    | LoadStarted
    | LoadFinished
    | LoadChecked
    | RequestArrived
    | RequestDeferred
    | RequestScheduled
    | RequestPreempted
    | FirstToken
    | RequestFinished
    | RequestReported
    | PromptTokensReported
    | CountersScraped
    | BatchPlanned
    | BatchFinished
    | TapStatus
    | ReadinessAsked
    | PolicyCommanded
    | KillSwitched
    | KeepingChanged
    | PoliciesRestored
    | Tick
)

MAX_WAITING_IDS = 512


class Ingested(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record with its place in ingest order: number, receive time (monotonic), and tap."""

    ingest: int
    received_seconds: float
    tap: str
    record: AnyRecord
