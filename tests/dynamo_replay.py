"""Dynamo's offline replay of a Mooncake trace, with the memory and links of one of our scenarios.

It models its own engine and times batches its own way; block sizes, pools and links are equal.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

from dynamo import _core as dynamo

from kvready.advisor.whatif.scenario import Scenario

GIGA = 1e9


def unpacked(trace: Path, folder: Path) -> Path:
    """The trace as a plain file, which is what it reads."""
    plain = folder / trace.stem
    with gzip.open(trace) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out)
    return plain


def engine_arguments(scenario: Scenario, block_tokens: int) -> dict[str, Any]:
    """One worker with the scenario's pools, limits and host links."""
    token_bytes = scenario.shape.layout(1).kv_bytes_per_token
    block_bytes = token_bytes * block_tokens
    return {
        "num_gpu_blocks": scenario.tiers.hbm_bytes // block_bytes,
        "block_size": block_tokens,
        "max_num_seqs": scenario.engine.running_requests,
        "max_num_batched_tokens": scenario.engine.batch_tokens,
        "enable_prefix_caching": True,
        "kv_cache_bytes_per_token": token_bytes,
        "native_host_offload": {
            "num_host_blocks": scenario.tiers.host_bytes // block_bytes,
            "d2h_bandwidth_gbps": scenario.backup.bytes_per_second / GIGA,
            "h2d_bandwidth_gbps": scenario.load.bytes_per_second / GIGA,
        },
    }


def replay(plain_trace: Path, scenario: Scenario, block_tokens: int) -> dict[str, Any]:
    """Its summary of one replay on one worker."""
    result = dynamo.run_mocker_trace_replay(
        [str(plain_trace)],
        extra_engine_args={"engine": engine_arguments(scenario, block_tokens)},
        trace_block_size=block_tokens,
        capture_planner_details=False,
    )
    summary: dict[str, Any] = result.summary
    return summary
