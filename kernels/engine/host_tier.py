"""A host-memory KV tier for vLLM's CPU build, with real copies of scattered pages.

vLLM's own CPU tier serves GPUs only. This spec keeps its scheduler side (what is where, what is
evicted) and supplies the worker side: asynchronous copies between the engine's cache tensors and
a host pool, one copy per page, in both directions, each direction in its own order. Use it with

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": 4294967296, "spec_name": "HostTierSpec",
      "spec_module_path": "kvready.kernels.engine.host_tier"}}'
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvready.kernels.engine.copy_thread import Copied, CopyThread, widen_affinity
from kvready.kernels.engine.pages import Page, TensorPage, pages
from kvready.kernels.engine.transfer_observer import (
    OBSERVER_SETTING,
    TransferObserver,
    load_observer,
)

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig

COPY_METHOD = "dma_per_page"


class HostTierWorker(OffloadingWorker):
    """Moves pages between the engine's cache tensors and a host pool of the same shape."""

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        host_chunks: int,
        blocks_per_chunk: int,
        observer: TransferObserver | None = None,
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._hbm = [
            entry.tensor.view(torch.int8).view(-1, entry.page_size_bytes)
            for entry in kv_caches.tensors
        ]
        # A slot is as wide as the page with its padding; zeros also touch the memory now, so that
        # no copy pays for page faults.
        self._host = [
            torch.zeros((host_chunks, blocks_per_chunk, entry.page_size_bytes), dtype=torch.int8)
            for entry in kv_caches.tensors
        ]
        self._tensors_by_group = [
            [TensorPage(ref.tensor_idx, ref.page_size_bytes) for ref in group]
            for group in kv_caches.group_data_refs
        ]
        self._observer = observer
        self._loads = CopyThread(True, COPY_METHOD, observer, _prepare_copy_thread)
        self._stores = CopyThread(False, COPY_METHOD, observer, _prepare_copy_thread)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Queue a copy from the host pool into HBM."""
        self._loads.submit(job_id, partial(self._load, self._pages(dst_spec, src_spec)))
        return True

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Queue a copy from HBM into the host pool."""
        self._stores.submit(job_id, partial(self._store, self._pages(src_spec, dst_spec)))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Copies that ended since the last call, stores first."""
        return [
            TransferResult(
                job_id=done.job,
                success=not done.failed,
                transfer_size=done.payload_bytes,
                transfer_time=done.ready_seconds - done.started_seconds,
            )
            for thread in (self._stores, self._loads)
            for done in thread.take_finished()
        ]

    def wait(self, job_ids: set[int]) -> None:
        """Block until these copies are done: their blocks are about to be reused."""
        self._stores.wait(job_ids)
        self._loads.wait(job_ids)

    def shutdown(self) -> None:
        """Finish open copies and release the pool. Safe twice."""
        self._stores.shutdown()
        self._loads.shutdown()
        self._host = []
        if self._observer is not None:
            self._observer.close()

    def _pages(self, hbm: GPULoadStoreSpec, host: LoadStoreSpec) -> list[Page]:
        if not isinstance(host, BlockIDsLoadStoreSpec):
            raise TypeError(f"HostTierWorker cannot reach {type(host).__name__}")
        return pages(
            hbm.block_ids.tolist(),
            host.block_ids.tolist(),
            hbm.group_sizes,
            hbm.block_indices,
            self._tensors_by_group,
            self._blocks_per_chunk,
        )

    def _load(self, wanted: Sequence[Page]) -> Copied:
        moved = 0
        for tensor, block, chunk, slot, size in wanted:
            self._hbm[tensor][block, :size].copy_(self._host[tensor][chunk, slot, :size])
            moved += size
        return Copied(moved, len(wanted))

    def _store(self, wanted: Sequence[Page]) -> Copied:
        moved = 0
        for tensor, block, chunk, slot, size in wanted:
            self._host[tensor][chunk, slot, :size].copy_(self._hbm[tensor][block, :size])
            moved += size
        return Copied(moved, len(wanted))


class HostTierSpec(CPUOffloadingSpec):
    """vLLM's CPU offloading spec, with a worker that runs on the CPU build."""

    worker_class = HostTierWorker

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        if config.canonical_layout or self.replicated_layout:
            raise ValueError(
                "HostTierSpec keeps pages as the worker lays them out; remove the canonical "
                "layout setting from kv_connector_extra_config"
            )
        self._host_worker: HostTierWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The mover of this worker process, made once."""
        if not current_platform.is_cpu():
            raise ValueError(
                "HostTierSpec copies within host memory and serves vLLM's CPU build only; on a "
                "GPU use spec_name=CPUOffloadingSpec"
            )
        if self._host_worker is None:
            self._host_worker = self.worker_class(
                kv_caches,
                host_chunks=self.num_chunks,
                blocks_per_chunk=self.blocks_per_chunk,
                observer=load_observer(
                    self.extra_config.get(OBSERVER_SETTING),
                    self.config.parallel.data_parallel_index,
                    self.config.parallel.rank,
                ),
            )
        return self._host_worker


def _prepare_copy_thread() -> None:
    # One core per direction: more would take the compute's. The engine replaces
    # torch.set_num_threads in its worker, to keep its own threads bound; this is the function
    # underneath, and it concerns the calling thread.
    torch._C.set_num_threads(1)
    widen_affinity()
