"""How fast the CPU gather moves pages, beside a reference loop and what else could do it.

Two pools of 512 MiB, far larger than any cache, for 32 layers with keys and values; a call moves
32 MiB of random pages, other pages each time. Within a round every contender moves once, in
shuffled order, since absolute figures of a shared machine drift by a factor of two: a row's ratio
is the median over rounds of the rival's seconds over ours, its two values are medians. Seconds are
CPU seconds of the one thread that each runs on, so that what else the machine runs changes less;
where two threads share a move, wall seconds of both sides. GB/s count each byte once.

The reference is gather_reference.c: non-temporal stores in a loop compiled for one shape and this
machine, which checks nothing. Ours is the whole call from Python, its checks included. numpy and
torch are the faster of two ways each, whichever it is at a size: all pages by index through a
staging block, or page by page into a strided view. numba is a compiled loop of plain stores;
memmove is one call per fragment from Python, as an engine orders its copies.

Run as `python tests/bench/gather.py`; prints one JSON row per line.
"""

from __future__ import annotations

import ctypes
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvready.kernels.gather_cpu import GatherMover
from kvready.kernels.gather_numpy import NumpyGatherMover
from kvready.kernels.per_page_cpu import PerPageMover
from kvready.kernels.pools import Direction, Move, Mover, Pools

FRAGMENT_BYTES = (512, 2048, 8192, 32768, 131072)
PLANES = 64
POOL_BYTES = 512 << 20
MOVED_BYTES = 32 << 20
STAGE_BYTES = 512 << 10
ROUNDS = 31
SHIFT_BYTES = 8  # off a cache line's start
BUDGET_RATIO = 0.9  # of the reference
REFERENCE = Path(__file__).with_name("gather_reference.c")
# What a rival loses by is told at one size only where it says nothing new at the others.
UNALIGNED_AT = THREADS_AT = 8192

Row = dict[str, Any]
Contender = Callable[[Move], object]


@dataclass(frozen=True)
class Arena:
    """Both pools as bytes, and as the arrays that numpy and torch index."""

    fragment_bytes: int
    host_bytes: Any
    hbm_bytes: Any

    @property
    def pages(self) -> int:
        """Of each pool."""
        return POOL_BYTES // (PLANES * self.fragment_bytes)

    @property
    def host(self) -> Any:
        """[page][plane][byte]."""
        return self.host_bytes[:POOL_BYTES].reshape(self.pages, PLANES, self.fragment_bytes)

    @property
    def hbm(self) -> Any:
        """[plane][page][byte]."""
        return self.hbm_bytes[:POOL_BYTES].reshape(PLANES, self.pages, self.fragment_bytes)

    def pools(self, shift_bytes: int = 0) -> Pools:
        """For movers."""
        plane_bytes = self.pages * self.fragment_bytes
        return Pools(
            self.host_bytes.ctypes.data + shift_bytes,
            self.pages,
            PLANES * self.fragment_bytes,
            tuple(
                self.hbm_bytes.ctypes.data + shift_bytes + plane * plane_bytes
                for plane in range(PLANES)
            ),
            self.pages,
            self.fragment_bytes,
            self.fragment_bytes,
        )

    def move(self, numbers: random.Random, direction: Direction = Direction.LOAD) -> Move:
        """So many random pages, each once."""
        count = max(1, MOVED_BYTES // (PLANES * self.fragment_bytes))
        return Move(
            direction,
            array("q", numbers.sample(range(self.pages), count)),
            array("q", numbers.sample(range(self.pages), count)),
        )


def fresh_memory() -> tuple[Any, Any]:
    """Bytes of both pools, at a page's start, touched."""
    page = 4096
    found = []
    for seed in (1, 2):
        whole = np.random.default_rng(seed).integers(0, 256, POOL_BYTES + 2 * page, dtype=np.uint8)
        found.append(whole[-whole.ctypes.data % page :][: POOL_BYTES + page])
    return found[0], found[1]


def reference(arena: Arena, folder: Path, direction: Direction) -> Contender:
    """The loop compiled for this shape. Raises where it cannot be."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise OSError("no C compiler")
    library = folder / f"reference_{arena.fragment_bytes}.so"
    if not library.exists():
        shape = (f"-DPLANES={PLANES}", f"-DFRAGMENT_BYTES={arena.fragment_bytes}")
        flags = ("-O3", "-march=native", "-shared", "-fPIC", *shape)
        subprocess.run([compiler, *flags, "-o", library, REFERENCE], check=True)
    loop = getattr(ctypes.CDLL(str(library)), f"reference_{direction}")
    loop.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int64]
    host, hbm = arena.host_bytes.ctypes.data, arena.hbm_bytes.ctypes.data

    def run(move: Move) -> None:
        host_pages, hbm_pages = array("q", move.host_pages), array("q", move.hbm_pages)
        loop(
            hbm,
            host,
            arena.pages,
            hbm_pages.buffer_info()[0],
            host_pages.buffer_info()[0],
            len(host_pages),
        )

    return run


def by_mover(mover: Mover, pools: Pools) -> Contender:
    """One of ours."""
    return lambda move: mover.move(pools, move)


def numpy_ways(arena: Arena) -> dict[str, Contender]:
    """By index through a stage that stays in the cache, and page by page."""
    host, hbm = arena.host, arena.hbm
    block = max(1, STAGE_BYTES // (PLANES * arena.fragment_bytes))
    stage = np.empty((block, PLANES, arena.fragment_bytes), np.uint8)

    def by_index(move: Move) -> None:
        host_pages = np.asarray(move.host_pages, np.intp)
        hbm_pages = np.asarray(move.hbm_pages, np.intp)
        for start in range(0, len(host_pages), block):
            here = host_pages[start : start + block]
            np.take(host, here, axis=0, out=stage[: len(here)], mode="clip")
            hbm[:, hbm_pages[start : start + block]] = stage[: len(here)].transpose(1, 0, 2)

    def by_page(move: Move) -> None:
        for host_page, hbm_page in zip(move.host_pages, move.hbm_pages, strict=True):
            hbm[:, hbm_page] = host[host_page]

    return {"numpy_by_index": by_index, "numpy_by_page": by_page}


def torch_ways(arena: Arena) -> dict[str, Contender]:
    """The same two. Raises ImportError where torch is not."""
    import torch

    torch.set_num_threads(1)
    host, hbm = torch.from_numpy(arena.host), torch.from_numpy(arena.hbm)
    block = max(1, STAGE_BYTES // (PLANES * arena.fragment_bytes))
    stage = torch.empty((block, PLANES, arena.fragment_bytes), dtype=torch.uint8)

    def by_index(move: Move) -> None:
        host_pages = torch.tensor(move.host_pages)
        hbm_pages = torch.tensor(move.hbm_pages)
        for start in range(0, len(host_pages), block):
            here = host_pages[start : start + block]
            torch.index_select(host, 0, here, out=stage[: len(here)])
            hbm.index_copy_(1, hbm_pages[start : start + block], stage[: len(here)].transpose(0, 1))

    def by_page(move: Move) -> None:
        for host_page, hbm_page in zip(move.host_pages, move.hbm_pages, strict=True):
            hbm[:, hbm_page].copy_(host[host_page])

    return {"torch_by_index": by_index, "torch_by_page": by_page}


def numba_ways(arena: Arena) -> dict[str, Contender]:
    """A compiled loop over words. Raises ImportError where numba is not."""
    import numba

    host, hbm = arena.host.view(np.uint64), arena.hbm.view(np.uint64)

    @numba.njit(nogil=True)
    def loop(hbm: Any, host: Any, hbm_pages: Any, host_pages: Any) -> None:
        for i in range(len(host_pages)):
            for plane in range(hbm.shape[0]):
                hbm[plane, hbm_pages[i]] = host[host_pages[i], plane]

    def run(move: Move) -> None:
        loop(hbm, host, np.asarray(move.hbm_pages), np.asarray(move.host_pages))

    run(Move(Direction.LOAD, array("q", [0]), array("q", [0])))  # compiles
    return {"numba": run}


def rivals(arena: Arena) -> dict[str, Contender]:
    """Everything that is installed; what is not is said."""
    found = numpy_ways(arena)
    for name, ways in (("numba", numba_ways), ("torch", torch_ways)):
        try:
            found |= ways(arena)
        except ImportError as error:
            print(f"gather_cpu_vs_{name}_{arena.fragment_bytes}: not measured ({error})")
    found["fallback"] = by_mover(NumpyGatherMover(), arena.pools())
    found["memmove"] = by_mover(PerPageMover(), arena.pools())
    return found


def check(arena: Arena, contenders: dict[str, Contender], direction: Direction) -> None:
    """Every contender really moves the pages: else its time means nothing."""
    numbers = random.Random(3)
    for name, run in contenders.items():
        move = arena.move(numbers, direction)
        written = arena.hbm_bytes if direction is Direction.LOAD else arena.host_bytes
        written[:] = 0
        run(move)
        for host_page, hbm_page in zip(move.host_pages, move.hbm_pages, strict=True):
            if not np.array_equal(arena.host[host_page], arena.hbm[:, hbm_page]):
                raise AssertionError(f"{name} moved other bytes")


def timed_rounds(
    arena: Arena,
    contenders: dict[str, Contender],
    direction: Direction,
    rounds: int,
    clock: Callable[[], float] = time.thread_time,
    seed: int = 1,
) -> dict[str, list[float]]:
    """Seconds of every contender in every round."""
    numbers = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in numbers.sample(list(contenders), len(contenders)):
            move = arena.move(numbers, direction)
            began = clock()
            contenders[name](move)
            seconds[name].append(clock() - began)
    return seconds


def row(
    name: str,
    arena: Arena,
    seconds: dict[str, list[float]],
    ours: str,
    rival: str,
    meaning: str,
    backend: str,
    clock: str = "CPU seconds of the thread",
) -> Row:
    """Ours beside one rival of the same rounds."""
    moved = max(1, MOVED_BYTES // (PLANES * arena.fragment_bytes)) * PLANES * arena.fragment_bytes

    def rate(one: str) -> float:
        return round(moved / statistics.median(seconds[one]) / 1e9, 2)

    ratios = [b / a for a, b in zip(seconds[ours], seconds[rival], strict=True)]
    return {
        "name": name,
        "value": rate(ours),
        "unit": "GB/s",
        "beside": rate(rival),
        "ratio": round(statistics.median(ratios), 3),
        "conditions": {
            "fragment_bytes": arena.fragment_bytes,
            "planes": PLANES,
            "moved_bytes": moved,
            "pool_bytes": POOL_BYTES,
            "backend": backend,
            "beside": meaning,
            "rounds": len(ratios),
            "clock": f"{clock}; the ratio is the median of the rounds' ratios",
            "kind": "measured",
        },
    }


MEANING = {
    "reference": f"non-temporal loop compiled for the shape, one thread; budget {BUDGET_RATIO}",
    "numba": "compiled loop, plain stores, one thread",
    "numpy_by_index": "take into a stage and store by index, one thread",
    "numpy_by_page": "a strided assignment per page, one thread",
    "torch_by_index": "index_select into a stage and index_copy_, one thread",
    "torch_by_page": "a strided copy_ per page, one thread",
    "fallback": "what stands in for ours where no compiler is, one thread",
    "memmove": "a ctypes.memmove per fragment from Python",
}


def gather_rows(sizes: tuple[int, ...] = FRAGMENT_BYTES, rounds: int = ROUNDS) -> Iterator[Row]:
    """Every row, size by size."""
    memory = fresh_memory()
    one, two = GatherMover(1), GatherMover(2)
    with tempfile.TemporaryDirectory(prefix="kv") as folder:
        for size in sizes:
            arena = Arena(size, *memory)
            yield from load_rows(arena, one, two, Path(folder), rounds)
            yield from store_rows(arena, one, Path(folder), rounds)
    one.close()
    two.close()


def load_rows(
    arena: Arena, one: GatherMover, two: GatherMover, folder: Path, rounds: int
) -> Iterator[Row]:
    """Loads beside every rival, and at one size beside ourselves in other conditions."""
    size = arena.fragment_bytes
    contenders = {
        "gather": by_mover(one, arena.pools()),
        "reference": reference(arena, folder, Direction.LOAD),
        **rivals(arena),
    }
    check(arena, contenders, Direction.LOAD)
    if size == UNALIGNED_AT:
        contenders["unaligned"] = by_mover(one, arena.pools(SHIFT_BYTES))
    seconds = timed_rounds(arena, contenders, Direction.LOAD, rounds)
    for rival in ("reference", "numba", "numpy", "torch", "fallback", "memmove"):
        ways = [name for name in MEANING if name in seconds and name.startswith(rival)]
        if ways:
            best = min(ways, key=lambda way: statistics.median(seconds[way]))
            name = f"gather_cpu_vs_{rival}_{size}"
            yield row(name, arena, seconds, "gather", best, MEANING[best], one.backend)
    if size == UNALIGNED_AT:
        meaning = f"the same at addresses that 64 divides; ours are {SHIFT_BYTES} bytes off"
        name = f"gather_cpu_unaligned_vs_aligned_{size}"
        yield row(name, arena, seconds, "unaligned", "gather", meaning, one.backend)
    if size == THREADS_AT:
        both = {"two": by_mover(two, arena.pools()), "one": contenders["gather"]}
        seconds = timed_rounds(arena, both, Direction.LOAD, rounds, time.perf_counter)
        name = f"gather_cpu_two_threads_vs_one_{size}"
        yield row(name, arena, seconds, "two", "one", "one thread", two.backend, "wall seconds")


def store_rows(arena: Arena, one: GatherMover, folder: Path, rounds: int) -> Iterator[Row]:
    """The other way, beside the reference alone."""
    contenders = {
        "gather": by_mover(one, arena.pools()),
        "reference": reference(arena, folder, Direction.STORE),
    }
    check(arena, contenders, Direction.STORE)
    seconds = timed_rounds(arena, contenders, Direction.STORE, rounds)
    name = f"gather_cpu_store_vs_reference_{arena.fragment_bytes}"
    yield row(name, arena, seconds, "gather", "reference", MEANING["reference"], one.backend)


def main() -> None:
    """Print every row."""
    for one in gather_rows():
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
