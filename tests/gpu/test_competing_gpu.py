"""The compute load beside which a GPU's moves are timed, on a stand-in for the driver."""

from __future__ import annotations

import time
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from fake_cuda import FakeCuda

from kvready.kernels.competing_gpu import STEPS_PER_RUN, GpuCompute
from kvready.kernels.errors import MoverUnavailable


@pytest.fixture
def compute(cuda: FakeCuda, interpreted: ModuleType) -> GpuCompute:
    return GpuCompute(cuda.driver(), rows=64, interpreted=True)


def until_steps(compute: GpuCompute, since_seconds: float) -> None:
    deadline = time.monotonic() + 30.0
    while not compute.steps(since_seconds) and time.monotonic() < deadline:
        time.sleep(0.001)


def test_steps_follow_each_other_and_none_is_noted_while_paused(
    cuda: FakeCuda, compute: GpuCompute
) -> None:
    began = time.monotonic()
    for _ in range(3):
        compute.resume()
        until_steps(compute, time.monotonic())
        compute.pause()
    paused = time.monotonic()
    steps = compute.steps(began)
    assert len(steps) >= 3 * STEPS_PER_RUN
    assert len(steps) % STEPS_PER_RUN == 0
    for earlier, later in pairwise(steps):
        assert earlier.started_seconds <= earlier.ended_seconds <= later.ended_seconds
    assert cuda.told("pending") == 0
    assert not compute.steps(paused)
    compute.close()
    compute.close()
    cuda.assert_nothing_is_left()


def test_it_can_be_closed_while_it_runs(cuda: FakeCuda, compute: GpuCompute) -> None:
    with compute:
        compute.resume()
        until_steps(compute, 0.0)
    cuda.assert_nothing_is_left()


def test_a_product_that_fails_is_told_at_the_pause(
    cuda: FakeCuda, compute: GpuCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(compute._device.torch, "mm", refuse)
    compute.resume()
    assert compute._thread is not None
    compute._thread.join(30.0)
    with pytest.raises(MoverUnavailable, match="illegal memory access"):
        compute.pause()


def test_a_gpu_without_room_for_it_is_told_and_nothing_is_left(
    cuda: FakeCuda, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randn", refuse)
    with pytest.raises(MoverUnavailable, match=r"out of memory.*free some"):
        GpuCompute(cuda.driver(), interpreted=True)
    cuda.assert_nothing_is_left()
