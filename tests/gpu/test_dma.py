"""Copy engines, ordered of a driver that carries out nothing until it is waited for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_cuda import FakeCuda
from hypothesis import given, settings
from hypothesis import strategies as st
from pools_in_memory import Memory, Shape, moves, shapes

from kvready.kernels import dma
from kvready.kernels.cuda_driver import (
    DEVICE_MEMORY,
    OVERLAP_WITH_COMPUTE,
    SOURCE_AT_ANY_TIME,
    SOURCE_IN_STREAM_ORDER,
    CopyAttributes,
    CudaDriver,
)
from kvready.kernels.dma import BatchDma, ContiguousDma, PerPageDma
from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.pools import Direction, Move, Pools

SHAPE = Shape(planes=4, fragment_bytes=256, host_pages=8, hbm_pages=8, plane_gap=64)
LOAD = Move(Direction.LOAD, (5, 0, 3), (1, 7, 2))
STORE = Move(Direction.STORE, (5, 0, 3), (1, 7, 2))
Engine = Callable[[CudaDriver], PerPageDma | BatchDma]


def memory_of(cuda: FakeCuda, direction: Direction, shape: Shape = SHAPE) -> Memory:
    memory = Memory(shape, direction)
    cuda.register_pools(memory.pools)
    cuda.kept.append(memory)
    return memory


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("engine", [PerPageDma, BatchDma])
def test_every_byte_is_usable_when_a_move_returns_and_no_other_byte_changed(
    cuda: FakeCuda, engine: Engine, data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    move = data.draw(moves(shape))
    memory = memory_of(cuda, move.direction, shape)
    expected = memory.expected(move)
    mover = engine(cuda.driver())
    assert mover.move(memory.pools, move) == move.fragments(memory.pools) * shape.fragment_bytes
    assert memory.content() == expected
    mover.close()
    mover.close()
    cuda.assert_nothing_is_left()


def test_per_page_makes_one_copy_per_fragment_and_a_batch_one_call(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    PerPageDma(cuda.driver()).move(memory.pools, LOAD)
    assert (cuda.told("copies"), cuda.told("batches")) == (12, 0)
    BatchDma(cuda.driver()).move(memory.pools, LOAD)
    assert (cuda.told("copies"), cuda.batch_sizes()) == (24, [12])


def test_a_batch_has_one_attribute_for_all_its_copies(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    BatchDma(cuda.driver()).move(memory.pools, LOAD)
    assert (cuda.told("attribute_count"), cuda.told("attribute_first")) == (1, 0)


def test_the_source_of_a_load_is_stable_and_that_of_a_store_may_be_being_written(
    cuda: FakeCuda,
) -> None:
    mover = BatchDma(cuda.driver())
    mover.move(memory_of(cuda, Direction.LOAD).pools, LOAD)
    assert cuda.setting("source_order") == SOURCE_AT_ANY_TIME
    mover.move(memory_of(cuda, Direction.STORE).pools, STORE)
    assert cuda.setting("source_order") == SOURCE_IN_STREAM_ORDER


@pytest.mark.parametrize(
    ("fragment_bytes", "flags"),
    [(1024, OVERLAP_WITH_COMPUTE), (128 << 10, OVERLAP_WITH_COMPUTE), (129 << 10, 0)],
)
def test_small_copies_are_to_overlap_with_compute(
    cuda: FakeCuda, fragment_bytes: int, flags: int
) -> None:
    shape = Shape(planes=2, fragment_bytes=fragment_bytes, host_pages=2, hbm_pages=2, plane_gap=64)
    BatchDma(cuda.driver()).move(
        memory_of(cuda, Direction.LOAD, shape).pools, Move(Direction.LOAD, (0, 1), (1, 0))
    )
    assert cuda.setting("flags") == flags


def test_a_long_batch_is_cut(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dma, "MAX_COPIES_PER_CALL", 5)
    memory = memory_of(cuda, Direction.LOAD)
    expected = memory.expected(LOAD)
    BatchDma(cuda.driver()).move(memory.pools, LOAD)
    assert cuda.batch_sizes() == [5, 5, 2]
    assert memory.content() == expected


def test_the_attributes_are_laid_out_as_the_driver_reads_them() -> None:
    offsets = [getattr(CopyAttributes, name).offset for name, *_ in CopyAttributes._fields_]
    assert (ctypes.sizeof(CopyAttributes), offsets) == (24, [0, 4, 12, 20])


@pytest.mark.parametrize("stream", [0, 1])
def test_the_legacy_stream_is_refused(cuda: FakeCuda, stream: int) -> None:
    driver = cuda.driver()
    with pytest.raises(MoveError, match="legacy NULL stream"):
        driver.copy(1, 2, 3, stream)
    with pytest.raises(MoveError, match="legacy NULL stream"):
        driver.copy_batch(1, 2, 3, 1, CopyAttributes(), stream)


def test_an_old_driver_is_refused_with_what_to_do(cuda: FakeCuda) -> None:
    cuda.set("version", 12070)
    with pytest.raises(MoverUnavailable, match=r"speaks 12\.7 .* need 12\.8.*dma_per_page"):
        BatchDma(cuda.driver())
    PerPageDma(cuda.driver()).close()
    cuda.assert_nothing_is_left()


def test_a_driver_without_the_batch_copy_is_refused(cuda: FakeCuda) -> None:
    cuda.set("has_batch", 0)
    with pytest.raises(MoverUnavailable, match="has no cuMemcpyBatchAsync"):
        BatchDma(cuda.driver())
    cuda.assert_nothing_is_left()


def test_no_driver_and_no_device_are_told_apart(cuda: FakeCuda, tmp_path: Path) -> None:
    with pytest.raises(MoverUnavailable, match=r"libnone\.so.*NVIDIA GPU"):
        CudaDriver(str(tmp_path / "libnone.so"))
    cuda.set("devices", 0)
    with pytest.raises(MoverUnavailable, match="the driver sees none"):
        cuda.driver()
    cuda.set("init_error", 100)
    with pytest.raises(MoverUnavailable, match=r"CUDA_ERROR_NO_DEVICE \(100\)"):
        cuda.driver()


def test_a_library_that_is_no_cuda_driver_is_refused() -> None:
    with pytest.raises(MoverUnavailable, match="lacks cuInit"):
        CudaDriver("libc.so.6")


def test_a_device_that_is_not_there_is_refused(cuda: FakeCuda) -> None:
    with pytest.raises(MoverUnavailable, match="CUDA device 1 of 1"):
        PerPageDma(cuda.driver(), ordinal=1)


@pytest.mark.parametrize("engine", [PerPageDma, BatchDma])
def test_a_refused_copy_is_named_and_those_before_it_are_waited_for(
    cuda: FakeCuda, engine: Engine
) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    mover = engine(cuda.driver())
    cuda.set("fail_copy", 7)
    with pytest.raises(MoveError, match=r"CUDA_ERROR_INVALID_VALUE \(1\), invalid argument"):
        mover.move(memory.pools, LOAD)
    assert cuda.told("pending") == 0
    expected = memory.expected(LOAD)
    mover.move(memory.pools, LOAD)  # and it goes on
    assert memory.content() == expected
    mover.close()
    cuda.assert_nothing_is_left()


def test_a_batch_says_which_copy_failed(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    mover = BatchDma(cuda.driver())
    cuda.set("fail_copy", 7)
    with pytest.raises(MoveError, match="copy 7 of 12"):
        mover.move(memory.pools, LOAD)


def test_a_copy_that_fails_on_the_device_is_an_error_of_the_move(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    mover = PerPageDma(cuda.driver())
    mover.prepare(memory.pools)
    mover.move(memory.pools, LOAD)
    cuda.set("synchronize_error", 700)
    with pytest.raises(MoveError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \(700\), no description"):
        mover.move(memory.pools, LOAD)


@pytest.mark.parametrize("engine", [PerPageDma, BatchDma])
def test_memory_that_a_gpu_cannot_reach_is_refused_before_anything_moves(
    cuda: FakeCuda, engine: Engine
) -> None:
    memory = Memory(SHAPE, Direction.LOAD)
    pools = memory.pools
    mover = engine(cuda.driver())
    with pytest.raises(MoveError, match=r"not pinned.*pin_memory=True"):
        mover.move(pools, LOAD)
    half_of_it = pools.host_pages * pools.host_page_stride_bytes // 2
    cuda.register(pools.host_address, half_of_it)
    with pytest.raises(MoveError, match="not pinned"):
        mover.move(pools, LOAD)
    cuda.register(pools.host_address, 2 * half_of_it)
    with pytest.raises(MoveError, match=r"plane 0 .* no memory of a CUDA device"):
        mover.move(pools, LOAD)
    cuda.register_pools(pools)
    cuda.register(pools.plane_addresses[2], 256 * 8, DEVICE_MEMORY, device=3)
    with pytest.raises(MoveError, match="plane 2 lies on CUDA device 3 and this mover runs on 0"):
        mover.move(pools, LOAD)
    assert cuda.told("copies") == 0


def test_a_move_that_the_pools_cannot_make_is_refused(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    mover = PerPageDma(cuda.driver())
    with pytest.raises(MoveError, match="device page 8 of a pool of 8 pages"):
        mover.move(memory.pools, Move(Direction.LOAD, (0,), (8,)))
    assert cuda.told("copies") == 0


def test_the_contiguous_copy_takes_one_range_only(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    mover = ContiguousDma(cuda.driver())
    with pytest.raises(MoveError, match="one page of one plane"):
        mover.move(memory.pools, LOAD)
    whole = Shape(planes=1, fragment_bytes=1 << 16, host_pages=1, hbm_pages=1)
    memory = memory_of(cuda, Direction.STORE, whole)
    move = Move(Direction.STORE, (0,), (0,))
    expected = memory.expected(move)
    mover.move(memory.pools, move)
    assert memory.content() == expected
    assert cuda.told("copies") == 1


def test_a_timed_move_is_ordered_starts_and_ends_in_that_order(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    mover = BatchDma(cuda.driver())
    for _ in range(20):
        times = mover.timed_move(memory.pools, LOAD)
        assert times.ordered_seconds <= times.started_seconds <= times.ready_seconds
        assert times.payload_bytes == 12 * 256


def test_a_move_of_no_pages_moves_nothing(cuda: FakeCuda) -> None:
    memory = memory_of(cuda, Direction.LOAD)
    nothing = Move(Direction.LOAD, (), ())
    for mover in (PerPageDma(cuda.driver()), BatchDma(cuda.driver())):
        assert mover.move(memory.pools, nothing) == 0
    assert cuda.told("copies") == 0


def test_descriptors_of_a_large_move_are_addresses_of_its_pools(cuda: FakeCuda) -> None:
    """Addresses above 2^63 survive: a descriptor is no signed number."""
    pools = Pools((1 << 63) + 64, 2, 64, ((1 << 63) + 4096,), 2, 64, 64)
    ranges = dma.ranges_of(pools, Move(Direction.LOAD, (1,), (0,)))
    assert int(ranges.sources[0]) == (1 << 63) + 128
    assert int(ranges.destinations[0]) == (1 << 63) + 4096
