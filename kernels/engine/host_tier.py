"""A host-memory KV tier for vLLM's CPU build, with real copies of scattered pages.

vLLM's own CPU tier serves GPUs only. This spec keeps its scheduler side (what is where, what is
evicted) and supplies the worker side: asynchronous copies between the engine's cache tensors and
a page-first host pool, page by page or gathered, in both directions, each in its own order. Use it
with

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": 4294967296, "spec_name": "HostTierSpec",
      "spec_module_path": "kvready.kernels.engine.host_tier", "mover": "gather"}}'

`mover` (loads) and `store_mover` are `dma_per_page` or `gather`; a word in `mover_file` overrules
`mover` while the engine runs; one gathered load in `check_every` is checked byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from kvready.kernels.engine.host_pool import HbmTensor, HostPool, tensor_bytes
from kvready.kernels.engine.mover_choice import MoverSettings, read_settings
from kvready.kernels.engine.pages import Page, TensorPage, pages
from kvready.kernels.engine.tier_copies import TierCopies
from kvready.kernels.engine.transfer_observer import (
    OBSERVER_SETTING,
    TransferObserver,
    load_observer,
)
from kvready.kernels.gather_cpu import open_gather
from kvready.kernels.pools import Mover

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig

MakePool = Callable[[Sequence[int]], HostPool]  # told the bytes of each tensor's page


class HostTierWorker(OffloadingWorker):
    """Moves pages between the engine's cache tensors and a host pool."""

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        make_pool: MakePool,
        blocks_per_chunk: int,
        settings: MoverSettings,
        observer: TransferObserver | None = None,
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        hbm = [
            HbmTensor(
                entry.tensor.view(torch.int8).view(-1, entry.page_size_bytes),
                entry.page_size_bytes,
            )
            for entry in kv_caches.tensors
        ]
        self._tensors_by_group = [
            [TensorPage(ref.tensor_idx, ref.page_size_bytes) for ref in group]
            for group in kv_caches.group_data_refs
        ]
        host = make_pool(tensor_bytes(len(hbm), self._tensors_by_group))
        pools = host.pools(hbm, self._tensors_by_group)
        self.copies = TierCopies(host, hbm, pools, blocks_per_chunk, settings, _open_gather)
        self._observer = observer
        self._loads = CopyThread(True, observer, _prepare_copy_thread)
        self._stores = CopyThread(False, observer, _prepare_copy_thread)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Queue a copy from the host pool into HBM."""
        self._loads.submit(job_id, partial(self._load, self._pages(dst_spec, src_spec)))
        return True

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Queue a copy from HBM into the host pool."""
        self._stores.submit(job_id, partial(self.copies.store, self._pages(src_spec, dst_spec)))
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
        self.copies.close()
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
        return self.copies.load(wanted)


class HostTierSpec(CPUOffloadingSpec):
    """vLLM's CPU offloading spec, with a worker that runs on the CPU build."""

    worker_class = HostTierWorker

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        refuse_canonical_layout(self)
        self._mover_settings = read_settings(self.extra_config)
        self._host_worker: HostTierWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The mover of this worker process, made once."""
        refuse_gpu(type(self).__name__, "CPUOffloadingSpec")
        if self._host_worker is None:
            self._host_worker = self.worker_class(
                kv_caches,
                partial(HostPool.allocate, self.num_chunks, self.blocks_per_chunk),
                self.blocks_per_chunk,
                self._mover_settings,
                observer_of(self),
            )
        return self._host_worker


def refuse_canonical_layout(spec: CPUOffloadingSpec) -> None:
    """Raise for a layout that this worker does not keep."""
    if spec.config.canonical_layout or spec.replicated_layout:
        raise ValueError(
            f"{type(spec).__name__} keeps pages as the worker lays them out; remove the canonical "
            "layout setting from kv_connector_extra_config"
        )


def refuse_gpu(spec_name: str, use_instead: str) -> None:
    """Raise where the cache is not in host memory."""
    if not current_platform.is_cpu():
        raise ValueError(
            f"{spec_name} copies within host memory and serves vLLM's CPU build only; on a GPU use "
            f"spec_name={use_instead}"
        )


def observer_of(spec: CPUOffloadingSpec) -> TransferObserver | None:
    """Whoever wants to hear of this worker's copies."""
    return load_observer(
        spec.extra_config.get(OBSERVER_SETTING),
        spec.config.parallel.data_parallel_index,
        spec.config.parallel.rank,
    )


def _open_gather(threads: int) -> Mover:
    """A gather whose helper threads may run beside the compute cores, as its caller does."""
    with ThreadPoolExecutor(1, initializer=widen_affinity) as opener:
        return opener.submit(open_gather, threads).result()


def _prepare_copy_thread() -> None:
    # One core per direction: more would take the compute's. The engine replaces
    # torch.set_num_threads in its worker, to keep its own threads bound; this is the function
    # underneath, and it concerns the calling thread.
    torch._C.set_num_threads(1)
    widen_affinity()
