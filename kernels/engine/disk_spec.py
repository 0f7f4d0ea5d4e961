"""vLLM's CPU build with host memory and a disk below it: three tiers on one machine.

vLLM's tiering keeps its scheduler side; the worker that copies between cache and host memory is the
host tier's own, on a region that the scheduler's process maps too. Use it with

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": 1073741824, "disk_bytes": 8589934592,
      "spec_name": "DiskTierSpec", "spec_module_path": "kvready.kernels.engine.disk_spec"}}'

and `disk_folder`, `disk_depth` and the host tier's settings beside them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingWorker,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvready.kernels.disk import MAX_DEPTH
from kvready.kernels.engine.disk_tier import DEFAULT_FOLDER
from kvready.kernels.engine.fetch_observer import FETCH_OBSERVER_SETTING
from kvready.kernels.engine.host_pool import HostPool
from kvready.kernels.engine.host_tier import (
    HostTierWorker,
    observer_of,
    refuse_canonical_layout,
    refuse_gpu,
)
from kvready.kernels.engine.mover_choice import read_settings, whole
from kvready.kernels.workers import DISK_DEPTH

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig

MAX_DISK_BYTES = 1 << 46


class DiskTierSpec(TieringOffloadingSpec):
    """The spec to name in the engine's configuration."""

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return super().build_metric_definitions(with_disk_tier(extra_config))

    def __init__(self, config: OffloadingConfig) -> None:
        extra_config = with_disk_tier(config.extra_config)
        super().__init__(dataclasses.replace(config, extra_config=extra_config))
        refuse_canonical_layout(self)
        self._mover_settings = read_settings(self.extra_config)
        self._host_worker: HostTierWorker | None = None

    def get_manager(self) -> OffloadingManager:
        first = self._manager is None
        manager = super().get_manager()
        if first:
            self._give_up_name(self._scheduler_mmap)
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The mover of this worker process, made once."""
        refuse_gpu(type(self).__name__, "TieringOffloadingSpec")
        if self._host_worker is None:
            rank = self.config.parallel.rank
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._give_up_name(region)

            def pool(tensor_bytes: Sequence[int]) -> HostPool:
                return HostPool(
                    region.base_tensor,
                    self.num_chunks,
                    self.blocks_per_chunk,
                    tensor_bytes,
                    first_byte=rank * self.cpu_page_size_per_worker,
                    chunk_stride_bytes=self.kv_bytes_per_chunk,
                    release=region.cleanup,
                )

            self._host_worker = HostTierWorker(
                kv_caches, pool, self.blocks_per_chunk, self._mover_settings, observer_of(self)
            )
        return self._host_worker

    def _give_up_name(self, region: SharedOffloadRegion) -> None:
        """Let the region's memory go with its last process, however that ends.

        With one worker there are two processes: the second to open it removes the name. With more,
        vLLM's own clean-up removes it at an orderly end.
        """
        if self.config.parallel.world_size != 1:
            return
        if not region._creator:
            with suppress(FileNotFoundError):
                os.unlink(region.mmap_path)
        region._creator = False


def with_disk_tier(extra_config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the disk tier named as vLLM's tiering wants it."""
    disk = {
        "type": "DiskTier",
        "module_path": "kvready.kernels.engine.disk_tier",
        "disk_bytes": whole(extra_config, "disk_bytes", 0, MAX_DISK_BYTES),
        "folder": str(extra_config.get("disk_folder") or DEFAULT_FOLDER),
        "depth": whole(extra_config, "disk_depth", DISK_DEPTH, MAX_DEPTH),
        "observer": extra_config.get(FETCH_OBSERVER_SETTING),
    }
    return {**extra_config, "secondary_tiers": [disk]}
