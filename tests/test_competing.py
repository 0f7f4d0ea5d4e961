"""The compute load beside which moves are timed: its arithmetic, and that it always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from children import alive, children_of, wait_for
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.competing import (
    KEPT_STEPS,
    MIN_STEPS,
    CpuCompute,
    Step,
    Window,
    progress,
    quiet_step_seconds,
    slowdown,
)
from kvready.kernels.errors import MoverUnavailable


def steps(seconds: float, count: int, start: float = 0.0) -> list[Step]:
    return [
        Step(start + number * seconds, start + (number + 1) * seconds) for number in range(count)
    ]


@given(st.floats(0.001, 1), st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_progress_counts_parts_of_steps(
    seconds: float, count: int, start: float, end: float
) -> None:
    whole = seconds * count
    low, high = sorted((start * whole, end * whole))
    done = progress(steps(seconds, count), Window(low, high))
    assert done == pytest.approx((high - low) / seconds, abs=1e-6)


@given(st.floats(1.0, 20.0), st.integers(1, 8), st.floats(0.0, 0.9))
def test_a_slowdown_is_found_wherever_the_move_begins(
    slower: float, processes: int, offset: float
) -> None:
    quiet, moved = 0.001, 0.03
    told: list[Step] = []
    for _ in range(processes):
        told += steps(quiet, 20)
        told += steps(quiet * slower, 60, start=0.02)
    gaps = [Window(0.001, 0.003), Window(0.005, 0.018)]
    found = quiet_step_seconds(told, gaps, processes)
    assert found == pytest.approx(quiet)
    begins = 0.02 + offset * quiet * slower
    ratio = slowdown(told, Window(begins, begins + moved), quiet, processes)
    assert ratio == pytest.approx(slower)


def test_a_move_shorter_than_a_few_steps_tells_nothing() -> None:
    told = steps(0.001, 100)
    assert slowdown(told, Window(0.01, 0.01 + 0.001 * MIN_STEPS * 0.9), 0.001, 1) is None
    assert slowdown(told, Window(0.01, 0.01 + 0.001 * MIN_STEPS * 1.1), 0.001, 1) is not None
    assert slowdown([], Window(0.0, 1.0), 0.001, 1) is None
    assert quiet_step_seconds([], [Window(0.0, 1.0)], 1) is None


def test_steps_are_made_while_it_runs_and_only_then() -> None:
    before = children_of(os.getpid())
    with CpuCompute(1) as compute:
        compute.resume()
        began = time.monotonic()
        time.sleep(0.05)
        compute.pause()
        time.sleep(0.05)  # the last step ends
        paused = time.monotonic()
        made = compute.steps(began)
        assert made
        assert len(made) < KEPT_STEPS
        assert all(began <= step.ended_seconds <= paused for step in made)
        assert all(step.started_seconds < step.ended_seconds for step in made)
        assert compute.steps(paused) == []
        compute.resume()
        time.sleep(0.05)
        assert compute.steps(paused)
        children = children_of(os.getpid()) - before
        assert children
    assert not alive(children)
    compute.close()


def test_a_compute_load_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children_of(os.getpid())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MoverUnavailable, match="ended with code 1"):
        CpuCompute(2)
    assert children_of(os.getpid()) == before


@pytest.mark.parametrize("running", [True, False])
def test_children_end_when_their_parent_is_killed(running: bool) -> None:
    script = (
        "import sys, time\n"
        "from kvready.kernels.competing import CpuCompute\n"
        "compute = CpuCompute(2)\n"
        f"if {running}: compute.resume()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    children = children_of(parent.pid)
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not alive(children))
