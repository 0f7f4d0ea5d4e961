"""Machines of a what-if: a GPU's data sheet, a link profile, and what its links cost by mover.

Pure. A link profile says what a copy takes alone on an idle link. Under serving it takes longer;
where a figure is published for that, the whole cost is scaled to it once (`Rates.SUSTAINED`).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from kvready.advisor.link_curves import fitted
from kvready.advisor.load_curve import LoadCurve
from kvready.advisor.roofline import GPUS, Gpu
from kvready.advisor.whatif.scenario import LinkSpec
from kvready.collectors.errors import SettingsError
from kvready.kernels.layout import KvLayout
from kvready.kernels.model_shape import ModelShape
from kvready.kernels.profile import LinkProfile, Provenance
from kvready.kernels.published import BATCH_DMA, C2C_GATHER_BLOCK, gh200, h200_pcie5

GIGA = 1e9
# Vendors' data sheets, decimal gigabytes of one device.
HBM_BYTES = {
    "a100-40gb": 40e9,
    "a100-80gb": 80e9,
    "b200": 180e9,
    "gb200": 186e9,
    "gh200": 96e9,
    "h100-pcie": 80e9,
    "h100": 80e9,
    "h20": 96e9,
    "h200": 141e9,
    "l40s": 48e9,
    "mi300x": 192e9,
}
HBM_SHARE = 0.88  # assumed: of the memory, for weights and KV together
# Strata (OSDI 2026), section 4.2, H200, 2 blocks: "under 5 %" of prefill, "under 10 %" of decode.
GATHER_PREFILL_SLOWDOWN = 0.05
GATHER_DECODE_SLOWDOWN = 0.10
# Strata (OSDI 2026), evaluation of the storage tier: NVMe of at most 7 GB/s.
PUBLISHED_DISK = 7e9
# Names of the published claims that say what a mover sustains end to end (kernels/published.py).
SUSTAINED_CLAIMS = {
    "dma_per_page": "per-page copies, page 32, sustained",
    "gather": "gather, 2 blocks, sustained",
}


PUBLISHED_MACHINES = ("h200", "gh200")


class Rates(StrEnum):
    """Which published rate of a mover counts."""

    SUSTAINED = "sustained"  # end to end under serving, where one is published
    ISOLATED = "isolated"  # a copy alone on an idle link


class Machine(NamedTuple):
    """What a model runs on. Bytes are decimal; host memory is the whole node's share for KV."""

    name: str
    gpu: str
    device: Gpu
    hbm_bytes: int  # of one device
    host_bytes: int | None  # None: to be said
    profile: LinkProfile
    backup_batch_rate: float | None = None  # published, HBM to host, in bytes per second

    def pool_bytes(
        self, shape: ModelShape, tensor_parallel: int, hbm_share: float = HBM_SHARE
    ) -> int:
        """HBM left for KV on one device. Raises `SettingsError` where the weights do not fit."""
        weights = shape.total_parameters * 2 / tensor_parallel
        left = int(hbm_share * self.hbm_bytes - weights)
        if left <= 0:
            raise SettingsError(
                f"{shape.name} has {weights / GIGA:.0f} GB of weights a GPU, {self.gpu} has "
                f"{self.hbm_bytes / GIGA:.0f} GB of HBM: raise --tensor-parallel, or name another "
                "machine"
            )
        return left


def published_machine(name: str) -> Machine:
    """H200 on PCIe 5, or GH200, with the host memory that the paper gave the cache."""
    if name == "h200":
        hbm = int(HBM_BYTES["h200"])
        return Machine("h200", "h200", GPUS["h200"], hbm, 10**12, h200_pcie5(), BATCH_DMA)
    if name == "gh200":
        hbm = int(HBM_BYTES["gh200"])
        return Machine("gh200", "gh200", GPUS["gh200"], hbm, 400 * 10**9, gh200(), C2C_GATHER_BLOCK)
    known = ", ".join(PUBLISHED_MACHINES)
    raise SettingsError(f"no machine {name!r}; choose from {known}, or give --profile and --gpu")


def profiled_machine(profile: LinkProfile, gpu: str) -> Machine:
    """A machine whose links were measured, or published, with a GPU by its data sheet."""
    device = GPUS.get(gpu.lower())
    if device is None:
        raise SettingsError(f"no GPU {gpu!r}; choose from {', '.join(sorted(GPUS))}")
    name = f"{gpu.lower()}, {profile.name}"
    return Machine(name, gpu.lower(), device, int(HBM_BYTES[gpu.lower()]), None, profile)


def load_link(machine: Machine, mover: str, layout: KvLayout, rates: Rates) -> LinkSpec:
    """Host to HBM. Raises `SettingsError` for a mover that the profile lacks."""
    curve = machine.profile.curve("host", "hbm", mover)
    if curve is None:
        known = sorted(
            {
                c.mover
                for c in machine.profile.curves
                if (c.source, c.destination) == ("host", "hbm")
            }
        )
        raise SettingsError(
            f"link profile {machine.profile.name!r} has no {mover} from host to HBM (it has "
            f"{', '.join(known) or 'none'}); calibrate on that machine, or name other policies"
        )
    spec = _spec(mover, fitted(curve), layout, _serving_factor(machine.profile, mover, rates))
    return _interfering(spec) if mover == "gather" else spec


def backup_link(machine: Machine, mover: str, layout: KvLayout, rates: Rates) -> LinkSpec:
    """HBM to host: measured, else by batch DMA where published, else as the loads are."""
    curve = machine.profile.curve("hbm", "host", mover)
    if curve is not None:
        return _spec(mover, fitted(curve), layout, 1.0)
    if mover == "gather" and machine.backup_batch_rate is not None:
        return LinkSpec("dma_batch", machine.backup_batch_rate)
    return load_link(machine, mover, layout, rates)


def fetch_link(machine: Machine, layout: KvLayout) -> LinkSpec:
    """Disk to host, a page in one piece: measured, else the NVMe of the paper."""
    curve = machine.profile.curve("disk", "host", "read")
    if curve is None:
        return LinkSpec("read", PUBLISHED_DISK)
    return _folded("read", fitted(curve), layout.page_bytes, 1.0)


def infinite_link() -> LinkSpec:
    """An oracle's: every copy takes no time."""
    return LinkSpec("infinite", math.inf)


def serving_factor(machine: Machine, mover: str, rates: Rates) -> float:
    """How many times the isolated time a copy takes under serving; 1 where nothing is published."""
    return _serving_factor(machine.profile, mover, rates)


def _serving_factor(profile: LinkProfile, mover: str, rates: Rates) -> float:
    if profile.provenance is not Provenance.PUBLISHED or rates is Rates.ISOLATED:
        return 1.0
    wanted = SUSTAINED_CLAIMS.get(mover)
    found = [claim for claim in profile.claims if claim.name == wanted]
    return found[0].ours / found[0].published if found else 1.0


def _spec(mover: str, curve: LoadCurve, layout: KvLayout, factor: float) -> LinkSpec:
    return _folded(mover, curve, layout.fragment_bytes, factor)


def _folded(mover: str, curve: LoadCurve, fragment_bytes: int, factor: float) -> LinkSpec:
    """A curve at one fragment size: what its knots correct there scales all three costs."""
    payload, count = 1 << 30, (1 << 30) / fragment_bytes
    bare = (
        curve.overhead_seconds + count * curve.fragment_seconds + payload / curve.bytes_per_second
    )
    factor *= curve.seconds(payload, count) / bare
    return LinkSpec(
        mover,
        curve.bytes_per_second / factor,
        curve.overhead_seconds * factor,
        curve.fragment_seconds * factor,
    )


def _interfering(spec: LinkSpec) -> LinkSpec:
    return LinkSpec(
        spec.mover,
        spec.bytes_per_second,
        spec.start_seconds,
        spec.fragment_seconds,
        GATHER_PREFILL_SLOWDOWN,
        GATHER_DECODE_SLOWDOWN,
    )
