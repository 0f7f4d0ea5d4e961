"""A link profile as people see it: figures against the samples, 80 columns, a picture."""

from __future__ import annotations

import io
import re
import resource
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import msgspec
import numpy as np
import pytest
from limits import limited
from rich.console import Console

from kvready.advisor import profile_plot
from kvready.advisor.cli import main
from kvready.advisor.profile_plot import check_plot_path, plot_profile
from kvready.advisor.profile_text import print_bandwidths, print_summary
from kvready.collectors.errors import SettingsError
from kvready.kernels.profile import (
    Curve,
    LinkProfile,
    Machine,
    Provenance,
    Sample,
    write_profile,
)
from kvready.kernels.published import PUBLISHED, published_profile
from kvready.kernels.summary import size_text
from kvready.kernels.sweep import half_octaves

REPEATS = 4


def samples(seed: int, rate: float, contended: bool) -> tuple[Sample, ...]:
    random = np.random.default_rng(seed)
    return tuple(
        Sample(
            size,
            8 * max(1, (1 << 23) // size // 8),
            number,
            float((1 << 23) * (1 / rate + 200e-9 / size) * random.uniform(0.95, 1.2)),
            float(random.uniform(2e-5, 9e-5)),
            float(random.uniform(1.0, 1.5)) if contended else None,
        )
        for number in range(REPEATS)
        for size in half_octaves(512, 2 << 20)
    )


@pytest.fixture(scope="module")
def measured() -> LinkProfile:
    """As wide as it gets: a GPU with every mover, each gather budget, and a disk."""
    movers = [("contiguous", 1), ("dma_per_page", 1), ("dma_batch", 1)]
    movers += [("gather", budget) for budget in (1, 2, 4, 8, 16, 132)]
    keys = [(*path, *mover) for path in (("host", "hbm"), ("hbm", "host")) for mover in movers]
    keys += [("disk", "host", "read", depth) for depth in (1, 4, 16, 32)]
    curves = tuple(
        Curve(source, destination, mover, "some-backend", workers, contended,
              samples(place, 4e8 * 1.6 ** (place % 13), contended))
        for place, (source, destination, mover, workers) in enumerate(keys)
        for contended in (False, True)
    )  # fmt: skip
    return LinkProfile(
        "a machine",
        Provenance.MEASURED,
        Machine("CPU of some length with a name @ 3.7 GHz", 128, "Linux 6.8.0-45-generic x86_64",
                "NVIDIA H200", "570.86", "ext4 on nvme0n1"),
        curves,
        conditions={"rounds": "4", "left_out": "nothing", "competing": "4096 x 4096 products " * 4},
        repeat_scatter=0.03,
    )  # fmt: skip


def shown(profile: LinkProfile, width: int = 80) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width)
    print_summary(profile, console)
    print_bandwidths(profile, console)
    return text.getvalue()


def test_everything_fits_eighty_columns_without_being_cut(measured: LinkProfile) -> None:
    text = shown(measured)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for mover in ("contiguous x1", "dma_batch x1", "gather x132", "read x32"):
        assert mover in text
    for profile in map(published_profile, PUBLISHED):
        assert max(len(line) for line in shown(profile).splitlines()) <= 80


def test_the_figures_are_those_of_the_samples(measured: LinkProfile) -> None:
    curve = measured.curve("host", "hbm", "dma_per_page")
    assert curve is not None
    rates = [
        s.fragment_bytes * s.fragments / s.move_seconds / 1e9
        for s in curve.samples
        if s.fragment_bytes == 32 << 10
    ]
    low, middle, high = np.percentile(rates, [10, 50, 90])
    line = next(
        line
        for line in shown(measured).partition("host to hbm, quiet")[2].splitlines()
        if line.strip().startswith("32 KiB")
    )
    figures = [float(figure) for figure in re.findall(r"[\d.]+", line)][1:4]
    assert figures == pytest.approx([middle, low, high], rel=0.01)
    row = next(line for line in shown(measured).splitlines() if line.startswith("dma_per_page"))
    wait = float(np.median([s.wait_seconds for s in curve.samples]) * 1e6)
    assert f"{wait:.0f} µs" in row


def test_published_claims_are_shown_as_inputs_and_predictions() -> None:
    text = shown(published_profile("h200-pcie5"), width=200)
    assert "published, not measured here" in text
    for claim in published_profile("h200-pcie5").claims:
        assert claim.name in text
    assert text.count("\ninput ") + text.count("\nprediction ") == len(
        published_profile("h200-pcie5").claims
    )


@pytest.mark.parametrize(
    ("pressure", "warned"),
    [
        ("some avg10=87.40 avg60=8.61 avg300=8.28 total=2432130184", "87%"),
        ("some avg10=0.07 avg60=8.61 avg300=8.28 total=2432130184", ""),
        ("not told by this system", ""),
    ],
)
def test_figures_of_a_busy_machine_carry_a_warning(
    measured: LinkProfile, pressure: str, warned: str
) -> None:
    conditions = measured.conditions | {"pressure_before": pressure}
    text = shown(msgspec.structs.replace(measured, conditions=conditions))
    assert ("waited for a CPU" in text) == bool(warned)
    assert warned in text


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 B"), (2048, "2 KiB"), (1 << 20, "1 MiB"), (1152, "1.12 KiB"), (3 << 20, "3 MiB")],
)
def test_sizes_are_in_units_that_read_well(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_profile_is_drawn(name: str, tmp_path: Path) -> None:
    plot_profile(published_profile(name), tmp_path / "link.svg")
    assert "<svg" in (tmp_path / "link.svg").read_text(encoding="utf-8")


def test_one_colour_per_mover_and_dashes_for_contended(
    measured: LinkProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = profile_plot._draw
    monkeypatch.setattr(
        profile_plot, "_draw", lambda panel, curves: (drawn.append(panel), draw(panel, curves))
    )
    plot_profile(measured, tmp_path / "links.png")
    pixels = matplotlib.image.imread(tmp_path / "links.png")
    assert pixels.shape[1] > 3 * 600, "three paths side by side"
    assert [panel.get_title(loc="left") for panel in drawn] == [
        "host to hbm", "hbm to host", "disk to host"
    ]  # fmt: skip
    for panel in drawn:
        assert panel.get_xscale() == panel.get_yscale() == "log"
        labels = panel.get_legend_handles_labels()[1]
        assert len(labels) == len(set(labels))
        legend = [text.get_text() for text in panel.get_legend().get_texts()]
        assert "beside compute" in legend
    lines = [line for line in drawn[0].get_lines() if len(line.get_xdata()) > 2]
    solid = [line for line in lines if line.get_linestyle() == "-"]
    dashed = [line for line in lines if line.get_linestyle() == "--"]
    assert len(solid) == len(dashed) == 8
    assert [line.get_color() for line in solid] == [line.get_color() for line in dashed]
    assert len({tuple(line.get_color()) for line in solid}) == 8


def test_a_disk_that_is_full_leaves_no_part_of_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "x.svg"
    with limited(resource.RLIMIT_FSIZE, 2_000):
        code = run("show", "published:gh200", "--plot", plot, monkeypatch=monkeypatch)
    assert code == 2
    errors = capsys.readouterr().err
    assert str(plot) in errors
    assert "free some space" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_picture_in_a_folder_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("show", "published:gh200", "--plot", "absent/x.svg")
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    assert "absent is no writable folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["links.pdf", "links", "links.png.txt"])
def test_other_formats_are_refused_before_any_work(name: str) -> None:
    with pytest.raises(SettingsError, match=r"\.svg or \.png"):
        check_plot_path(Path(name))


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "sys.argv = ['kvready', 'calibrate', 'show', 'published:gh200', '--plot', sys.argv[1]]\n"
        "from kvready.advisor.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.svg")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "pip install 'kvready[plots]'" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_show_prints_what_is_in_the_file(
    measured: LinkProfile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "links.json"
    write_profile(measured, file)
    assert run("show", file, monkeypatch=monkeypatch) == 0
    assert measured.calibration_id in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["cut", "edited", "foreign", "future"])
def test_a_file_that_is_no_profile_is_one_clear_error(
    measured: LinkProfile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    file = tmp_path / "links.json"
    write_profile(measured, file)
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut": whole[:-200],
            "edited": whole.replace(b'"rounds":"4"', b'"rounds":"5"'),
            "foreign": b'{"kind": "something else"}',
            "future": whole.replace(b'"schema_version":1', b'"schema_version":9'),
        }[damage]
    )
    assert file.read_bytes() != whole
    assert run("show", file, monkeypatch=monkeypatch) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert "links.json" in told.err


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> object:
    """Exit code of `kvready calibrate`, in this process."""
    monkeypatch.setattr(sys, "argv", ["kvready", "calibrate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code
