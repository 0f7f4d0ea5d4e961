"""Movers on a CPU leave exactly the bytes that a plain reading of the move says."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools_in_memory import SHARED, Memory, Shape, moves, shapes

from kvready.kernels import gather_cpu
from kvready.kernels.errors import MoveError, MoverUnavailable
from kvready.kernels.gather_cpu import MAX_THREADS, GatherMover, available_backends, open_gather
from kvready.kernels.gather_numpy import MEMMOVE_FROM_BYTES, NumpyGatherMover
from kvready.kernels.per_page_cpu import PerPageMover
from kvready.kernels.pools import Direction, Move, Mover

SMALL = Shape(planes=4, fragment_bytes=96, host_pages=6, hbm_pages=5)


def all_movers() -> Iterator[Mover]:
    """Every way that this machine has, by thread count too."""
    for backend in available_backends():
        yield GatherMover(1, backend)
        yield GatherMover(3, backend)
    yield NumpyGatherMover()
    yield PerPageMover()


@pytest.fixture(scope="module")
def movers() -> Iterator[list[Mover]]:
    made = list(all_movers())
    yield made
    for mover in made:
        mover.close()


def without_numpy(monkeypatch: pytest.MonkeyPatch) -> NumpyGatherMover:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "numpy", None)
        return NumpyGatherMover("no compiler")


def assert_moves_right(mover: Mover, shape: Shape, move: Move, seed: int = 0) -> None:
    memory = Memory(shape, move.direction, seed)
    pools = memory.pools
    expected = memory.expected(move)
    assert mover.move(pools, move) == move.fragments(pools) * shape.fragment_bytes
    assert memory.content() == expected, mover.backend


@given(st.data())
def test_every_mover_writes_every_wanted_byte_and_no_other(
    movers: list[Mover], data: st.DataObject
) -> None:
    shape = data.draw(shapes())
    move = data.draw(moves(shape))
    for mover in movers:
        assert_moves_right(mover, shape, move)


@given(st.data())
def test_what_is_refused_touches_nothing(movers: list[Mover], data: st.DataObject) -> None:
    shape = data.draw(shapes())
    move = data.draw(moves(shape).filter(lambda one: one.host_pages))
    written = "hbm_pages" if move.direction is Direction.LOAD else "host_pages"
    broken = data.draw(
        st.sampled_from(
            (
                {"host_pages": [*move.host_pages[1:], shape.host_pages]},
                {"hbm_pages": [*move.hbm_pages[1:], shape.hbm_pages]},
                {"host_pages": [*move.host_pages[1:], -1]},
                {"hbm_pages": [-1, *move.hbm_pages[1:]]},
                {"host_pages": [*move.host_pages[1:], 2**64]},
                {"hbm_pages": [-(2**70), *move.hbm_pages[1:]]},
                {"host_pages": [*move.host_pages, 0]},
                {"hbm_pages": []},
                {
                    "host_pages": [*move.host_pages, move.host_pages[0]],
                    "hbm_pages": [*move.hbm_pages, move.hbm_pages[0]],
                },
                {"first_plane": -1},
                {"first_plane": shape.planes},
                {"planes": 0},
                {"first_plane": 0, "planes": shape.planes + 1},
                {written: [getattr(move, written)[0]] * 2, _other(written): [0, 0]},
            )
        )
    )
    refused = replace(move, **broken)
    for mover in movers:
        memory = Memory(shape, move.direction)
        before = memory.content()
        with pytest.raises(MoveError):
            mover.move(memory.pools, refused)
        assert memory.content() == before, mover.backend


def _other(pages: str) -> str:
    return "host_pages" if pages == "hbm_pages" else "hbm_pages"


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_a_move_and_leave_no_gap(direction: Direction, threads: int) -> None:
    for backend in available_backends():
        mover = GatherMover(threads, backend)
        for turn in range(3):
            pages = random.Random(turn)
            move = Move(
                direction,
                array("q", pages.sample(range(SHARED.host_pages), 18)),
                array("q", pages.sample(range(SHARED.hbm_pages), 18)),
                *((0, None), (3, 50), (63, 1))[turn],
            )
            assert_moves_right(mover, SHARED, move, seed=turn)
        mover.close()


def test_a_move_returns_only_when_every_thread_is_done() -> None:
    mover = GatherMover(4)
    memory = Memory(SHARED, Direction.LOAD)
    move = Move(Direction.LOAD, range(18), range(18))
    expected = memory.expected(move)[1]
    poison = memory.hbm.raw
    for _ in range(150):
        memory.hbm.raw = poison
        mover.move(memory.pools, move)
        assert memory.hbm.raw == expected
    mover.close()


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("fragment_bytes", [MEMMOVE_FROM_BYTES - 1, MEMMOVE_FROM_BYTES])
def test_without_a_compiler_small_and_large_fragments_are_moved_alike(
    direction: Direction, fragment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(3, fragment_bytes, 7, 6, host_shift=3, hbm_gap=5)
    move = Move(direction, [5, 1, 0, 6], [4, 5, 1, 0], 1)
    for mover in (NumpyGatherMover(), without_numpy(monkeypatch)):
        assert_moves_right(mover, shape, move)


def test_fallbacks_say_exactly_what_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NumpyGatherMover().backend == "numpy+memmove"
    bare = without_numpy(monkeypatch)
    assert (bare.name, bare.backend, bare.fallback_reason) == ("gather", "memmove", "no compiler")


def test_without_numpy_every_move_is_still_right(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = without_numpy(monkeypatch)
    assert_moves_right(bare, SMALL, Move(Direction.STORE, [3, 5], [1, 1], 1, 2))


def test_the_best_back_end_is_taken_and_others_can_be_named() -> None:
    available = available_backends()
    assert open_gather().backend == available[-1]
    assert open_gather().fallback_reason == ""
    assert [GatherMover(backend=one).backend for one in available] == list(available)
    with pytest.raises(MoverUnavailable, match="cannot run c-mmx"):
        GatherMover(backend="c-mmx")


def test_a_processor_without_a_back_end_is_told_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = gather_cpu.BACKENDS[-1]
    monkeypatch.setattr(gather_cpu, "available_backends", lambda: gather_cpu.BACKENDS[:1])
    with pytest.raises(MoverUnavailable, match=f"cannot run {best}; name one of c-memcpy$"):
        GatherMover(backend=best)


@pytest.mark.parametrize("threads", [0, -1, MAX_THREADS + 1])
def test_thread_counts_out_of_reason_are_refused(threads: int) -> None:
    with pytest.raises(MoverUnavailable, match=f"name 1 to {MAX_THREADS}"):
        GatherMover(threads)


def test_as_many_threads_as_are_allowed_can_be_had() -> None:
    mover = GatherMover(MAX_THREADS)
    assert_moves_right(mover, SHARED, Move(Direction.LOAD, range(20), range(20)))
    mover.close()


def test_one_thread_starts_none() -> None:
    script = (
        "import os\n"
        "from pools_in_memory import SHARED, Memory\n"
        "from kvready.kernels.gather_cpu import GatherMover\n"
        "from kvready.kernels.pools import Direction, Move\n"
        "memory = Memory(SHARED, Direction.LOAD)\n"
        "counts = []\n"
        "for threads in (1, 3):\n"
        "    mover = GatherMover(threads)\n"
        "    mover.move(memory.pools, Move(Direction.LOAD, [1], [2]))\n"
        "    counts.append(len(os.listdir('/proc/self/task')))\n"
        "    mover.close()\n"
        "counts.append(len(os.listdir('/proc/self/task')))\n"
        "print(*counts)\n"
    )
    assert _printed(script) == "1 3 1"


def test_a_closed_mover_refuses_and_closes_again() -> None:
    mover = GatherMover(2)
    mover.close()
    mover.close()
    with pytest.raises(MoverUnavailable, match="was closed"):
        mover.move(Memory(SMALL, Direction.LOAD).pools, Move(Direction.LOAD, [0], [0]))


class Changing(Sequence[int]):
    """Two page numbers, 0 and 1, except where they are read as a whole for the first time."""

    def __init__(self, first_reading: list[int]) -> None:
        self.readings = [[0, 1], first_reading]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> int:  # type: ignore[override]
        return (0, 1)[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self.readings.pop() if len(self.readings) > 1 else self.readings[0])


@pytest.mark.parametrize("first_reading", [[0, 10**6], [0, 10**30], [0, 1, 2], [-1, 0], [1, 1]])
def test_page_numbers_that_change_underway_reach_no_memory(first_reading: list[int]) -> None:
    memory = Memory(SMALL, Direction.LOAD)
    before = memory.content()
    with pytest.raises(MoveError, match="changed while they were read"):
        GatherMover().move(
            memory.pools, Move(Direction.LOAD, list(range(2)), Changing(first_reading))
        )
    assert memory.content() == before


def test_threads_of_a_program_may_share_a_mover() -> None:
    mover = GatherMover(2)
    wrong: list[int] = []

    def run(seed: int) -> None:
        for turn in range(10):
            direction = tuple(Direction)[(seed + turn) % 2]
            memory = Memory(SHARED, direction, seed)
            move = Move(direction, range(8), range(seed, seed + 8))
            expected = memory.expected(move)
            mover.move(memory.pools, move)
            if memory.content() != expected:
                wrong.append(seed)

    running = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    mover.close()
    assert not wrong


FORKING = """
import os, sys, threading
from pools_in_memory import SHARED, Memory
from kvready.kernels.errors import MoverUnavailable
from kvready.kernels.gather_cpu import GatherMover
from kvready.kernels.pools import Direction, Move

mover = GatherMover(3)
move = Move(Direction.LOAD, range(18), range(18))

def right():
    memory = Memory(SHARED, Direction.LOAD)
    expected = memory.expected(move)
    mover.move(memory.pools, move)
    return memory.content() == expected

assert right()
stop = threading.Event()
busy_memory = Memory(SHARED, Direction.LOAD)

def keep_busy():
    while not stop.is_set():
        mover.move(busy_memory.pools, move)

busy = threading.Thread(target=keep_busy)
busy.start()
for _ in range(5):
    child = os.fork()
    if not child:
        good = right() and right()
        mover.close()
        try:
            right()
        except MoverUnavailable:
            os._exit(0 if good else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
busy.join()
assert right()
mover.close()
print("right")
"""


def test_a_forked_child_moves_with_threads_of_its_own_and_the_parent_with_its() -> None:
    assert _printed(FORKING) == "right"


def _printed(script: str) -> str:
    """What a fresh interpreter prints, which sees the modules that this one sees."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_pools_of_one_page_need_not_reach_beyond_it() -> None:
    """The last page's stride may pass the end of the memory."""
    memory = Memory(Shape(2, 64, 1, 1), Direction.LOAD)
    pools = replace(memory.pools, host_page_stride_bytes=1 << 60, hbm_page_stride_bytes=1 << 60)
    move = Move(Direction.LOAD, [0], [0])
    expected = memory.expected(move)
    for mover in (GatherMover(), NumpyGatherMover(), PerPageMover()):
        mover.move(pools, move)
        assert memory.content() == expected
