"""A calibration of this machine, in small: what it writes, and that nothing else is left."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from children import alive, children_of, wait_for
from limits import limited
from served import KVREADY

from kvready.advisor.cli import main
from kvready.kernels import calibrate as calibration
from kvready.kernels import gather_cpu
from kvready.kernels.calibrate import Request, calibrate
from kvready.kernels.competing import CpuCompute
from kvready.kernels.disk import ALIGNMENT_BYTES, DIRECT
from kvready.kernels.errors import DiskError, MoveError
from kvready.kernels.gather_cpu import available_backends
from kvready.kernels.measure_cpu import HostBench
from kvready.kernels.measure_disk import DiskBench
from kvready.kernels.presets import preset_layout
from kvready.kernels.profile import LinkProfile, Provenance, read_profile
from kvready.kernels.sweep import MIB, ROUNDS, SAMPLED_ROUNDS, CurveKey, Shape
from kvready.kernels.timed_sweep import Progress

SMALL = 64 * MIB


def finished(request: Request) -> tuple[LinkProfile, list[Progress]]:
    running, steps = calibrate(request), []
    while True:
        try:
            steps.append(next(running))
        except StopIteration as ended:
            return ended.value, steps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One short calibration by the command line, with a disk and a model."""
    folder = tmp_path_factory.mktemp("calibrated")
    out, disk = folder / "links.json", folder / "disk"
    disk.mkdir()
    ended = subprocess.run(
        [
            *KVREADY, "calibrate", "--out", str(out), "--seconds", "1", "--disk-folder", str(disk),
            "--model", "llama-3.1-70b", "--tensor-parallel", "4",
        ],
        capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip
    assert list(disk.iterdir()) == [], "the measured file has no name"
    return out, ended


def test_a_calibration_writes_a_measured_profile(made) -> None:
    out, ended = made
    assert ended.returncode == 0, ended.stderr
    assert not out.with_name(out.name + ".part").exists()
    profile = read_profile(out)
    assert profile.provenance is Provenance.MEASURED
    assert profile.machine.cpus >= 1
    assert {"kvready", "python", "numpy"} <= set(profile.software) | {"kvready"}
    assert time.time() - 600 < profile.made_wall_seconds <= time.time()
    for name in (
        "pressure_before", "pressure_after", "load_before", "load_after", "affinity_cpus", "rounds",
        "left_out", "competing", "pool_bytes", "disk", "disk_direct", "seed", "model",
    ):  # fmt: skip
        assert profile.conditions[name], name
    assert profile.conditions["model"] == "llama-3.1-70b, pages of 16 tokens, TP 4"
    assert json.loads(out.read_bytes())["schema_version"] == 1


def test_every_mover_is_measured_both_ways_quiet_and_contended(made) -> None:
    profile = read_profile(made[0])
    curves = {(c.source, c.destination, c.mover, c.workers, c.contended) for c in profile.curves}
    assert len(curves) == len(profile.curves)
    threads = (1, 2) if len(os.sched_getaffinity(0)) > 1 else (1,)
    wanted = {
        (source, destination, mover, workers, contended)
        for source, destination in (("host", "hbm"), ("hbm", "host"))
        for mover, workers in (
            ("contiguous", 1), ("dma_per_page", 1), *(("gather", count) for count in threads)
        )
        for contended in (False, True)
    }  # fmt: skip
    wanted |= {
        ("disk", "host", "read", depth, contended)
        for depth in (1, 4, 16, 32)
        for contended in (False, True)
    }
    assert curves == wanted
    assert {c.backend for c in profile.curves if c.mover == "gather"} == {available_backends()[-1]}


def test_samples_add_up(made) -> None:
    profile = read_profile(made[0])
    rounds = int(profile.conditions["rounds"])
    assert SAMPLED_ROUNDS <= rounds <= ROUNDS
    spreads = []
    for curve in profile.curves:
        shapes = Counter((s.fragment_bytes, s.fragments) for s in curve.samples)
        assert set(shapes.values()) == {rounds}
        for shape in shapes:
            repeats = [s for s in curve.samples if (s.fragment_bytes, s.fragments) == shape]
            assert sorted(s.round for s in repeats) == list(range(rounds))
            low, middle, high = np.percentile([s.move_seconds for s in repeats], [10, 50, 90])
            spreads.append((high - low) / middle)
        assert all(s.wait_seconds > 0 for s in curve.samples)
        told = [s.compute_slowdown for s in curve.samples if s.compute_slowdown is not None]
        assert curve.contended or not told, "only beside compute can compute be slowed down"
        if curve.contended and curve.source == "disk":  # these take long enough everywhere
            assert told
    assert profile.repeat_scatter == pytest.approx(np.median(spreads))
    (quiet, contended) = (
        {
            (c.source, c.destination, c.mover, c.workers): {
                (s.fragment_bytes, s.fragments) for s in c.samples
            }
            for c in profile.curves
            if c.contended == wanted
        }
        for wanted in (False, True)
    )
    assert quiet == contended


def test_exactly_the_models_fragments_and_pages_are_measured(made) -> None:
    profile = read_profile(made[0])
    layout = preset_layout("llama-3.1-70b", 16, 4)
    for mover in ("dma_per_page", "gather"):
        curve = profile.curve("host", "hbm", mover)
        assert curve is not None
        assert (layout.fragment_bytes, layout.planes) in {
            (s.fragment_bytes, s.fragments) for s in curve.samples
        }
    disk = profile.curve("disk", "host", "read")
    assert disk is not None
    assert layout.page_bytes % ALIGNMENT_BYTES == 0
    assert layout.page_bytes in {s.fragment_bytes for s in disk.samples}


def test_the_summary_fits_eighty_columns(made) -> None:
    _, ended = made
    assert "gather x1" in ended.stdout
    assert "beside compute" in ended.stdout
    assert "kvready calibrate show" in ended.stdout
    assert "\x1b" not in ended.stdout
    prose = [line for line in ended.stdout.splitlines() if not line.startswith("wrote")]
    assert max(map(len, prose)) <= 80


def test_rounds_are_whole_progress_counts_up_and_a_default_disk_may_refuse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "pool_bytes", lambda *_: SMALL)
    profile, steps = finished(Request(seconds=0.01, disk_folder=tmp_path / "absent"))
    counts = [step.done for step in steps]
    assert counts == sorted(counts)
    assert all(step.done < step.planned for step in steps)
    assert {step.doing for step in steps} >= {"round 1 of 4, quiet", "round 2 of 4, beside compute"}
    assert profile.conditions["rounds"] == "2", "two even where the time is up before the first"
    assert profile.conditions["left_out"] == "2 of 4 rounds: time was up"
    assert profile.conditions["disk"].startswith("skipped: ")
    assert "absent" in profile.conditions["disk"]
    assert not [c for c in profile.curves if c.source == "disk"]


def test_with_a_gpu_its_host_tier_and_the_disk_are_swept_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """How the two sweeps are put together; what a GPU does in the first is tested elsewhere."""
    monkeypatch.setattr(calibration, "_cuda", lambda: object())
    monkeypatch.setattr(
        calibration,
        "GpuBench",
        lambda driver, shapes, seed, layout: HostBench(SMALL, 1, 6, seed, layout),
    )
    monkeypatch.setattr(calibration, "GpuCompute", lambda driver: CpuCompute(1))
    monkeypatch.setattr(calibration, "DISK_SHAPES", 2)
    before = children_of(os.getpid())
    profile, _ = finished(Request(seconds=0.01, disk_folder=tmp_path))
    assert children_of(os.getpid()) == before
    paths = {(curve.source, curve.destination) for curve in profile.curves}
    assert paths == {("host", "hbm"), ("hbm", "host"), ("disk", "host")}
    assert profile.conditions["rounds"] == profile.conditions["disk_rounds"] == "2"
    assert profile.conditions["competing"].startswith("1 one-thread")
    assert profile.conditions["disk_competing"]
    repeats = {sample.round for curve in profile.curves for sample in curve.samples}
    assert repeats == {0, 1}


def test_without_a_compiler_the_stand_in_is_measured_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("KVREADY_CACHE", str(tmp_path / "cache"))
    gather_cpu._library.cache_clear()
    try:
        bench = HostBench(SMALL, cpus=2, shapes=6, seed=1)
    finally:
        gather_cpu._library.cache_clear()
    gathers = [curve for curve in bench.curves if curve.mover == "gather"]
    assert {(c.backend, c.workers) for c in gathers} == {("numpy+memmove", 1)}
    assert "no-such-compiler" in bench.conditions()["gather_fallback"]
    for curve in gathers:
        for shape in bench.shapes(curve):
            bench.time(curve, shape)
    bench.close()


def test_a_mover_that_brings_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = HostBench(SMALL, cpus=1, shapes=6, seed=1)
    curve = next(c for c in bench.curves if c.mover == "gather")
    monkeypatch.setattr(bench._movers["gather", 1], "move", lambda pools, move: 0)
    with pytest.raises(MoveError, match="brought other bytes"):
        bench.time(curve, Shape(4096, 16, 8))
    bench.close()
    bench.close()


def test_a_mover_that_fails_is_an_error_and_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pools: object, move: object) -> int:
        raise MoveError("no such page")

    bench = HostBench(SMALL, cpus=1, shapes=6, seed=1)
    monkeypatch.setattr(bench._movers["gather", 1], "move", fails)
    with pytest.raises(MoveError, match=r"gather .* failed"):
        bench.time(CurveKey("host", "hbm", "gather", "b", 1), Shape(4096, 16, 8))
    bench.close()


def test_disk_reads_bring_what_the_file_holds(tmp_path: Path) -> None:
    layout = preset_layout("deepseek-v3", 16)  # a page that is no multiple of the others
    bench = DiskBench(tmp_path, shapes=4, seed=1, layout=layout)
    for curve in bench.curves:
        for shape in bench.shapes(curve):
            timing = bench.time(curve, shape)
            assert timing.ordered_seconds <= timing.started_seconds <= timing.ready_seconds
            assert any(bytes(bench._memory[: shape.fragment_bytes]))
    told = bench.conditions()
    assert told["disk_direct"] == "yes" or "page cache" in told["disk"]
    assert (bench.curves[0].backend == DIRECT) == (told["disk_direct"] == "yes")
    bench.close()
    bench.close()
    assert list(tmp_path.iterdir()) == []


def test_a_named_disk_that_refuses_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "pool_bytes", lambda *_: SMALL)
    before = children_of(os.getpid())
    with pytest.raises(DiskError, match="absent"):
        finished(Request(seconds=0.01, disk_folder=tmp_path / "absent", disk_required=True))
    assert children_of(os.getpid()) == before


def test_closing_a_calibration_early_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "pool_bytes", lambda *_: SMALL)
    before = children_of(os.getpid())
    running = calibrate(Request(seconds=0.01))
    while next(running).planned == 1:
        pass
    assert children_of(os.getpid()) > before
    running.close()
    assert children_of(os.getpid()) == before


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_calibration_that_is_stopped_leaves_nothing(tmp_path: Path, stop: int) -> None:
    out, disk = tmp_path / "links.json", tmp_path / "disk"
    disk.mkdir()
    process = subprocess.Popen(
        [
            *KVREADY, "calibrate", "--out", str(out), "--seconds", "300", "--disk-folder", str(disk)
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: len(children_of(process.pid)) > 0 or process.poll() is not None)
    children = children_of(process.pid)
    process.send_signal(stop)
    output, errors = process.communicate(timeout=30)
    wait_for(lambda: not alive(children))
    assert list(disk.iterdir()) == []
    assert list(tmp_path.iterdir()) == [disk]
    assert "Traceback" not in errors
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert "nothing was written" in errors
        assert output == ""


def ended_with(
    arguments: Sequence[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """Exit code and errors of `kvready calibrate`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["kvready", "calibrate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def test_a_full_disk_under_measurement_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = ("--out", tmp_path / "l.json", "--disk-folder", disk)
    with limited(resource.RLIMIT_FSIZE, 8 * MIB):
        code, errors = ended_with(arguments, monkeypatch, capsys)
    assert code == 2
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
    assert list(disk.iterdir()) == []
    assert list(tmp_path.iterdir()) == [disk]


def test_a_full_disk_under_the_profile_leaves_no_half_of_it(
    made: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = read_profile(made[0])

    def at_once(_: Request) -> Iterator[Progress]:
        yield Progress(0, 1, "measuring")
        return profile

    monkeypatch.setattr("kvready.advisor.commands.calibrate.calibrate", at_once)
    with limited(resource.RLIMIT_FSIZE, 10_000):
        code, errors = ended_with(("--out", tmp_path / "l.json"), monkeypatch, capsys)
    assert code == 2
    assert str(tmp_path / "l.json") in errors
    assert "free some space" in errors
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    with limited(resource.RLIMIT_AS, taken * resource.getpagesize() + 400 * MIB):
        code, errors = ended_with(("--out", tmp_path / "l.json", "--no-disk"), monkeypatch, capsys)
    assert code == 2
    assert "MiB of memory are available" in errors
    assert "raise the limit" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--out links.json"),
        (("--out", "."), "is a directory"),
        (("--out", "/dev/null"), "no regular file"),
        (("--out", "absent/l.json"), "no writable folder"),
        (("--out", "l.json", "--no-disk", "--disk-folder", "."), "contradict"),
        (("--out", "l.json", "--model", "gpt-none"), "no preset 'gpt-none'"),
        (("--out", "l.json", "--model", "pyproject.toml"), "pyproject.toml"),
        (("--out", "l.json", "--seconds", "0"), "seconds"),
        (("--out", "l.json", "--disk-folder", "absent"), "absent"),
        (("show", "absent.json"), "cannot read the link profile absent.json"),
        (("show", "LICENSE"), "is no link profile"),
        (("show", "published:none"), "no published profile 'none'"),
        (("show", "published:gh200", "--plot", "x.jpg"), ".svg or .png"),
    ],
)
def test_wrong_input_is_one_clear_error(
    arguments: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, errors = ended_with(arguments, monkeypatch, capsys)
    assert code == 2
    assert named in " ".join(errors.split())
    assert not Path("l.json").exists()
