"""Published profiles: what is put in, what follows, and how far that is from what was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvready.kernels.errors import ProfileError
from kvready.kernels.layout import KEY_AND_VALUE, KvLayout
from kvready.kernels.presets import preset_layout
from kvready.kernels.profile import Claim, LinkProfile, Provenance, read_profile, write_profile
from kvready.kernels.published import (
    C2C_TRIP_SECONDS,
    COPY_OVERHEAD_SECONDS,
    PCIE5_TRIP_SECONDS,
    PUBLISHED,
    gather_bytes_per_second,
    published_profile,
)

H200 = published_profile("h200-pcie5")
GH200 = published_profile("gh200")
OURS = {(profile.name, claim.name): claim for profile in (H200, GH200) for claim in profile.claims}


def claim(profile: LinkProfile, name: str) -> Claim:
    return OURS[profile.name, name]


def test_the_overhead_of_a_copy_follows_from_page_32_at_22_percent() -> None:
    layout = preset_layout("llama-3.1-8b", page_tokens=32)
    copies = layout.pages(8192) * layout.planes
    whole_seconds = copies * layout.fragment_bytes / (0.22 * 64e9)
    assert copies == 16_384
    overhead = whole_seconds / copies - 65_536 / 55e9
    assert pytest.approx(overhead) == COPY_OVERHEAD_SECONDS
    assert overhead == pytest.approx(3.46e-6, rel=1e-2)
    curve = H200.curve("host", "hbm", "dma_per_page")
    assert curve is not None
    assert curve.cost is not None
    assert curve.cost.seconds(copies * 65_536, copies) == pytest.approx(whole_seconds)


def test_the_round_trips_of_a_gather_follow_from_48_gb_per_second() -> None:
    assert pytest.approx(2 * 65_536 / 48e9) == PCIE5_TRIP_SECONDS
    assert pytest.approx(65_536 / 48e9) == C2C_TRIP_SECONDS
    rates = [gather_bytes_per_second(blocks, 55e9, PCIE5_TRIP_SECONDS) for blocks in (1, 2, 3, 8)]
    assert rates == pytest.approx([24e9, 48e9, 55e9, 55e9])


@pytest.mark.parametrize(
    ("profile", "name", "ours", "unit"),
    [
        (H200, "per-page copies of 1 MiB", 2**20 / (3.4630e-6 + 2**20 / 55e9) / 64e9,
         "share of peak"),
        (H200, "per-page copies of 2 MiB", 2**21 / (3.4630e-6 + 2**21 / 55e9) / 64e9,
         "share of peak"),
        (H200, "per-page copies, page 32, sustained", 0.22 * 64, "GB/s"),
        (H200, "gather, 2 blocks, sustained", 48.0, "GB/s"),
        (GH200, "per-page copies, page 32", 65536 / (3.4630e-6 + 65536 / 350e9) / 384e9,
         "share of peak"),
        (GH200, "per-page copies, page 32, sustained",
         65536 / (3.4630e-6 + 65536 / 350e9) / 1e9, "GB/s"),
        (GH200, "gather, 2 blocks, sustained", 96.0, "GB/s"),
        (GH200, "gather, 2 blocks, on GB300", 96.0, "GB/s"),
    ],
)  # fmt: skip
def test_each_prediction_is_what_its_formula_gives(
    profile: LinkProfile, name: str, ours: float, unit: str
) -> None:
    found = claim(profile, name)
    assert (found.kind, found.unit) == ("prediction", unit)
    assert found.ours == pytest.approx(ours, rel=1e-4)


def test_what_was_published_is_told_as_it_was_published() -> None:
    published = {
        (H200.name, "link"): ("input", 55),
        (H200.name, "per-page copies, page 32"): ("input", 0.22),
        (H200.name, "batch DMA"): ("input", 38),
        (H200.name, "gather, 2 blocks"): ("input", 48),
        (H200.name, "per-page copies of 1 MiB"): ("prediction", 0.75),
        (H200.name, "per-page copies of 2 MiB"): ("prediction", 0.80),
        (H200.name, "per-page copies, page 32, sustained"): ("prediction", 10.80),
        (H200.name, "gather, 2 blocks, sustained"): ("prediction", 40.30),
        (GH200.name, "link"): ("input", 350),
        (GH200.name, "overhead of a copy"): ("input", COPY_OVERHEAD_SECONDS * 1e6),
        (GH200.name, "gather, 1 block"): ("input", 48),
        (GH200.name, "per-page copies, page 32"): ("prediction", 0.05),
        (GH200.name, "per-page copies, page 32, sustained"): ("prediction", 19.43),
        (GH200.name, "gather, 2 blocks, sustained"): ("prediction", 150.50),
        (GH200.name, "gather, 2 blocks, on GB300"): ("prediction", 90),
    }
    assert {key: (found.kind, found.published) for key, found in OURS.items()} == published
    assert all(found.source for found in OURS.values())


def test_an_input_is_its_own_figure_and_a_prediction_never_was_put_in() -> None:
    for found in OURS.values():
        assert (found.ours == found.published) == (found.kind == "input")
        assert found.reading or found.kind == "input"


@pytest.mark.parametrize(
    ("profile", "name", "words"),
    [
        (H200, "per-page copies, page 32, sustained", "does not match: ours is 30 % above"),
        (H200, "gather, 2 blocks, sustained", "does not match: ours is 19 % above"),
        (GH200, "per-page copies, page 32, sustained", "ours is 8 % below"),
        (GH200, "gather, 2 blocks, sustained", "does not match: ours is 36 % below"),
        (GH200, "gather, 2 blocks, on GB300", "ours is 7 % above"),
    ],
)
def test_the_reading_states_the_difference_that_there_is(
    profile: LinkProfile, name: str, words: str
) -> None:
    found = claim(profile, name)
    percent = round(abs(found.ours / found.published - 1) * 100)
    side = "above" if found.ours > found.published else "below"
    assert f"ours is {percent} % {side}" in words
    assert words in found.reading


def test_gh200_copies_hardly_depend_on_the_assumed_link() -> None:
    fragment = KvLayout(32, KEY_AND_VALUE, 8, 128, 2, 32).fragment_bytes
    low, high = (fragment / (COPY_OVERHEAD_SECONDS + fragment / link) for link in (300e9, 450e9))
    assert high / low < 1.025
    assert claim(GH200, "per-page copies, page 32").ours == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_profile_says_so_and_goes_through_a_file(name: str, tmp_path: Path) -> None:
    profile = published_profile(name)
    assert profile.provenance is Provenance.PUBLISHED
    assert all(curve.cost and not curve.samples and not curve.contended for curve in profile.curves)
    assert profile.made_wall_seconds == 0.0
    write_profile(profile, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == profile
    assert published_profile(name).calibration_id == profile.calibration_id


def test_an_unknown_published_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ProfileError, match="h200-pcie5, gh200"):
        published_profile("b200")
