"""Which engine is simulated: its model, links by mover, tiers and limits, and how it says so."""

from __future__ import annotations

import msgspec

from kvready.advisor.whatif.presets import GATHER, PER_PAGE, Sizes, scenario
from kvready.advisor.whatif.scenario import EngineLimits, LinkSpec, Scenario
from kvready.advisor.whatif.sim_engine.flags import Obeyed
from kvready.collectors.names import SIMULATED_ENGINE, SIMULATED_RELEASE, CopyMethod, OverlapMode
from kvready.collectors.records import EngineDescribed

RELEASE = "0.32.0"  # of vLLM, whose surfaces these are
GIB = 1 << 30
BATCH_TOKENS = 8_192
RUNNING_REQUESTS = 64
BASELINES = {CopyMethod.DMA_PER_PAGE: "per-page", CopyMethod.GATHER: "fast-copies"}
MOVERS = {CopyMethod.DMA_PER_PAGE: PER_PAGE, CopyMethod.GATHER: GATHER}


class SimMachine(msgspec.Struct, frozen=True):
    """A scenario, and its links by the mover that `gpu_copy` chooses."""

    scenario: Scenario
    loads: dict[CopyMethod, LinkSpec]
    backups: dict[CopyMethod, LinkSpec]


def vllm_like(
    model: str, machine: str, hbm_gib: float, host_gib: float, page_tokens: int
) -> SimMachine:
    """An engine that loads before it admits, and mixes decodes into batches, as vLLM does.

    Raises `SettingsError` or `LayoutError` that list what there is.
    """
    limits = EngineLimits(
        overlap=OverlapMode.BEFORE_ADMISSION,
        batch_tokens=BATCH_TOKENS,
        running_requests=RUNNING_REQUESTS,
        mixed_batches=True,
        asynchronous=False,
    )
    sizes = Sizes(hbm_bytes=int(hbm_gib * GIB), host_bytes=int(host_gib * GIB))
    made = {
        method: scenario(model, machine, baseline, sizes, page_tokens, engine=limits)
        for method, baseline in BASELINES.items()
    }
    return SimMachine(
        scenario=made[CopyMethod.DMA_PER_PAGE],
        loads={method: one.load for method, one in made.items()},
        backups={method: one.backup for method, one in made.items()},
    )


def described(machine: SimMachine, block_tokens: int, flags: Obeyed) -> EngineDescribed:
    """What the engine says that it is: simulated, wherever it is named."""
    made = machine.scenario
    pages = made.shape.layout(made.page_tokens, made.tensor_parallel)
    token_bytes = pages.rank_bytes_per_token
    return EngineDescribed(
        engine=SIMULATED_ENGINE,
        engine_version=RELEASE + SIMULATED_RELEASE,
        model=f"SIMULATED {made.shape.name}",
        block_tokens=block_tokens,
        hbm_blocks=made.tiers.hbm_bytes // token_bytes // block_tokens,
        kv_bytes_per_token=token_bytes,
        layers=made.shape.layers,
        overlap=made.engine.overlap,
        batch_token_limit=made.engine.batch_tokens,
        batch_request_limit=made.engine.running_requests,
        host_bytes=made.tiers.host_bytes,
        disk_bytes=made.tiers.disk_bytes,
        host_fragment_bytes=pages.fragment_bytes,
        host_fragments_per_block=pages.pages(block_tokens) * pages.planes,
        has_mover_times=True,
        load_method=flags.copy_method,
        request_token_limit=made.engine.chunk_tokens,
        reserves_output=True,
        finds_unfinished=False,
    )
