"""Copies as the scheduler sees them: ordered in one step, noticed as done in a later one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvready.collectors.engine.engine_facts import GroupPages
from kvready.collectors.records import LoadDecided, LoadFinished, Tier

MAX_OPEN_JOBS = 65_536


class _OpenJob(NamedTuple):
    decided: LoadDecided
    workers_left: int


class TransferJobs:
    """Reads a step's orders from the connector's message to the workers; calls no connector."""

    def __init__(
        self, pages: Sequence[GroupPages], block_tokens: int, workers: int, note_finish: bool
    ) -> None:
        self._pages = pages
        self._block_tokens = block_tokens
        self._workers = workers
        self._note_finish = note_finish  # only where no mover reports exact times
        self._open: dict[int, _OpenJob] = {}

    def decided(self, metadata: Any, decided_seconds: float) -> list[LoadDecided]:
        """The copies that this step ordered, loads first."""
        found = []
        for part in _parts(metadata):
            for jobs, is_load in ((part.load_jobs, True), (part.store_jobs, False)):
                for job, order in jobs.items():
                    found.append(self._decided(job, order, is_load, decided_seconds))
        if self._note_finish:
            for record in found:
                if len(self._open) < MAX_OPEN_JOBS:
                    self._open[record.load_id] = _OpenJob(record, self._workers)
        return found

    def finished(self, worker_metadata: Any, seen_seconds: float) -> list[LoadFinished]:
        """The copies that the scheduler noticed as done in this step."""
        if not self._open:
            return []
        found = []
        for part in _worker_parts(worker_metadata):
            for job, count in part.completed_jobs.items():
                opened = self._open.pop(job, None)
                if opened is None:
                    continue
                left = opened.workers_left - count
                if left > 0:
                    self._open[job] = opened._replace(workers_left=left)
                else:
                    found.append(_finished(opened.decided, seen_seconds))
        return found

    def _decided(self, job: int, order: Any, is_load: bool, seconds: float) -> LoadDecided:
        # HBM blocks are named one by one whatever the size of the host tier's chunks.
        blocks = (order.dst_spec if is_load else order.src_spec).group_sizes
        return LoadDecided(
            load_id=job,
            request_id=order.req_id,
            source=Tier.HOST if is_load else Tier.HBM,
            destination=Tier.HBM if is_load else Tier.HOST,
            tokens=max(blocks, default=0) * self._block_tokens,
            payload_bytes=sum(
                size * pages.payload_bytes for size, pages in zip(blocks, self._pages, strict=False)
            ),
            fragments=sum(
                size * pages.fragments for size, pages in zip(blocks, self._pages, strict=False)
            ),
            decided_seconds=seconds,
        )


def _finished(decided: LoadDecided, seen_seconds: float) -> LoadFinished:
    return LoadFinished(
        load_id=decided.load_id,
        source=decided.source,
        destination=decided.destination,
        started_seconds=None,
        ready_seconds=seen_seconds,
        payload_bytes=decided.payload_bytes,
        fragments=decided.fragments,
        step_quantised=True,
    )


def _parts(metadata: Any) -> Iterator[Any]:
    """A connector's message, or those of a MultiConnector's children, that name copies."""
    for part in getattr(metadata, "metadata", None) or (metadata,):
        if hasattr(part, "load_jobs"):
            yield part


def _worker_parts(metadata: Any) -> Iterator[Any]:
    for part in getattr(metadata, "metadata", None) or (metadata,):
        if hasattr(part, "completed_jobs"):
            yield part
