"""What a vLLM engine is, read once from its configuration, and which versions were tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvready.collectors.errors import UnsupportedEngine
from kvready.collectors.records import CopyMethod, EngineDescribed, OverlapMode

TESTED_VERSIONS = ("0.32",)
DENSE_SPEC = "FullAttentionSpec"
# These load inside the step that computes; every other connector parks the request meanwhile.
BLOCKING_CONNECTORS = frozenset({"ExampleConnector", "SharedStorageConnector"})


def check_version(version: str) -> None:
    """Raise `UnsupportedEngine` for a vLLM whose private scheduler interface was not tested."""
    if ".".join(version.split(".")[:2]) not in TESTED_VERSIONS:
        raise UnsupportedEngine(
            f"the observer was tested with vLLM {', '.join(TESTED_VERSIONS)}, this is {version}: "
            f"remove --scheduler-cls, or set KVREADY_OBSERVER=off, or install a kvready that "
            f"lists this version"
        )


class GroupPages(NamedTuple):
    """What one block of a cache group is made of: contiguous pages in separate tensors."""

    fragments: int
    payload_bytes: int


def group_pages(kv_cache_config: Any) -> tuple[GroupPages, ...]:
    """The pages of a block, for each cache group of one worker."""
    found = []
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        by_layer = getattr(spec, "kv_cache_specs", None)
        specs = list(by_layer.values()) if by_layer else [spec] * len(group.layer_names)
        found.append(GroupPages(len(specs), sum(_page_bytes(one) for one in specs)))
    return tuple(found)


def describe(scheduler: Any, version: str, rank_pages: tuple[GroupPages, ...]) -> EngineDescribed:
    """The engine in figures. Bytes are of one worker; blocks are those usable for tokens."""
    config = scheduler.vllm_config
    connectors = list(_connectors(config.kv_transfer_config))
    fragments = sum(pages.fragments for pages in rank_pages)
    payload = sum(pages.payload_bytes for pages in rank_pages)
    return EngineDescribed(
        engine="vllm",
        engine_version=version,
        model=_model_name(config.model_config),
        block_tokens=scheduler.block_size,
        hbm_blocks=scheduler.cache_config.num_gpu_blocks - 1,  # block 0 never holds tokens
        kv_bytes_per_token=payload // scheduler.block_size,
        layers=fragments,
        overlap=(
            OverlapMode.BLOCKING
            if any(name in BLOCKING_CONNECTORS for name, _ in connectors)
            else OverlapMode.BEFORE_ADMISSION
        ),
        batch_token_limit=scheduler.max_num_scheduled_tokens,
        batch_request_limit=scheduler.max_num_running_reqs,
        host_bytes=sum(int(extra.get("cpu_bytes_to_use") or 0) for _, extra in connectors),
        disk_bytes=sum(int(extra.get("disk_bytes") or 0) for _, extra in connectors),
        host_fragment_bytes=payload // fragments if connectors and fragments else 0,
        host_fragments_per_block=fragments if connectors else 0,
        has_mover_times=any(extra.get("transfer_observer") for _, extra in connectors),
        supported_kv_state=_is_dense(scheduler.kv_cache_config),
        load_method=next(_movers(connectors), None),
        gather_workers=max((_gather_workers(extra) for _, extra in connectors), default=0),
        request_token_limit=_request_token_limit(config.scheduler_config),
    )


def _request_token_limit(scheduler_config: Any) -> int:
    """Untold where it changes with the queue."""
    if getattr(scheduler_config, "long_prefill_token_threshold_adaptive", False):
        return 0
    return int(scheduler_config.long_prefill_token_threshold)


def _movers(connectors: list[tuple[str, Mapping[str, Any]]]) -> Iterator[CopyMethod]:
    for _, extra in connectors:
        if extra.get("mover") in tuple(CopyMethod):
            yield CopyMethod(extra["mover"])


def _gather_workers(extra: Mapping[str, Any]) -> int:
    """Whoever gathers refuses a setting that is no count; here it is untold."""
    workers = extra.get("gather_threads")
    return workers if isinstance(workers, int) and workers > 0 else 0


def _page_bytes(spec: Any) -> int:
    return int(getattr(spec, "unpadded_page_size_bytes", spec.page_size_bytes))


def _model_name(model_config: Any) -> str:
    served = model_config.served_model_name
    return str((served if isinstance(served, str) else served[0]) if served else model_config.model)


def _is_dense(kv_cache_config: Any) -> bool:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return False
    spec = groups[0].kv_cache_spec
    return type(spec).__name__ == DENSE_SPEC and not any(
        getattr(spec, window, None) for window in ("sliding_window", "attention_chunk_size")
    )


def _connectors(kv_transfer_config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and settings of each connector, those inside a MultiConnector included."""
    if kv_transfer_config is None:
        return
    extra = kv_transfer_config.kv_connector_extra_config or {}
    yield kv_transfer_config.kv_connector, extra
    for child in extra.get("connectors") or ():
        yield child.get("kv_connector", ""), child.get("kv_connector_extra_config") or {}
