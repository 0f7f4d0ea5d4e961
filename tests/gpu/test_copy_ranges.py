"""Moves as ranges: the same bytes, fewer copies."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.copy_ranges import CopyRanges, merged, ranges_of
from kvready.kernels.pools import Direction, Move, Pools


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Destinations that never overlap, often side by side, in any order; sources anywhere."""
    found: list[tuple[int, int, int]] = []
    destination = source = 10_000
    for _ in range(draw(st.integers(0, 30))):
        size = draw(st.sampled_from((0, 0, 1, 3, 16, 64)))
        destination += draw(st.sampled_from((0, 0, 0, 1, 5)))
        source += draw(st.sampled_from((0, 0, 0, 7, -40)))
        found.append((destination, source, size))
        destination += size
        source += size
    return draw(st.permutations(found))


def arrays(listed: list[tuple[int, int, int]]) -> CopyRanges:
    columns = list(zip(*listed, strict=True)) or [(), (), ()]
    return CopyRanges(*(np.array(column, dtype=np.uint64) for column in columns))


def listed(found: CopyRanges) -> list[tuple[int, int, int]]:
    return list(
        zip(found.destinations.tolist(), found.sources.tolist(), found.sizes.tolist(), strict=True)
    )


def byte_pairs(found: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Every byte with where it comes from."""
    return sorted((d + n, s + n) for d, s, size in found for n in range(size))


@given(ranges())
def test_merging_changes_no_byte(before: list[tuple[int, int, int]]) -> None:
    after = listed(merged(arrays(before)))
    assert byte_pairs(after) == byte_pairs(before)


@given(ranges())
def test_what_is_merged_never_overlaps_and_cannot_be_merged_further(
    before: list[tuple[int, int, int]],
) -> None:
    after = sorted(listed(merged(arrays(before))))
    for (d0, s0, size), (d1, s1, _) in pairwise(after):
        assert d0 + size <= d1
        assert (d0 + size, s0 + size) != (d1, s1)
    assert all(size for _, _, size in after)


@given(ranges(), st.randoms(use_true_random=False))
def test_the_order_of_ranges_does_not_matter(
    before: list[tuple[int, int, int]], order: object
) -> None:
    other = list(before)
    order.shuffle(other)  # type: ignore[attr-defined]
    assert listed(merged(arrays(other))) == listed(merged(arrays(before)))


def pools_of(plane_addresses: tuple[int, ...], hbm_stride: int) -> Pools:
    return Pools(1 << 20, 8, 3 * 64, plane_addresses, 8, hbm_stride, 64)


def test_layer_first_pages_merge_with_no_neighbour() -> None:
    pools = pools_of((1 << 30, 1 << 31, 1 << 32), 64)
    move = Move(Direction.LOAD, (2, 3), (4, 5))
    assert len(merged(ranges_of(pools, move))) == move.fragments(pools)


def test_where_the_device_pool_is_page_first_too_neighbouring_pages_are_one_copy() -> None:
    base = 1 << 30
    pools = pools_of((base, base + 64, base + 128), 192)
    found = merged(ranges_of(pools, Move(Direction.LOAD, (2, 3, 7), (4, 5, 6))))
    host = pools.host_address
    assert listed(found) == [
        (base + 4 * 192, host + 2 * 192, 2 * 192),
        (base + 6 * 192, host + 7 * 192, 192),
    ]


def test_a_store_goes_the_other_way_and_a_window_takes_its_planes_only() -> None:
    pools = pools_of((1 << 30, 1 << 31, 1 << 32), 64)
    (found,) = listed(ranges_of(pools, Move(Direction.STORE, (2,), (4,), 1, 1)))
    assert found == (pools.host_address + 2 * 192 + 64, (1 << 31) + 4 * 64, 64)
