"""The GPU's gather in Triton's interpreter, held against moves written down range by range."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_cuda import FakeCuda
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pools_in_memory import Memory, Shape, moves

from kvready.kernels import gather_triton
from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.gather_triton import TritonGatherMover
from kvready.kernels.pools import Direction, Move
from kvready.kernels.torch_device import TorchDevice

# All under 1 MB: the interpreter takes about a millisecond per tile.
MOVES = {
    "GQA page 16, four layers": (Shape(8, 4096, 9, 7, order_seed=1), 5, 0, None),
    "GQA page 1, count no multiple of a tile": (Shape(4, 512, 40, 33, order_seed=2), 31, 0, None),
    "MLA page 1": (Shape(6, 1152, 30, 26, plane_gap=64, order_seed=3), 19, 0, None),
    "MLA page 4, one layer": (Shape(5, 4608, 9, 8, order_seed=1), 6, 3, 1),
    "two layers of GQA": (Shape(12, 2048, 8, 8, order_seed=2), 7, 4, 4),
    "one page": (Shape(16, 2048, 3, 2, order_seed=3), 1, 0, None),
    "one fragment larger than a tile": (Shape(2, 40_000, 3, 3), 1, 1, 1),
    "strides with gaps": (Shape(3, 768, 20, 18, 48, 4096, 80, 32, 16, 1), 15, 1, 2),
    "fragments of 16 bytes": (Shape(3, 16, 50, 47, 16, 16, 16), 45, 0, None),
    "fragments of 48 bytes": (Shape(7, 48, 12, 11, order_seed=1), 11, 0, None),
}


def move_of(direction: Direction, shape: Shape, pages: int, first: int, planes: int | None) -> Move:
    """Pages far apart and out of order, each once."""
    host = [(7 * number + 2) % shape.host_pages for number in range(shape.host_pages)]
    hbm = [(5 * number + 1) % shape.hbm_pages for number in range(shape.hbm_pages)]
    host, hbm = list(dict.fromkeys(host)), list(dict.fromkeys(hbm))
    assert len(host) >= pages <= len(hbm)
    return Move(direction, host[:pages], hbm[:pages], first, planes)


@pytest.fixture
def mover(cuda: FakeCuda, interpreted: ModuleType) -> TritonGatherMover:
    return TritonGatherMover(sms=3, driver=cuda.driver(), interpreted=True)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("case", MOVES)
def test_the_kernel_moves_exactly_what_it_is_told(
    cuda: FakeCuda, mover: TritonGatherMover, case: str, direction: Direction
) -> None:
    shape, *rest = MOVES[case]
    move = move_of(direction, shape, *rest)
    memory = Memory(shape, direction)
    cuda.register_pools(memory.pools)
    expected = memory.expected(move)
    assert mover.move(memory.pools, move) == move.fragments(memory.pools) * shape.fragment_bytes
    assert memory.content() == expected
    mover.close()
    mover.close()
    cuda.assert_nothing_is_left()


@st.composite
def aligned_shapes(draw: st.DrawFn) -> Shape:
    """Pools that 16-byte accesses can walk."""
    gaps = st.sampled_from((0, 16, 48))
    return Shape(
        planes=draw(st.integers(1, 6)),
        fragment_bytes=16 * draw(st.integers(1, 90)),
        host_pages=draw(st.integers(1, 10)),
        hbm_pages=draw(st.integers(1, 10)),
        host_gap=draw(gaps),
        hbm_gap=draw(gaps),
        plane_gap=draw(gaps),
        host_shift=draw(gaps),
        hbm_shift=draw(gaps),
        order_seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sms=st.integers(1, 5))
def test_random_shapes_equal_the_reference_whatever_the_sm_budget(
    cuda: FakeCuda, interpreted: ModuleType, data: st.DataObject, sms: int
) -> None:
    shape = data.draw(aligned_shapes())
    move = data.draw(moves(shape))
    memory = Memory(shape, move.direction)
    cuda.register_pools(memory.pools)
    expected = memory.expected(move)
    mover = TritonGatherMover(sms=sms, driver=cuda.driver(), interpreted=True)
    mover.move(memory.pools, move)
    mover.close()
    assert memory.content() == expected


def test_planes_are_looked_up_anew_for_other_pools(
    cuda: FakeCuda, mover: TritonGatherMover
) -> None:
    for seed in (1, 2, 3):
        shape = Shape(4, 512, 6, 6, order_seed=seed)
        memory = Memory(shape, Direction.LOAD, seed)
        cuda.register_pools(memory.pools)
        cuda.kept.append(memory)
        move = move_of(Direction.LOAD, shape, 4, 0, None)
        expected = memory.expected(move)
        mover.move(memory.pools, move)
        assert memory.content() == expected


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        (Shape(2, 24, 4, 4), "the fragment is 24"),
        (Shape(2, 32, 4, 4, host_gap=8), "the host page stride is 72"),
        (Shape(2, 32, 4, 4, hbm_gap=8), "the device page stride is 40"),
        (Shape(2, 32, 4, 4, host_shift=8), "the host pool's address"),
        (Shape(2, 32, 4, 4, hbm_shift=8), "address of plane 0"),
        (Shape(2, 32, 4, 4, plane_gap=8), "address of plane"),
    ],
)
def test_what_16_byte_accesses_cannot_walk_is_refused(
    cuda: FakeCuda, mover: TritonGatherMover, shape: Shape, what: str
) -> None:
    memory = Memory(shape, Direction.LOAD)
    cuda.register_pools(memory.pools)
    before = memory.content()
    with pytest.raises(MoveError, match=f"{what}.*no multiple of 16 bytes.*use dma_batch"):
        mover.move(memory.pools, Move(Direction.LOAD, (1,), (1,)))
    assert memory.content() == before


def test_unpinned_host_memory_is_refused(cuda: FakeCuda, mover: TritonGatherMover) -> None:
    memory = Memory(Shape(2, 64, 4, 4), Direction.LOAD)
    with pytest.raises(MoveError, match="not pinned"):
        mover.move(memory.pools, Move(Direction.LOAD, (1,), (1,)))


@pytest.mark.parametrize("sms", [0, 8])
def test_an_sm_budget_that_the_device_lacks_is_refused(
    cuda: FakeCuda, interpreted: ModuleType, sms: int
) -> None:
    """A MIG instance has a few SMs of its device; the driver counts those."""
    cuda.set("multiprocessors", 7)
    with pytest.raises(MoverUnavailable, match=r"device that has 7 .*MIG.*choose 1 to 7"):
        TritonGatherMover(sms=sms, driver=cuda.driver(), interpreted=True)
    cuda.assert_nothing_is_left()


def test_without_a_gpu_the_gather_says_so(interpreted: ModuleType) -> None:
    with pytest.raises(MoverUnavailable, match="no CUDA device"):
        TritonGatherMover()


def test_an_interpreter_never_reaches_for_a_gpus_memory(
    cuda: FakeCuda, interpreted: ModuleType
) -> None:
    with pytest.raises(MoverUnavailable, match=r"TRITON_INTERPRET is set.*unset it"):
        TritonGatherMover(driver=cuda.driver())
    cuda.assert_nothing_is_left()


def test_a_torch_without_cuda_says_which_to_install(
    cuda: FakeCuda, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(interpreted, "INTERPRETED", False)
    with pytest.raises(MoverUnavailable, match="install a CUDA build of torch"):
        TritonGatherMover(driver=cuda.driver())
    cuda.assert_nothing_is_left()


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_without_torch_or_triton_the_gather_says_what_to_install(
    cuda: FakeCuda, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvready.kernels.gather_kernel", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MoverUnavailable, match=rf"{missing}.*pip install 'kvready\[gpu\]'"):
        TritonGatherMover(driver=cuda.driver())


def test_a_kernel_that_cannot_be_launched_is_an_error_of_the_move(
    cuda: FakeCuda, mover: TritonGatherMover, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    memory = Memory(Shape(2, 64, 4, 4), Direction.LOAD)
    cuda.register_pools(memory.pools)
    monkeypatch.setattr(mover._kernel, "launch", refuse)
    with pytest.raises(MoveError, match=r"out of memory.*use dma_batch"):
        mover.move(memory.pools, Move(Direction.LOAD, (1,), (1,)))
    assert cuda.told("pending") == 0


@pytest.mark.parametrize(
    ("fragment_bytes", "rows", "columns"),
    [
        (16, 256, 16),  # never narrower than what a link asks for
        (128, 256, 16),
        (512, 64, 64),
        (1152, 128, 32),  # MLA: 160 words of which 144 are used
        (2048, 16, 256),
        (64 * 1152, 2, 2048),
        (65536, 1, 4096),
        (4 << 20, 1, 4096),
    ],
)
def test_a_tile_is_32_kib_and_wastes_little(
    interpreted: ModuleType, fragment_bytes: int, rows: int, columns: int
) -> None:
    tile = interpreted.tile_for(fragment_bytes)
    assert (tile.rows, tile.columns) == (rows, columns)
    assert tile.rows * tile.columns * interpreted.WORD_BYTES == 32 << 10


def test_a_kernel_that_waits_for_an_sm_has_not_started(
    cuda: FakeCuda, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU each program notes the device's clock; here a stand-in for the kernel does."""
    waited_seconds, ahead_seconds = 0.2, 0.0

    def note(began: Any, after_seconds: float) -> None:
        time.sleep(after_seconds)
        # The device counts from another moment.
        began[:] = time.monotonic_ns() + 10**15 + round(ahead_seconds * 1e9)

    def launch(*arguments: Any) -> None:
        note(arguments[-1], waited_seconds)

    kernel = SimpleNamespace(**vars(interpreted))
    kernel.INTERPRETED = False
    kernel.launch, kernel.launch_empty = launch, lambda began: note(began, 0.0)
    monkeypatch.setattr(gather_triton, "_imported_kernel", lambda: kernel)
    monkeypatch.setattr(
        gather_triton,
        "TorchDevice",
        lambda ordinal, **_: TorchDevice(ordinal, interpreted=True),
    )
    memory = Memory(Shape(2, 64, 4, 4), Direction.LOAD)
    cuda.register_pools(memory.pools)
    mover = TritonGatherMover(driver=cuda.driver())
    move = Move(Direction.LOAD, (1,), (1,))
    for _ in range(2):
        times = mover.timed_move(memory.pools, move)
        # What a launch takes on an idle device is no wait: less by that much.
        assert times.started_seconds - times.ordered_seconds > waited_seconds / 2
        assert times.ready_seconds >= times.started_seconds

    # Three idle years later the driver tells time since then in steps of eight seconds.
    ahead_seconds = 1e8 + 4.0
    cuda.set("ahead_seconds", ahead_seconds)
    mover.timed_move(memory.pools, move)
    times = mover.timed_move(memory.pools, move)
    assert times.started_seconds - times.ordered_seconds > waited_seconds / 2
    assert mover.backend == f"triton-{interpreted.triton.__version__}"
    mover.close()
    mover.close()
    cuda.assert_nothing_is_left()
