"""Pages, fragments and pools: every byte of a page has one place on either side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.errors import LayoutError, MoveError
from kvready.kernels.layout import KEY_AND_VALUE, LATENT, KvLayout
from kvready.kernels.pools import Direction, Move, Pools

LLAMA = KvLayout(32, KEY_AND_VALUE, 8, 128, 2, 32)
SMALL = KvLayout(2, KEY_AND_VALUE, 2, 4, 2, 2)


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout:
    rank_heads = draw(st.integers(1, 4))
    ranks = draw(st.integers(1, 4))
    shares = draw(st.booleans())  # ranks share heads, or each head is on several ranks
    return KvLayout(
        layers=draw(st.integers(1, 4)),
        planes_per_layer=draw(st.sampled_from((KEY_AND_VALUE, LATENT))),
        kv_heads=rank_heads * ranks if shares else rank_heads,
        head_dim=draw(st.integers(1, 8)),
        dtype_bytes=draw(st.sampled_from((1, 2, 4))),
        page_tokens=draw(st.integers(1, 8)),
        tensor_parallel=ranks if shares else rank_heads * ranks,
    )


@given(layouts(), st.integers(1, 6))
def test_fragments_tile_either_pool_without_gap_or_overlap(layout: KvLayout, pages: int) -> None:
    places = [(page, plane) for page in range(pages) for plane in range(layout.planes)]
    whole = list(range(0, pages * layout.page_bytes, layout.fragment_bytes))
    assert sorted(layout.host_offset(page, plane) for page, plane in places) == whole
    assert sorted(layout.hbm_offset(page, plane, pages) for page, plane in places) == whole


@given(layouts(), st.integers(1, 6))
def test_a_page_is_one_range_in_host_memory_and_a_plane_one_range_in_hbm(
    layout: KvLayout, pages: int
) -> None:
    step = layout.fragment_bytes
    for page in range(pages):
        offsets = [layout.host_offset(page, plane) for plane in range(layout.planes)]
        start = page * layout.page_bytes
        assert offsets == list(range(start, start + layout.page_bytes, step))
    for plane in range(layout.planes):
        offsets = [layout.hbm_offset(page, plane, pages) for page in range(pages)]
        assert offsets == list(range(offsets[0], offsets[0] + pages * step, step))


@given(layouts())
def test_shards_add_up_to_the_model_times_its_copies(layout: KvLayout) -> None:
    copies = layout.rank_kv_heads * layout.tensor_parallel // layout.kv_heads
    assert copies == max(1, layout.tensor_parallel // layout.kv_heads)
    shards = layout.tensor_parallel * layout.rank_bytes_per_token
    assert shards == layout.kv_bytes_per_token * copies
    assert layout.rank_bytes_per_token * layout.page_tokens == layout.page_bytes


@given(layouts(), st.integers(0, 100))
def test_pages_hold_all_tokens_and_none_is_empty(layout: KvLayout, tokens: int) -> None:
    pages = layout.pages(tokens)
    assert pages * layout.page_tokens >= tokens
    assert (pages - 1) * layout.page_tokens < tokens or not pages


def test_8192_tokens_of_llama_8b_are_16384_copies_of_64_kib() -> None:
    copies = LLAMA.pages(8192) * LLAMA.planes
    assert (copies, LLAMA.fragment_bytes) == (16_384, 64 * 1024)
    assert copies * LLAMA.fragment_bytes == 1_073_741_824  # 1.074 GB


@pytest.mark.parametrize("name", list(vars(LLAMA)))
def test_a_layout_without_extent_is_refused_by_the_name_of_the_field(name: str) -> None:
    with pytest.raises(LayoutError, match=name):
        KvLayout(**(vars(LLAMA) | {name: 0}))


def test_three_planes_and_uneven_shards_are_refused() -> None:
    with pytest.raises(LayoutError, match="planes_per_layer=3"):
        KvLayout(**(vars(LLAMA) | {"planes_per_layer": 3}))
    with pytest.raises(LayoutError, match="8 KV heads cannot be shared evenly by 3 ranks"):
        KvLayout(**(vars(LLAMA) | {"tensor_parallel": 3}))


@given(layouts(), st.integers(1, 6), st.integers(1, 6))
def test_pools_of_a_layout_lie_where_the_layout_says(
    layout: KvLayout, host_pages: int, hbm_pages: int
) -> None:
    pools = Pools.of_layout(layout, 1 << 20, host_pages, 1 << 30, hbm_pages)
    for plane, address in enumerate(pools.plane_addresses):
        last = hbm_pages - 1
        assert address + last * pools.hbm_page_stride_bytes == (1 << 30) + layout.hbm_offset(
            last, plane, hbm_pages
        )
    assert pools.host_page_stride_bytes == layout.page_bytes
    assert pools.planes == layout.planes


@given(st.data())
def test_a_move_is_checked_as_a_plain_reading_of_it_says(data: st.DataObject) -> None:
    pools = Pools.of_layout(SMALL, 0, 5, 1 << 20, 4)
    indices = st.lists(st.integers(-1, 6), max_size=4)
    move = Move(
        data.draw(st.sampled_from(Direction)),
        data.draw(indices),
        data.draw(indices),
        data.draw(st.integers(-1, 5)),
        data.draw(st.none() | st.integers(-1, 5)),
    )
    planes = list(move.plane_window(pools))
    written = move.hbm_pages if move.direction is Direction.LOAD else move.host_pages
    fits = (
        bool(planes)
        and all(0 <= plane < 4 for plane in planes)
        and len(move.host_pages) == len(move.hbm_pages)
        and all(0 <= page < 5 for page in move.host_pages)
        and all(0 <= page < 4 for page in move.hbm_pages)
        and len(set(written)) == len(written)
    )
    if fits:
        move.check(pools)
        assert move.fragments(pools) == len(planes) * len(written)
    else:
        with pytest.raises(MoveError):
            move.check(pools)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fragment_bytes": 0},
        {"plane_addresses": ()},
        {"host_page_stride_bytes": 127},
        {"hbm_page_stride_bytes": 31},
    ],
)
def test_pools_that_cannot_hold_their_pages_are_refused(wrong: dict[str, object]) -> None:
    pools = Pools.of_layout(SMALL, 0, 5, 1 << 20, 4)
    assert (pools.fragment_bytes, pools.host_page_stride_bytes) == (32, 128)
    with pytest.raises(MoveError):
        Pools(**(vars(pools) | wrong))
