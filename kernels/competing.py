"""A compute load beside which moves are timed: one process per CPU that multiplies matrices.

Each process draws its weights in turn from more memory than its cache holds, as a model's layers
do, on one thread, and notes each step. It ends when its parent does, however that ends: its
standard input closes, and before each step it looks whose child it is.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from kvready.kernels.errors import MoverUnavailable

PROCESS = "kvready.kernels.competing_process"
MAX_PROCESSES = 64
KEPT_STEPS = 4_096  # per process; a stretch of moves takes fewer
HEADER_BYTES = 64
STEP_BYTES = 16
BOARD_BYTES = HEADER_BYTES + KEPT_STEPS * STEP_BYTES
START_SECONDS = 30.0
END_SECONDS = 5.0
FIRST_STEPS = 20  # run before anything is timed: clocks and caches settle
MIN_STEPS = 2.0  # that must fit into a move before its slow-down can be told
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)


class Step(NamedTuple):
    """One matrix product. Seconds of CLOCK_MONOTONIC."""

    started_seconds: float
    ended_seconds: float


class Window(NamedTuple):
    """A stretch of time. Seconds of CLOCK_MONOTONIC."""

    started_seconds: float
    ended_seconds: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended_seconds - self.started_seconds


class CpuCompute:
    """The competing processes, paused until `resume`. A context manager."""

    def __init__(self, processes: int) -> None:
        self.processes = min(processes, MAX_PROCESSES)
        self.description = f"{self.processes} one-thread processes of 256 x 256 products, unpinned"
        self._children: list[subprocess.Popen[bytes]] = []
        self._boards: list[mmap.mmap] = []
        try:
            for _ in range(self.processes):
                self._start()
            self._settle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CpuCompute:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self) -> None:
        """Compute from now on."""
        for child, board in zip(self._children, self._boards, strict=True):
            _words(board)[0] = 1
            assert child.stdin is not None
            try:
                child.stdin.write(b"\n")
            except BrokenPipeError as error:
                raise MoverUnavailable(_ended(child)) from error

    def pause(self) -> None:
        """Compute no more once the steps under way are done."""
        for board in self._boards:
            _words(board)[0] = 0

    def steps(self, since_seconds: float) -> list[Step]:
        """The latest steps of all processes that ended since then."""
        found: list[Step] = []
        for board in self._boards:
            count = _words(board)[1]
            times = memoryview(board)[HEADER_BYTES:].cast("d")
            for number in range(count - 1, max(-1, count - KEPT_STEPS), -1):
                place = 2 * (number % KEPT_STEPS)
                step = Step(times[place], times[place + 1])
                if step.ended_seconds < since_seconds:
                    break
                found.append(step)
        return found

    def close(self) -> None:
        """End the processes. Safe twice."""
        for child in self._children:
            assert child.stdin is not None
            child.kill()
            child.stdin.close()
        for child in self._children:
            child.wait(END_SECONDS)
        self._children.clear()
        for board in self._boards:
            board.close()
        self._boards.clear()

    def _start(self) -> None:
        file = os.memfd_create("kvready-competing")
        try:
            _make_room(file)
            self._boards.append(mmap.mmap(file, BOARD_BYTES))
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", PROCESS, str(file), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    bufsize=0,
                    pass_fds=(file,),
                    env=os.environ | ONE_THREAD,
                    process_group=0,  # an interrupt from the terminal is for the parent
                )
            )
        finally:
            os.close(file)

    def _settle(self) -> None:
        self.resume()
        deadline = time.monotonic() + START_SECONDS
        while min(_words(board)[1] for board in self._boards) < FIRST_STEPS:
            for child in self._children:
                if child.poll() is not None:
                    raise MoverUnavailable(_ended(child))
            if time.monotonic() > deadline:
                raise MoverUnavailable(
                    f"the competing compute load took more than {START_SECONDS:.0f} s to start; "
                    "run `kvready calibrate` when the machine has a CPU to spare"
                )
            time.sleep(0.01)
        self.pause()


def progress(steps: Sequence[Step], window: Window) -> float:
    """Steps' worth of work that was done in a window, parts of steps included."""
    done = 0.0
    for started, ended in steps:
        shared = min(ended, window.ended_seconds) - max(started, window.started_seconds)
        if shared > 0.0:
            done += shared / (ended - started)
    return done


def quiet_step_seconds(
    steps: Sequence[Step], gaps: Sequence[Window], processes: int
) -> float | None:
    """Seconds that a process took per step while nothing moved; None if none was done."""
    done = sum(progress(steps, gap) for gap in gaps)
    return processes * sum(gap.seconds for gap in gaps) / done if done else None


def slowdown(
    steps: Sequence[Step], move: Window, quiet_seconds: float, processes: int
) -> float | None:
    """How much longer steps took beside a move; None where the move was too short to tell."""
    expected = move.seconds / quiet_seconds
    done = progress(steps, move) / processes
    return expected / done if expected >= MIN_STEPS and done else None


def _make_room(file: int) -> None:
    try:
        os.ftruncate(file, BOARD_BYTES)
    except OSError as error:
        raise MoverUnavailable(
            f"{BOARD_BYTES} bytes of shared memory cannot be had ({error.strerror}); raise the "
            "limit of file sizes (ulimit -f) or free some memory"
        ) from error


def _words(board: mmap.mmap) -> memoryview:
    """Whether to run, and how many steps were done."""
    return memoryview(board)[:HEADER_BYTES].cast("q")


def _ended(child: subprocess.Popen[bytes]) -> str:
    return (
        f"the competing compute load ended with code {child.wait(END_SECONDS)}; its message above "
        "says why (it needs numpy: pip install 'kvready[sidecar]')"
    )
