"""Link profiles of machines that others measured: H200 on PCIe 5, and GH200.

Two forms carry them. Per-page copies cost `n * (o + S / B)` for n fragments of S bytes over a link
of practical bandwidth B; one published figure fixes o, for both machines. A gather kernel moves
`min(B, blocks * F / round_trip)`; one published figure fixes the round trip. Every other published
figure stands beside what follows from these, kind `prediction`, also where the two differ. Nothing
is tuned to make them agree.
"""

from __future__ import annotations

from collections.abc import Callable

from kvready.kernels.errors import ProfileError
from kvready.kernels.profile import Claim, Cost, Curve, LinkProfile, Machine, Provenance

INPUT, PREDICTION = "input", "prediction"
SHARE, RATE, TIME = "share of peak", "GB/s", "us"
STRATA = "Strata (OSDI 2026)"

# Llama-3.1-8B, 8,192 tokens, pages of 32: 16,384 copies of this size.
PAGE_32_BYTES = 64 << 10
PCIE5_PEAK = 64e9
GH200_PEAK = 384e9
PAGE_32_SHARE = 0.22  # of PCIE5_PEAK; the figure that fixes the overhead of a copy
PCIE5_LINK = 55e9
GH200_LINK = 350e9
BATCH_DMA = 38e9
# A block of 1,024 threads keeps this much under way.
BLOCK_BYTES_IN_FLIGHT = 64 << 10
LOAD_BLOCKS = 2
PCIE5_GATHER = 48e9  # with LOAD_BLOCKS
C2C_GATHER_BLOCK = 48e9  # with one block

UNDER_SERVING = (
    "end to end under serving, where loads share the link and wait for batches; ours is a copy "
    "alone on an idle link"
)


def copy_overhead_seconds(
    fragment_bytes: int, share: float, peak_bytes_per_second: float, link_bytes_per_second: float
) -> float:
    """What a copy costs beyond its bytes, from the share of the peak that such copies reach."""
    whole = fragment_bytes / (share * peak_bytes_per_second)
    return whole - fragment_bytes / link_bytes_per_second


def copies_bytes_per_second(cost: Cost, fragment_bytes: int) -> float:
    """What per-page copies of one size reach."""
    return fragment_bytes / cost.seconds(fragment_bytes, 1)


def round_trip_seconds(blocks: int, bytes_per_second: float) -> float:
    """From a read's start to its data, where so many blocks reach so much.

    An upper bound: had the link held them back, the trip would be shorter.
    """
    return blocks * BLOCK_BYTES_IN_FLIGHT / bytes_per_second


def gather_bytes_per_second(
    blocks: int, link_bytes_per_second: float, trip_seconds: float
) -> float:
    """What a gather kernel reaches: what is under way per round trip, until the link is full."""
    return min(link_bytes_per_second, blocks * BLOCK_BYTES_IN_FLIGHT / trip_seconds)


COPY_OVERHEAD_SECONDS = copy_overhead_seconds(PAGE_32_BYTES, PAGE_32_SHARE, PCIE5_PEAK, PCIE5_LINK)
PCIE5_TRIP_SECONDS = round_trip_seconds(LOAD_BLOCKS, PCIE5_GATHER)
C2C_TRIP_SECONDS = round_trip_seconds(1, C2C_GATHER_BLOCK)


def published_profile(name: str) -> LinkProfile:
    """A profile by its name. Raises `ProfileError` that lists the known ones."""
    make = PUBLISHED.get(name)
    if make is None:
        raise ProfileError(f"no published profile {name!r}; choose from {', '.join(PUBLISHED)}")
    return make()


def h200_pcie5() -> LinkProfile:
    """One H200 behind 16 lanes of PCIe 5."""
    copies = Cost(0.0, COPY_OVERHEAD_SECONDS, PCIE5_LINK)
    gather = gather_bytes_per_second(LOAD_BLOCKS, PCIE5_LINK, PCIE5_TRIP_SECONDS)
    return LinkProfile(
        name="H200 on PCIe 5 x16",
        provenance=Provenance.PUBLISHED,
        machine=Machine(cpu="", cpus=0, operating_system="", gpu="NVIDIA H200"),
        curves=(
            _load("dma_per_page", copies),
            _load("dma_batch", Cost(0.0, 0.0, BATCH_DMA)),
            _load("gather", Cost(0.0, 0.0, gather), LOAD_BLOCKS),
        ),
        conditions=_CONDITIONS,
        claims=(
            *_pcie5_inputs(),
            _predicted(
                "per-page copies of 1 MiB", 0.75, copies, PCIE5_PEAK, 1 << 20,
                "published for 1 to 2 MiB; mostly the link input again, so a weak check",
            ),
            _predicted(
                "per-page copies of 2 MiB", 0.80, copies, PCIE5_PEAK, 2 << 20,
                "mostly the link input again, so a weak check",
            ),
            _sustained(
                "per-page copies, page 32, sustained", 10.80,
                copies_bytes_per_second(copies, PAGE_32_BYTES),
                "does not match: ours is 30 % above",
            ),
            _sustained(
                "gather, 2 blocks, sustained", 40.30, gather, "does not match: ours is 19 % above"
            ),
        ),
    )  # fmt: skip


def gh200() -> LinkProfile:
    """One GH200, whose GPU reads host memory over its coherent link."""
    copies = Cost(0.0, COPY_OVERHEAD_SECONDS, GH200_LINK)
    gather = gather_bytes_per_second(LOAD_BLOCKS, GH200_LINK, C2C_TRIP_SECONDS)
    return LinkProfile(
        name="GH200, NVLink-C2C",
        provenance=Provenance.PUBLISHED,
        machine=Machine(cpu="", cpus=0, operating_system="", gpu="NVIDIA GH200"),
        curves=(
            _load("dma_per_page", copies),
            _load("gather", Cost(0.0, 0.0, gather), LOAD_BLOCKS),
        ),
        conditions=_CONDITIONS
        | {"batch DMA": "no figure is published for this machine, so there is no curve"},
        claims=(
            *_gh200_inputs(),
            _predicted(
                "per-page copies, page 32", 0.05, copies, GH200_PEAK, PAGE_32_BYTES,
                "published as about 5 %; the overhead of H200's copies carries over",
            ),
            _sustained(
                "per-page copies, page 32, sustained", 19.43,
                copies_bytes_per_second(copies, PAGE_32_BYTES),
                "ours is 8 % below: a sustained rate above an isolated one says that a copy costs "
                "a little less here than on H200",
            ),
            _sustained(
                "gather, 2 blocks, sustained", 150.50, gather,
                "does not match: ours is 36 % below; the paper does not give the blocks used here, "
                "and the form needs four",
            ),
            Claim(
                "gather, 2 blocks, on GB300", PREDICTION, 90.0, gather / 1e9, RATE,
                "SGLang pull request 40278", "another machine of this kind of link; ours is 7 % "
                "above, as blocks in one another's way would have it",
            ),
        ),
    )  # fmt: skip


PUBLISHED: dict[str, Callable[[], LinkProfile]] = {"h200-pcie5": h200_pcie5, "gh200": gh200}

_CONDITIONS = {
    "direction": "host to HBM; the other way is not published in a form that fixes a cost",
    "machine state": "copies alone on an idle link",
    "batch DMA": "one figure, fragment size not published; no cost per fragment is known",
    "gather": "2 blocks of 1,024 threads; launch cost not published, so none is counted; "
    "fragments of 128 bytes and more",
}


def _pcie5_inputs() -> tuple[Claim, ...]:
    return (
        _given("link", PCIE5_LINK / 1e9, RATE, "copy engines reach 55 to 57 GB/s of 64"),
        _given(
            "per-page copies, page 32", PAGE_32_SHARE, SHARE, f"{STRATA}, section 3.1, figure 3",
            "Llama-3.1-8B, 8,192 tokens, copies of 64 KiB; fixes the overhead of a copy",
        ),
        _given(
            "batch DMA", BATCH_DMA / 1e9, RATE, f"{STRATA}, section 4.2", "micro-benchmark, no SM"
        ),
        _given(
            "gather, 2 blocks", PCIE5_GATHER / 1e9, RATE, f"{STRATA}, section 4.2, figure 5",
            "micro-benchmark; prefill under 5 % slower beside it, decode under 10 %",
        ),
    )  # fmt: skip


def _gh200_inputs() -> tuple[Claim, ...]:
    return (
        _given(
            "link", GH200_LINK / 1e9, RATE, "assumed: 91 % of the 384 GB/s that the paper names",
            "375 GB/s was measured elsewhere; between 300 and 450 copies of page 32 change by 2 %",
        ),
        _given(
            "overhead of a copy", COPY_OVERHEAD_SECONDS * 1e6, TIME,
            "taken over from H200 on PCIe 5, where page 32 at 22 % fixes it",
        ),
        _given(
            "gather, 1 block", C2C_GATHER_BLOCK / 1e9, RATE, "SGLang pull request 40278",
            "GB300, register kernel, 64 KiB under way per block; another machine of this link",
        ),
    )  # fmt: skip


def _load(mover: str, cost: Cost, workers: int = 1) -> Curve:
    return Curve("host", "hbm", mover, "published", workers, contended=False, cost=cost)


def _given(name: str, value: float, unit: str, source: str, reading: str = "") -> Claim:
    return Claim(name, INPUT, value, value, unit, source, reading)


def _predicted(
    name: str, published: float, cost: Cost, peak: float, fragment_bytes: int, reading: str
) -> Claim:
    ours = copies_bytes_per_second(cost, fragment_bytes) / peak
    return Claim(name, PREDICTION, published, ours, SHARE, f"{STRATA}, section 3.1", reading)


def _sustained(name: str, published: float, ours: float, difference: str) -> Claim:
    reading = f"{UNDER_SERVING}; {difference}"
    source = f"{STRATA}, figure 15: LooGLE, Llama-3.1-8B"
    return Claim(name, PREDICTION, published, ours / 1e9, RATE, source, reading)
