"""Which link profile a setting means, and what loads are held against."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec
import pytest

from kvready.kernels.errors import ProfileError
from kvready.kernels.machine import this_machine
from kvready.kernels.profile import Curve, LinkProfile, Provenance, Sample, write_profile
from kvready.kernels.profile_source import PUBLISHED_NAMES, load_reference, profile_from
from kvready.kernels.published import published_profile

KIB = 1024


def curve(mover: str, *sizes_and_seconds: tuple[int, int, float], **other: object) -> Curve:
    samples = tuple(
        Sample(size, fragments, turn, seconds)
        for turn, (size, fragments, seconds) in enumerate(sizes_and_seconds)
    )
    known = {
        "source": "host", "destination": "hbm", "backend": "c", "workers": 1, "contended": False,
    } | other  # fmt: skip
    return Curve(mover=mover, samples=samples, **known)  # type: ignore[arg-type]


SMALL = (4 * KIB, 1, 1e-9)  # fast beyond belief, but at no large fragment
MEASURED = LinkProfile(
    "box",
    Provenance.MEASURED,
    this_machine(),
    (
        curve("dma_per_page", SMALL, (64 * KIB, 8, 1.0)),
        curve("gather", SMALL, *((64 * KIB, 8, seconds) for seconds in (0.2, 0.5, 9.0))),
        curve("gather", (64 * KIB, 8, 0.001), contended=True),
        curve("gather", (64 * KIB, 8, 0.001), source="hbm", destination="host"),
        curve("read", (64 * KIB, 8, 0.001), source="disk", destination="host"),
    ),
)


def test_a_profile_of_this_machine_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    write_profile(MEASURED, path)
    assert profile_from(str(path)) == MEASURED


def test_a_profile_of_another_machine_is_refused_by_its_file_name(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    elsewhere = msgspec.structs.replace(MEASURED.machine, cpu="Another CPU")
    write_profile(msgspec.structs.replace(MEASURED, machine=elsewhere), path)
    with pytest.raises(ProfileError, match=r"box\.json was measured on CPU 'Another CPU'"):
        profile_from(str(path))
    assert profile_from(str(path), elsewhere).machine == elsewhere


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_a_published_profile_serves_any_machine(name: str) -> None:
    assert profile_from(name).provenance is Provenance.PUBLISHED


def test_an_unknown_published_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProfileError, match="h200-pcie5"):
        profile_from("published:b200")


def test_loads_are_held_against_the_best_quiet_curve_at_its_largest_fragment() -> None:
    reference = load_reference(MEASURED)
    assert reference is not None
    assert reference.bytes_per_second == pytest.approx(8 * 64 * KIB / median((0.2, 0.5, 9.0)))
    assert reference.origin == "measured on this host (gather, c)"


def test_a_published_reference_says_that_it_was_not_measured_here() -> None:
    reference = load_reference(published_profile("h200-pcie5"))
    assert reference is not None
    assert 48e9 < reference.bytes_per_second <= 55e9
    assert reference.origin.startswith("published for H200 on PCIe 5 x16, not measured here")


def test_a_profile_without_loads_is_no_reference() -> None:
    disk_only = tuple(curve for curve in MEASURED.curves if curve.source == "disk")
    assert load_reference(msgspec.structs.replace(MEASURED, curves=disk_only)) is None
