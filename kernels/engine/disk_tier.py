"""A disk tier below vLLM's host tier: chunks go down as they are stored, and come back on a hit.

vLLM's tiering manager asks: it hands over every chunk that reached host memory, and when a request
needs one that host memory lost it allocates room there and asks for it back. All of this runs in
the scheduler's process, where nothing may wait: the disk's threads do. The file has no name, so a
restart begins with an empty tier and a killed engine leaves nothing behind.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvready.kernels.disk import DiskFile
from kvready.kernels.engine.disk_jobs import DiskJobs, DoneJob, Transfer
from kvready.kernels.engine.disk_slots import DiskSlots, Presence
from kvready.kernels.engine.fetch_observer import load_fetch_observer
from kvready.kernels.workers import DISK_DEPTH

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = "/var/tmp"  # on a disk nearly everywhere, unlike /tmp
LOOKUPS = {
    Presence.ABSENT: LookupResult.MISS,
    Presence.WRITING: LookupResult.RETRY,
    Presence.READY: LookupResult.HIT,
}


class DiskTier(SecondaryTierManager):
    """Least recently used chunks give way within `disk_bytes`."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        disk_bytes: int,
        folder: str = DEFAULT_FOLDER,
        depth: int = DISK_DEPTH,
        observer: str | None = None,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._chunk_bytes = self.block_size_bytes
        self._chunk_tokens = offloading_spec.tokens_per_block[0] * offloading_spec.blocks_per_chunk
        slots = disk_bytes // self._chunk_bytes
        self._file = DiskFile(Path(folder), slots, self._chunk_bytes)
        self._slots = DiskSlots(slots)
        self._jobs = DiskJobs(self._file, depth)
        self._memory = primary_kv_view.cast("B")
        self._missing: dict[int, list[OffloadKey]] = {}  # asked for by a job, evicted meanwhile
        publishes = offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if publishes else None
        self._observer = load_fetch_observer(
            observer, offloading_spec.config.parallel.data_parallel_index
        )
        logger.info(
            "disk tier: %d chunks of %d bytes in %s (%s), %s, %d reads at once",
            slots,
            self._chunk_bytes,
            folder,
            self._file.file_system or "unknown file system",
            self._file.backend,
            depth,
        )

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LOOKUPS[self._slots.presence(key)]

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            self._slots.touch(key)

    def submit_store(self, job_metadata: TransferJob) -> None:
        transfers = []
        evicted = []
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids.tolist(), strict=True):
            if self._slots.presence(key) is not Presence.ABSENT:
                self._slots.touch(key)
                continue
            claim = self._slots.claim(key)
            if claim is None:
                break  # all slots are being written or read: the rest stays in host memory only
            if claim.evicted is not None:
                evicted.append(OffloadKey(claim.evicted))
            transfers.append(Transfer(key, claim.slot, self._chunk(chunk)))
        self._tell_events(evicted, removed=True)
        self._tell_decided(job_metadata, transfers, is_fetch=False)
        self._jobs.store(job_metadata.job_id, transfers, self._started(job_metadata, False))

    def submit_load(self, job_metadata: TransferJob) -> None:
        transfers = []
        missing = []
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids.tolist(), strict=True):
            slot = self._slots.pin(key)
            if slot is None:
                missing.append(key)
            else:
                transfers.append(Transfer(key, slot, self._chunk(chunk)))
        if missing:
            self._missing[job_metadata.job_id] = missing
        self._tell_decided(job_metadata, transfers, is_fetch=True)
        self._jobs.fetch(job_metadata.job_id, transfers, self._started(job_metadata, True))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        return [self._settle(done) for done in self._jobs.take_finished()]

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events is not None:
            yield from self._events
            self._events.clear()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        self._jobs.wait_idle()

    def shutdown(self) -> None:
        """Let transfers end and give the file back. Safe twice."""
        self._jobs.close()
        self._file.close()
        self._memory.release()

    def _chunk(self, chunk: int) -> memoryview:
        return self._memory[chunk * self._chunk_bytes : (chunk + 1) * self._chunk_bytes]

    def _settle(self, done: DoneJob) -> JobResult:
        """Bring the index in line with what happened."""
        gone = []
        for key in (*done.good, *done.bad):
            if done.is_fetch:
                self._slots.unpin(key)
        for key in done.bad:
            if self._slots.drop(key):
                gone.append(OffloadKey(key))
        good = [OffloadKey(key) for key in done.good]
        if not done.is_fetch:
            for key in good:
                self._slots.written(key)
            self._tell_events(good, removed=False)
        self._tell_events(gone, removed=True)
        if self._observer is not None and done.started_seconds is not None:
            self._observer.finished(
                done.job,
                done.is_fetch,
                done.started_seconds,
                done.ready_seconds,
                done.payload_bytes,
                len(good),
            )
        failed = bool(done.bad or self._missing.pop(done.job, None))
        began = done.started_seconds
        return JobResult(
            job_id=done.job,
            success=not failed,
            successful_keys=good if failed and good else None,
            transfer_time=None if began is None else done.ready_seconds - began,
            transfer_bytes=done.payload_bytes,
        )

    def _tell_events(self, keys: list[OffloadKey], removed: bool) -> None:
        if self._events is not None and keys:
            # A removal is told for each, so that vLLM keeps what the blocks hold until then.
            self._events.append(
                OffloadingEvent(keys, self.medium, removed, removal_expected=not removed)
            )

    def _tell_decided(self, job: TransferJob, transfers: list[Transfer], is_fetch: bool) -> None:
        if self._observer is None or not transfers:
            return
        groups = Counter(get_offload_group_idx(OffloadKey(moved.key)) for moved in transfers)
        self._observer.decided(
            job.job_id,
            job.req_context.req_id,
            is_fetch,
            max(groups.values()) * self._chunk_tokens,
            len(transfers) * self._chunk_bytes,
            len(transfers),
            time.monotonic(),
        )

    def _started(self, job: TransferJob, is_fetch: bool) -> Any:
        if self._observer is None:
            return _nobody_asked
        return partial(self._observer.started, job.job_id, is_fetch)


def _nobody_asked(_: float) -> None:
    """No observer wants to hear of starts."""
