"""What a workload runs on: model, device, links, tiers, engine limits and policies."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.roofline import Gpu
from kvready.advisor.strata import Settings
from kvready.collectors.names import OverlapMode
from kvready.kernels.model_shape import ModelShape


class Backup(StrEnum):
    """When a block computed in HBM is copied to host memory."""

    EVERY = "write_through"
    SELECTIVE = "write_through_selective"  # from its second insertion, the paper's default
    EVICTED = "write_back"


class QueueOrder(StrEnum):
    """How waiting requests are scanned before any of Strata's policies."""

    FCFS = "fcfs"
    LONGEST_PREFIX = "longest_prefix"  # the longest match in any tier first, blind to loads
    NAIVE_REORDER = "naive_reorder"  # host hits last while others wait: regressed in public


class LinkSpec(msgspec.Struct, frozen=True):
    """One direction of a link with its mover: `start + fragments * fragment + bytes / rate`."""

    mover: str
    bytes_per_second: float
    start_seconds: float = 0.0
    fragment_seconds: float = 0.0
    prefill_slowdown: float = 0.0  # share added to a prefill beside it
    decode_slowdown: float = 0.0


class Tiers(msgspec.Struct, frozen=True):
    """Capacities in bytes of one rank's KV, and how blocks come down."""

    hbm_bytes: int
    host_bytes: int = 0
    disk_bytes: int = 0
    backup: Backup = Backup.SELECTIVE
    backup_uses: int = 2  # of SELECTIVE


class EngineLimits(msgspec.Struct, frozen=True):
    """How the engine schedules."""

    overlap: OverlapMode = OverlapMode.LAYERWISE
    batch_tokens: int = 16_384  # of prefill in one batch
    chunk_tokens: int = 0  # of one request in one batch; 0: a prompt may fill the batch
    running_requests: int = 256
    in_flight_requests: int = 0  # beyond it clients wait outside, unseen; 0: no cap
    mixed_batches: bool = False  # decodes ride in prefill batches; else prefill goes first
    asynchronous: bool = True  # the next batch is chosen while one runs


class Policies(msgspec.Struct, frozen=True):
    """What decides who runs. None: the engine alone."""

    order: QueueOrder = QueueOrder.FCFS
    strata: Settings | None = None
    load_hits: bool = True  # False: hits below HBM are computed again


class Scenario(msgspec.Struct, frozen=True):
    """Everything but the requests."""

    name: str
    shape: ModelShape
    device: Gpu
    load: LinkSpec  # host -> HBM
    backup: LinkSpec  # HBM -> host
    tiers: Tiers
    fetch: LinkSpec | None = None  # disk -> host
    page_tokens: int = 32  # how the pools are cut: the size of a fragment
    tensor_parallel: int = 1
    mfu: float = 0.5
    fixed_seconds: float = 4e-3
    engine: EngineLimits = EngineLimits()
    policies: Policies = Policies()
    evidence: str = "simulated"
