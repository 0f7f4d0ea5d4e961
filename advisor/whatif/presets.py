"""Scenarios by name: a model, a machine, and a baseline with the policies added to it. Pure.

A baseline is a mover, an order of the queue and a tier; `+dedup`, `+balance` and `+decode-fill` add
one of Strata's policies each: `per-page+dedup`, `fast-copies+dedup+balance`. What is assumed beside
published facts is listed with every scenario.

* `recompute`: HBM alone; what fell out of it is computed again.
* `per-page`: first come first served, a copy call for each page of each plane, as Strata (OSDI
  2026, section 3.1) describes SGLang-HiCache with pages of 32.
* `fast-copies`: the same with a gather kernel (section 4.2).
* `prefix-order`: gather, longest match first whatever it costs to load (section 5, "IO+LPM").
* `naive-reorder`: gather, host hits last while others wait; SGLang pull request 38358, which its
  author does not recommend to merge: under decode pressure it starves the hit.
* `strata`: gather with all three policies. `schedule-only`: the policies over per-page copies.
* `lmcache-like`: chunks of 256 tokens through a staging buffer at the gather's rate (Strata,
  evaluation setup); each 128k tokens wait 50 ms more for scatter kernels (LMCache issue 5067).
* `trtllm-like`: pages of 32 by copy calls; one context per uncached prefix, duplicates deferred
  (TensorRT-LLM pull request 18195): the engine dedups natively.
* `oracle`: a link that takes no time, first come first served, with dedup: what a link can give.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvready.advisor.roofline import ASSUMED_FIXED_SECONDS, ASSUMED_MFU
from kvready.advisor.strata import Settings
from kvready.advisor.whatif.machines import (
    GIGA,
    HBM_SHARE,
    PUBLISHED_DISK,
    Machine,
    Rates,
    backup_link,
    fetch_link,
    infinite_link,
    load_link,
    published_machine,
    serving_factor,
)
from kvready.advisor.whatif.scenario import (
    EngineLimits,
    LinkSpec,
    Policies,
    QueueOrder,
    Scenario,
    Tiers,
)
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import OverlapMode
from kvready.kernels.layout import KvLayout
from kvready.kernels.model_shape import ModelShape
from kvready.kernels.model_source import model_from
from kvready.kernels.profile import Provenance

PER_PAGE, GATHER, INFINITE = "dma_per_page", "gather", "infinite"
NO_POLICY = Settings(dedup=False, balance=False, decode_fill=False)
ADDED = {"dedup": "dedup", "balance": "balance", "decode-fill": "decode_fill"}
PAGE_TOKENS = 32
LMCACHE_CHUNK_TOKENS = 256
# LMCache issue 5067: about 50 ms idle for a retrieve of 128k tokens beside prefill.
LMCACHE_TOKEN_SECONDS = 50e-3 / (128 << 10)


class Baseline(NamedTuple):
    """What a name stands for."""

    mover: str
    order: QueueOrder = QueueOrder.FCFS
    strata: frozenset[str] = frozenset()  # of ADDED
    tiers: bool = True
    overlap: OverlapMode | None = None  # None: the engine's
    page_tokens: int | None = None  # None: as asked for
    assumed: tuple[str, ...] = ()


ALL_POLICIES = frozenset(ADDED)
BASELINES = {
    "recompute": Baseline(PER_PAGE, tiers=False),
    "per-page": Baseline(PER_PAGE),
    "fast-copies": Baseline(GATHER),
    "prefix-order": Baseline(GATHER, QueueOrder.LONGEST_PREFIX),
    "naive-reorder": Baseline(GATHER, QueueOrder.NAIVE_REORDER),
    "schedule-only": Baseline(PER_PAGE, strata=ALL_POLICIES),
    "strata": Baseline(GATHER, strata=ALL_POLICIES),
    "lmcache-like": Baseline(
        GATHER,
        overlap=OverlapMode.BLOCKING,
        page_tokens=LMCACHE_CHUNK_TOKENS,
        assumed=(
            "loads end before their batch computes (not published in a form that says otherwise)",
            "staging costs the wait for scatter kernels alone; the second pass over HBM is free",
        ),
    ),
    "trtllm-like": Baseline(
        PER_PAGE,
        strata=frozenset({"dedup"}),
        assumed=(
            "its copies have the size of a page of one plane; if its pool keeps a page of all "
            "layers in one piece, its loads are quicker than here",
        ),
    ),
    "oracle": Baseline(INFINITE, strata=frozenset({"dedup"})),
}


class Sizes(NamedTuple):
    """Bytes for KV; None: the machine's. HBM of one device, host and disk of the whole engine."""

    hbm_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int = 0


AS_MACHINE = Sizes()


def scenario(
    model: str | ModelShape,
    machine: str | Machine,
    baseline: str,
    sizes: Sizes = AS_MACHINE,
    page_tokens: int = PAGE_TOKENS,
    tensor_parallel: int = 1,
    engine: EngineLimits | None = None,
    rates: Rates = Rates.SUSTAINED,
    mfu: float = ASSUMED_MFU,
    fixed_seconds: float = ASSUMED_FIXED_SECONDS,
) -> Scenario:
    """By names. Raises `SettingsError` or `LayoutError` that list the known ones."""
    shape = model_from(model) if isinstance(model, str) else model
    runs_on = published_machine(machine) if isinstance(machine, str) else machine
    base, chosen = parsed(baseline)
    layout = shape.layout(base.page_tokens or page_tokens, tensor_parallel)
    limits = engine or EngineLimits()
    if base.overlap is not None:
        limits = msgspec.structs.replace(limits, overlap=base.overlap)
    return Scenario(
        name=baseline,
        shape=shape,
        device=runs_on.device,
        load=_load(base, runs_on, layout, rates),
        backup=_backup(base, runs_on, layout, rates),
        tiers=_tiers(base, runs_on, shape, sizes, tensor_parallel),
        fetch=fetch_link(runs_on, layout) if base.tiers and sizes.disk_bytes else None,
        page_tokens=layout.page_tokens,
        tensor_parallel=tensor_parallel,
        mfu=mfu,
        fixed_seconds=fixed_seconds,
        engine=limits,
        policies=Policies(base.order, _settings(chosen), load_hits=base.tiers),
    )


def assumed(baseline: str, machine: Machine, sizes: Sizes, rates: Rates) -> tuple[str, ...]:
    """What a scenario of this name takes for granted beside published or measured facts."""
    base, _ = parsed(baseline)
    told = list(base.assumed)
    factor = serving_factor(machine, base.mover, rates)
    if base.tiers and factor != 1.0:
        told.append(
            f"{base.mover} takes {factor:.2f} times its isolated time under serving: published for "
            f"{machine.name}, LooGLE, Llama-3.1-8B, page 32"
        )
    if base.tiers and sizes.disk_bytes and machine.profile.curve("disk", "host", "read") is None:
        told.append(f"disk reads at {PUBLISHED_DISK / GIGA:g} GB/s, the most that its NVMe gives")
    return tuple(told)


def assumed_of_all(machine: Machine, sizes: Sizes) -> tuple[str, ...]:
    """What every scenario of one comparison takes for granted."""
    told = [
        f"compute by the data sheet of {machine.gpu} (MFU {ASSUMED_MFU}, "
        f"{ASSUMED_FIXED_SECONDS * 1e3:g} ms a batch), not measured"
    ]
    if sizes.hbm_bytes is None:
        told.append(f"{HBM_SHARE:.0%} of {machine.hbm_bytes / GIGA:.0f} GB of HBM serve")
    if machine.profile.provenance is Provenance.PUBLISHED:
        told.append(f"links as published for {machine.profile.name}, not measured here")
    if machine.profile.curve("hbm", "host", GATHER) is None:
        told.append("copies into host memory: no cost by size is published; a rate alone")
    return tuple(told)


def parsed(baseline: str) -> tuple[Baseline, frozenset[str]]:
    """A baseline and the policies added to it. Raises `SettingsError`."""
    name, *added = baseline.split("+")
    base = BASELINES.get(name)
    unknown = [one for one in added if one not in ADDED]
    if base is None or unknown:
        raise SettingsError(
            f"no policy {baseline!r}; a name is one of {', '.join(BASELINES)}, and may have "
            f"{', '.join('+' + one for one in ADDED)} added, as in per-page+dedup"
        )
    return base, base.strata | frozenset(added)


def _settings(chosen: frozenset[str]) -> Settings | None:
    if not chosen:
        return None
    switches = {field: True for name, field in ADDED.items() if name in chosen}
    return msgspec.structs.replace(NO_POLICY, **switches)


def _load(base: Baseline, machine: Machine, layout: KvLayout, rates: Rates) -> LinkSpec:
    if base.mover == INFINITE or not base.tiers:
        return infinite_link()
    spec = load_link(machine, base.mover, layout, rates)
    if base.page_tokens != LMCACHE_CHUNK_TOKENS:
        return spec
    waits = LMCACHE_TOKEN_SECONDS * layout.page_tokens / layout.planes
    return msgspec.structs.replace(spec, fragment_seconds=spec.fragment_seconds + waits)


def _backup(base: Baseline, machine: Machine, layout: KvLayout, rates: Rates) -> LinkSpec:
    if base.mover == INFINITE or not base.tiers:
        return infinite_link()
    return backup_link(machine, base.mover, layout, rates)


def _tiers(
    base: Baseline, machine: Machine, shape: ModelShape, sizes: Sizes, tensor_parallel: int
) -> Tiers:
    hbm = machine.pool_bytes(shape, tensor_parallel) if sizes.hbm_bytes is None else sizes.hbm_bytes
    if not base.tiers:
        return Tiers(hbm)
    host = machine.host_bytes if sizes.host_bytes is None else sizes.host_bytes
    if host is None:
        raise SettingsError("say how much host memory KV may take on this machine: --host-gib")
    return Tiers(hbm, host // tensor_parallel, sizes.disk_bytes // tensor_parallel)


def is_ideal(policy: str) -> bool:
    """Whether nobody could buy it: a bound, not a choice."""
    return parsed(policy)[0].mover == INFINITE
