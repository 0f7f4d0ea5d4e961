"""What the observer says of its engine, and which engines it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvready.collectors.engine.engine_facts import check_version, describe, group_pages
from kvready.collectors.engine.publisher import OBSERVER_VARIABLE
from kvready.collectors.engine.transfers import TransferPublisher, observer
from kvready.collectors.errors import UnsupportedEngine
from kvready.collectors.records import OverlapMode


class FullAttentionSpec:
    """Named as the engine's."""

    page_size_bytes = 1_000
    unpadded_page_size_bytes = 960


class SlidingWindowSpec(FullAttentionSpec):
    """Another kind of KV state."""

    sliding_window = 128


def scheduler(
    connector: str | None = None,
    extra: dict[str, Any] | None = None,
    spec: Any = FullAttentionSpec,
    **scheduling: Any,
) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=spec(), layer_names=["a", "b", "c"])]
    transfer = connector and SimpleNamespace(
        kv_connector=connector, kv_connector_extra_config=extra or {}
    )
    return SimpleNamespace(
        vllm_config=SimpleNamespace(
            kv_transfer_config=transfer,
            model_config=SimpleNamespace(model="/models/x", served_model_name=["x"]),
            scheduler_config=SimpleNamespace(
                **({"long_prefill_token_threshold": 0} | scheduling),
            ),
        ),
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        cache_config=SimpleNamespace(num_gpu_blocks=256),
        block_size=32,
        max_num_scheduled_tokens=512,
        max_num_running_reqs=16,
    )


def facts(**settings: Any) -> Any:
    engine = scheduler(**settings)
    return describe(engine, "0.32.0", group_pages(engine.kv_cache_config))


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.0+cpu"])
def test_tested_versions_are_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3.2", "1.32.0", "dev"])
def test_other_versions_are_refused_with_the_ways_out(version: str) -> None:
    with pytest.raises(UnsupportedEngine, match=f"{OBSERVER_VARIABLE}=off") as refusal:
        check_version(version)
    assert version in str(refusal.value)


def test_padding_is_not_payload_and_block_zero_holds_no_tokens() -> None:
    told = facts()
    assert (told.layers, told.kv_bytes_per_token, told.hbm_blocks) == (3, 3 * 960 // 32, 255)
    assert told.model == "x"
    assert told.host_bytes == told.host_fragments_per_block == 0
    assert told.supported_kv_state


def test_a_bound_on_one_prefill_in_a_batch_is_told_where_it_is_fixed() -> None:
    assert facts().request_token_limit == 0
    bound: dict[str, Any] = {"long_prefill_token_threshold": 96}
    assert facts(**bound).request_token_limit == 96
    assert facts(**bound, long_prefill_token_threshold_adaptive=True).request_token_limit == 0


def test_a_host_tier_and_its_mover_are_told_wherever_they_are_named() -> None:
    extra = {"cpu_bytes_to_use": 1 << 30, "disk_bytes": 1 << 33, "transfer_observer": "a:b"}
    nested = {
        "connectors": [
            {"kv_connector": "GateConnector"},
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra},
        ]
    }
    for told in (
        facts(connector="OffloadingConnector", extra=extra),
        facts(connector="MultiConnector", extra=nested),
    ):
        assert (told.host_bytes, told.disk_bytes) == (1 << 30, 1 << 33)
        assert (told.host_fragments_per_block, told.host_fragment_bytes) == (3, 960)
        assert told.has_mover_times
        assert told.overlap is OverlapMode.BEFORE_ADMISSION


def test_how_many_threads_gather_is_told_where_it_is_set() -> None:
    assert facts(connector="OffloadingConnector").gather_workers == 0
    for setting, told in ((4, 4), (0, 0), ("4", 0), (None, 0)):
        extra = {"gather_threads": setting}
        assert facts(connector="OffloadingConnector", extra=extra).gather_workers == told


def test_a_connector_that_loads_within_the_step_blocks() -> None:
    assert facts(connector="ExampleConnector").overlap is OverlapMode.BLOCKING


def test_kv_state_that_is_not_dense_is_not_supported() -> None:
    assert not facts(spec=SlidingWindowSpec).supported_kv_state
    engine = scheduler()
    engine.kv_cache_config.kv_cache_groups *= 2
    told = describe(engine, "0.32.0", group_pages(engine.kv_cache_config))
    assert not told.supported_kv_state


def test_the_mover_observer_obeys_the_same_switch(
    monkeypatch: pytest.MonkeyPatch, run_folder: Any
) -> None:
    assert observer(0) is None
    monkeypatch.setenv(OBSERVER_VARIABLE, str(run_folder))
    mover = observer(2)
    assert isinstance(mover, TransferPublisher)
    assert (run_folder / "observer-mover-2.sock").exists()
    mover.close()
