"""`make gpu-check` where there is no GPU, and on a driver whose device is this process's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from fake_cuda import FakeCuda

from kvready.kernels.cuda_driver import DEVICE_MEMORY, CudaDriver
from kvready.kernels.errors import MoveError
from kvready.kernels.gather_triton import TritonGatherMover
from kvready.kernels.gpu_table import table
from kvready.kernels.layout import KvLayout
from kvready.kernels.measure_gpu import GpuBench
from kvready.kernels.profile import Curve, Provenance, Sample, read_profile
from kvready.kernels.sweep import KIB, CurveKey, Shape

if TYPE_CHECKING:
    from kvready.kernels.gpu_session import GpuSession

SMALL_SHAPES = (Shape(512, 16, 8), Shape(16 * KIB, 8, 8))
WHOLE = (Shape(64 * KIB, 1, 1),)
POOL_BYTES = 1 << 20


def run(*code: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_is_no_failure() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = run("-m", "kvready.kernels.gpu_check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("not run: no CUDA device: ")
    assert "never run on hardware" in done.stdout


@pytest.mark.parametrize("missing", ["numpy", "torch"])
def test_without_what_it_needs_it_says_so_and_is_no_failure(cuda: FakeCuda, missing: str) -> None:
    done = run(
        "-c",
        f"import sys; sys.modules['{missing}'] = None\n"
        "from kvready.kernels import cuda_driver, gpu_check\n"
        f"cuda_driver.CudaDriver.__init__.__defaults__ = ('{cuda.path}',)\n"
        "sys.exit(gpu_check.main([]))",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("not run: ")
    assert missing in done.stdout
    assert "pip install 'kvready[gpu]'" in done.stdout


class SmallBench(GpuBench):
    """Moves that an interpreter can make."""

    def shapes(self, curve: CurveKey) -> Sequence[Shape]:
        return WHOLE if curve.mover == "contiguous" else SMALL_SHAPES

    def _gather(self, sms: int, driver: CudaDriver, ordinal: int) -> TritonGatherMover:
        return TritonGatherMover(sms, driver, ordinal, interpreted=True)


@pytest.fixture
def session(cuda: FakeCuda, interpreted: ModuleType) -> GpuSession:
    """A session on the fake GPU, with the kernel interpreted and small moves."""
    from kvready.kernels.competing_gpu import GpuCompute
    from kvready.kernels.gpu_correct import Case
    from kvready.kernels.gpu_session import GpuSession
    from kvready.kernels.torch_device import TorchDevice

    class OnThisCpu(GpuSession):
        def cases(self) -> Sequence[Case]:
            return (
                Case("GQA", 4, 2048, 9, 7),
                Case("MLA, two planes", 5, 1152, 12, 11, 3, 2),
                Case("one page", 8, 512, 3, 1),
            )

        def host_tensor(self, size: int) -> Any:
            tensor = self.device.torch.empty(size, dtype=self.device.torch.uint8)
            cuda.register(tensor.data_ptr(), size)
            cuda.kept.append(tensor)
            return tensor

        def hbm_tensor(self, size: int) -> Any:
            tensor = self.host_tensor(size)
            cuda.register(tensor.data_ptr(), size, DEVICE_MEMORY)
            return tensor

        def settle(self) -> None:
            """Nothing is ordered on a CPU."""

        def bench(self) -> GpuBench:
            return SmallBench(
                self.driver, 2, 1, pool_bytes=POOL_BYTES, sm_budgets=(2,), ordinal=self.ordinal
            )

        def compute(self) -> GpuCompute:
            return GpuCompute(self.driver, self.ordinal, rows=64, interpreted=True)

        def _gather(self, sms: int) -> TritonGatherMover:
            return TritonGatherMover(sms, self.driver, self.ordinal, interpreted=True)

        def _torch_device(self) -> TorchDevice:
            return TorchDevice(self.ordinal, interpreted=True)

    cuda.set("multiprocessors", 6)
    return OnThisCpu(driver=cuda.driver())


def test_a_whole_check_ends_in_a_table_and_a_profile(
    cuda: FakeCuda, session: GpuSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvready.kernels.gpu_session import check

    out = tmp_path / "new" / "profile.json"
    assert check(session, out, seconds=0.1) == 0
    session.close()
    cuda.assert_nothing_is_left()

    said = capsys.readouterr().out
    assert "differ" not in said
    for mover in ("dma_per_page", "dma_batch", "gather, 1 SM", "gather, 4 SM", "gather, 6 SM"):
        assert said.count(f"{mover:14} equal") == 6, mover
    for heading in ("host -> hbm, quiet", "hbm -> host, beside matrix products"):
        assert heading in said

    profile = read_profile(out)
    assert profile.provenance is Provenance.MEASURED
    curves = {(c.source, c.mover, c.workers, c.contended) for c in profile.curves}
    assert curves == {
        (source, mover, workers, contended)
        for source in ("host", "hbm")
        for contended in (False, True)
        for mover, workers in [
            ("contiguous", 1),
            ("dma_per_page", 1),
            ("dma_batch", 1),
            ("gather", 2),
            ("gather", 6),
        ]
    }
    gather = profile.curve("host", "hbm", "gather")
    assert gather is not None
    assert gather.backend.startswith("triton-")
    assert gather.backend.endswith("-interpreted")
    assert all(sample.move_seconds > 0 for curve in profile.curves for sample in curve.samples)
    assert profile.calibration_id in said


def test_wrong_bytes_fail_it_before_any_speed_is_told(
    cuda: FakeCuda,
    session: GpuSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvready.kernels.gpu_session import check

    def shifted(destination: int, source: int, size: int, stream: int) -> None:
        CudaDriver.copy(session.driver, destination, source + 16, size - 16, stream)

    monkeypatch.setattr(session.driver, "copy", shifted)
    assert check(session, tmp_path / "profile.json", seconds=0.1) == 1
    said = capsys.readouterr()
    assert "bytes differ from torch's" in said.out
    assert "FAILED: 6 of the moves above" in said.err
    assert not (tmp_path / "profile.json").exists()


def test_a_driver_without_batches_is_told_and_the_rest_is_checked(
    cuda: FakeCuda, interpreted: ModuleType
) -> None:
    cuda.set("version", 12040)
    bench = SmallBench(cuda.driver(), 2, 1, pool_bytes=POOL_BYTES, sm_budgets=(1,))
    assert {curve.mover for curve in bench.curves} == {"contiguous", "dma_per_page", "gather"}
    assert "speaks 12.4" in bench.conditions()["without_dma_batch"]
    bench.close()
    bench.close()
    cuda.assert_nothing_is_left()


def test_a_bench_whose_mover_brings_other_bytes_stops(
    cuda: FakeCuda, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SmallBench(cuda.driver(), 2, 1, pool_bytes=POOL_BYTES, sm_budgets=(1,))
    batch = next(curve for curve in bench.curves if curve.mover == "dma_batch")
    bench.time(batch, SMALL_SHAPES[0])
    driver = bench._movers["dma_batch", 1].driver
    monkeypatch.setattr(driver, "copy_batch", lambda *_: None)
    with pytest.raises(MoveError, match=r"dma_batch .* brought other bytes"):
        bench.time(batch, SMALL_SHAPES[1])
    bench.close()


def test_a_model_whose_fragments_the_gather_cannot_walk_is_timed_by_the_other_movers(
    cuda: FakeCuda, interpreted: ModuleType
) -> None:
    layout = KvLayout(3, 2, kv_heads=1, head_dim=36, dtype_bytes=1, page_tokens=1)
    bench = SmallBench(cuda.driver(), 2, 1, layout, pool_bytes=POOL_BYTES, sm_budgets=())
    sizes = {
        curve.mover: {shape.fragment_bytes for shape in GpuBench.shapes(bench, curve)}
        for curve in bench.curves
    }
    assert layout.fragment_bytes in sizes["dma_per_page"] & sizes["dma_batch"]
    assert layout.fragment_bytes not in sizes["gather"]
    assert "36 bytes" in bench.conditions()["model_without_gather"]
    bench.close()


def test_what_failed_is_told_though_nothing_can_be_given_back_after_it(
    cuda: FakeCuda, interpreted: ModuleType
) -> None:
    """After a kernel's failure a driver refuses every call, those that end something too."""
    bench = SmallBench(cuda.driver(), 2, 1, pool_bytes=POOL_BYTES, sm_budgets=(1,))
    copies = next(curve for curve in bench.curves if curve.mover == "dma_per_page")
    bench.time(copies, SMALL_SHAPES[0])
    cuda.set("synchronize_error", 700)
    cuda.set("broken", 1)
    with pytest.raises(MoveError, match="ILLEGAL_ADDRESS"), closing(bench):
        bench.time(copies, SMALL_SHAPES[0])


def test_each_mover_has_a_rate_at_each_fragment_size_that_was_measured() -> None:
    rates = {512: 1e9, 8 * KIB: 4e9, 2 << 20: 50e9}
    gather = tuple(
        Sample(size, 8, number, move_seconds=size * 8 / rate, wait_seconds=4e-6)
        for size, rate in rates.items()
        for number in range(3)
    )
    whole = (Sample(64 << 20, 1, 0, move_seconds=(64 << 20) / 100e9),)
    lines = table(
        [
            Curve("host", "hbm", "contiguous", "b", 1, contended=False, samples=whole),
            Curve("host", "hbm", "gather", "b", 4, contended=False, samples=gather),
        ]
    )
    told = next(line.split() for line in lines if line.startswith("  gather"))
    # Half-way between 512 bytes and 8 KiB, on both log scales, lie 2 KiB and 2 GB/s.
    assert told[:5] == ["gather", "4", "1.00", "2.00", "4.00"]
    assert told[-4:] == ["50.00", "50%", "4", "-"]
    assert lines[-1].endswith("100.00 GB/s")
