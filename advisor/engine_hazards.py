"""What is known to go wrong in which version of vLLM, where a user of kvready would feel it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from kvready.collectors.counter_hazards import Version, version_text


class Surface(StrEnum):
    """What must be switched on for a hazard to matter."""

    ANY = "any"
    KV_EVENTS = "kv_events"
    OFFLOAD = "offload"


class EngineHazard(NamedTuple):
    """One. `since` None: from the start; `until` None: no version without it is known."""

    id: str
    since: Version | None
    until: Version | None
    surface: Surface
    is_finding: bool  # else it is only good to know
    what: str
    cost: str
    fix: str
    sources: tuple[str, ...]

    @property
    def versions(self) -> str:
        """Its versions in words."""
        since = f"since {version_text(self.since)}" if self.since else ""
        until = f"before {version_text(self.until)}" if self.until else ""
        return " and ".join(filter(None, (since, until))) or "every version"


ENGINE_HAZARDS = (
    EngineHazard(
        "event-maps",
        (0, 24, 0),
        None,
        Surface.KV_EVENTS,
        False,
        "KV events are maps since 0.24; they were arrays before",
        "other consumers of the same socket that read arrays drop everything",
        "bring routers and indexers that share the socket up to date",
        ("vllm-project/vllm#42892",),
    ),
    EngineHazard(
        "random-root-hash",
        None,
        (0, 29, 0),
        Surface.KV_EVENTS,
        False,
        "block hashes start from a random value in each process",
        "hashes of two replicas, or of one before and after a restart, never meet",
        "set PYTHONHASHSEED to one value on every replica, or use 0.29 or newer",
        ("vllm-project/vllm#51875",),
    ),
    EngineHazard(
        "publisher-queue",
        None,
        None,
        Surface.KV_EVENTS,
        False,
        "a full KV-event queue blocks the engine core, not only the publisher",
        "a publisher thread that stalls stops a whole data-parallel group",
        "leave max_queue_size at 100,000 or raise it; kvready's tap never stops reading",
        ("vllm-project/vllm#53859",),
    ),
    EngineHazard(
        "admission-stall",
        (0, 27, 0),
        (0, 28, 0),
        Surface.OFFLOAD,
        True,
        "admission stops once running and deferred requests reach max_num_seqs",
        "throughput falls to zero until a restart",
        "raise --max-num-seqs well above what loads defer, or use another version",
        ("vllm-project/vllm#53130",),
    ),
    EngineHazard(
        "offload-stall",
        None,
        None,
        Surface.OFFLOAD,
        False,
        "under KV pressure, offloading has left engines with requests waiting and none running",
        "throughput falls to zero until a restart; doctor tells it as stalled-engine",
        "alarm on waiting > 0 with running = 0; keep free blocks for what loads",
        ("vllm-project/vllm#45387", "vllm-project/vllm#45388", "vllm-project/vllm#57104"),
    ),
    EngineHazard(
        "pending-without-deadline",
        None,
        None,
        Surface.OFFLOAD,
        False,
        "a request that waits for another's transfer has no deadline",
        "a lost transfer holds it until its client gives up",
        "set a timeout in the client",
        ("vllm-project/vllm#49829",),
    ),
    EngineHazard(
        "chunk-hashes",
        None,
        None,
        Surface.OFFLOAD,
        False,
        "with several blocks a chunk, events name blocks that only the chunk's last hash retrieves",
        "host hits predicted from events must be rounded down to whole chunks",
        "leave blocks_per_chunk at 1, or take host hits as an upper bound",
        ("vllm-project/vllm#57159",),
    ),
)


def hazards_of(version: Version | None, surfaces: frozenset[Surface]) -> Iterator[EngineHazard]:
    """Those that a version has on what is switched on; none of an unknown version."""
    if version is None:
        return
    for hazard in ENGINE_HAZARDS:
        begun = hazard.since is None or version >= hazard.since
        mended = hazard.until is not None and version >= hazard.until
        if begun and not mended and (hazard.surface is Surface.ANY or hazard.surface in surfaces):
            yield hazard
