"""Which bytes a transfer moves, against the engine's own rule written out one block at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.engine.pages import Page, TensorPage, chunk_count, pages


def test_one_block_per_chunk_pairs_names_in_order() -> None:
    tensors = [[TensorPage(0, 8), TensorPage(1, 16)]]
    assert pages([7, 3], [40, 41], [2], [5], tensors, 1) == [
        Page(0, 7, 40, 0, 8),
        Page(1, 7, 40, 0, 16),
        Page(0, 3, 41, 0, 8),
        Page(1, 3, 41, 0, 16),
    ]


def test_a_transfer_may_begin_inside_a_chunk() -> None:
    found = pages([10, 11, 12], [4, 9], [3], [2], [[TensorPage(0, 8)]], 4)
    # The request's blocks 2 and 3 end the first chunk, block 4 begins the next.
    assert [(page.hbm_block, page.host_chunk, page.slot) for page in found] == [
        (10, 4, 2),
        (11, 4, 3),
        (12, 9, 0),
    ]


@given(
    groups=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=3),
    blocks_per_chunk=st.integers(1, 5),
)
def test_every_block_goes_to_the_place_its_position_names(
    groups: list[tuple[int, int]], blocks_per_chunk: int
) -> None:
    blocks: list[int] = []
    chunks: list[int] = []
    expected = set()
    for group, (size, first) in enumerate(groups):
        place: dict[int, int] = {}  # which chunk, counted over the request, has which name
        for index in range(first, first + size):
            block = 1_000 * group + index
            blocks.append(block)
            number = index // blocks_per_chunk
            if number not in place:
                place[number] = 500 + len(chunks)
                chunks.append(place[number])
            expected.add((group, block, place[number], index % blocks_per_chunk))
        assert chunk_count(size, first, blocks_per_chunk) == len(place)
    found = pages(
        blocks,
        chunks,
        [size for size, _ in groups],
        [first for _, first in groups],
        [[TensorPage(group, 8)] for group in range(len(groups))],
        blocks_per_chunk,
    )
    assert {(page.tensor, page.hbm_block, page.host_chunk, page.slot) for page in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("blocks", "chunks", "sizes", "firsts"),
    [
        ([1, 2], [1], [2], [0]),  # a chunk is missing
        ([1], [1, 2], [1], [0]),  # a chunk too many
        ([1], [1], [2], [0]),  # a block is missing
        ([1], [1], [1, 0], [0, 0]),  # a group that the cache does not have
    ],
)
def test_names_that_do_not_add_up_are_refused(
    blocks: list[int], chunks: list[int], sizes: list[int], firsts: list[int]
) -> None:
    with pytest.raises(ValueError, match="a transfer names"):
        pages(blocks, chunks, sizes, firsts, [[TensorPage(0, 8)]], 1)
