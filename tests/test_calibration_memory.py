"""How much memory a calibration takes: enough for caches not to help, never more than there is."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.errors import MoverUnavailable
from kvready.kernels.measure_cpu import _PageOrder
from kvready.kernels.memory import (
    CACHES,
    LARGEST_POOL_BYTES,
    MIB,
    RESERVE_BYTES,
    SHARE,
    SMALLEST_POOL_BYTES,
    available_bytes,
    last_cache_bytes,
    pool_bytes,
)

GIB = 1 << 30


@given(st.integers(0, 64 * GIB), st.integers(0, 512 * MIB))
def test_pools_are_larger_than_caches_and_smaller_than_memory(available: int, cache: int) -> None:
    least = max(SMALLEST_POOL_BYTES, 2 * cache)
    if (available - RESERVE_BYTES) // SHARE // MIB * MIB < least:
        with pytest.raises(MoverUnavailable, match="MiB"):
            pool_bytes(available, cache)
        return
    size = pool_bytes(available, cache)
    assert size >= least
    assert SHARE * size + RESERVE_BYTES <= available
    assert size <= LARGEST_POOL_BYTES
    assert size % MIB == 0


def test_with_plenty_of_memory_a_pool_is_several_caches() -> None:
    assert pool_bytes(64 * GIB, 32 * MIB) == CACHES * 32 * MIB


@pytest.fixture
def system(tmp_path: Path) -> tuple[Path, Path]:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    sys.mkdir()
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  8388608 kB\n", encoding="utf-8")
    return proc, sys


def limit(folder: Path, most: str, used: str, names: tuple[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (most, used), strict=True):
        (folder / name).write_text(value + "\n", encoding="utf-8")


def test_without_limits_the_system_tells(system: tuple[Path, Path]) -> None:
    assert available_bytes(*system) == 8 * GIB


@pytest.mark.parametrize(
    ("line", "place", "names"),
    [
        ("0::/pod/engine", "fs/cgroup", ("memory.max", "memory.current")),
        (
            "9:cpu,memory:/pod/engine",
            "fs/cgroup/memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ),
    ],
)
def test_the_tightest_control_group_counts(
    system: tuple[Path, Path], line: str, place: str, names: tuple[str, str]
) -> None:
    proc, sys = system
    (proc / "self/cgroup").write_text(line + "\n", encoding="utf-8")
    limit(sys / place / "pod/engine", "max", "5", names)
    assert available_bytes(proc, sys) == 8 * GIB
    limit(sys / place / "pod", str(3 * GIB), str(GIB), names)
    assert available_bytes(proc, sys) == 2 * GIB
    limit(sys / place / "pod/engine", str(2 * GIB), str(GIB), names)
    assert available_bytes(proc, sys) == GIB
    limit(sys / place / "pod/engine", str(GIB), str(2 * GIB), names)
    assert available_bytes(proc, sys) == 0


def test_the_shells_limit_counts_less_what_is_taken(
    system: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = 3 * GIB
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit_bytes, resource.RLIM_INFINITY))
    (system[0] / "self/statm").write_text("1024 9 9\n", encoding="utf-8")
    assert available_bytes(*system) == limit_bytes - 1024 * resource.getpagesize()


@given(st.integers(1, 50), st.lists(st.integers(1, 10), min_size=1, max_size=60))
def test_no_page_comes_again_before_most_others_had_their_turn(
    pages: int, counts: list[int]
) -> None:
    """Else it would be in a cache, and its move would look faster than an engine's."""
    order = _PageOrder(pages, seed=1)
    taken: list[int] = []
    for count in (min(count, pages) for count in counts):
        now = order.take(count)
        recent = max(0, pages - 2 * max(counts))
        assert len(set(now)) == count
        assert not set(now) & set(taken[len(taken) - recent :] if recent else [])
        assert set(now) <= set(range(pages))
        taken += now


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == 0
    for place, size in enumerate(("32K", "1024K", "36M")):
        folder = tmp_path / f"devices/system/cpu/cpu0/cache/index{place}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n", encoding="utf-8")
    assert last_cache_bytes(tmp_path) == 36 * MIB
