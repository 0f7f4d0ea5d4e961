"""A recording carries what its run's loads started from: a replay forecasts as the run did."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.ledger import Pair
from kvready.advisor.link_curves import priors_of
from kvready.advisor.load_curve import LARGEST_KNOT, MAX_KNOTS, LoadCurve
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors, Prior, PriorKind
from kvready.advisor.load_priors import Path as LinkPath
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.service.runner import open_recording
from kvready.collectors.errors import RecordingError
from kvready.collectors.load_start import CurveStart, LoadStart, PathStart
from kvready.collectors.recording import read_recording
from kvready.collectors.records import CopyMethod, Ingested, Tier
from kvready.kernels.profile import Curve, LinkProfile, Machine, Provenance, Sample
from kvready.kernels.published import PUBLISHED, published_profile

RECORDED = Path(__file__).parents[1] / "examples/recordings/vllm-0.32-cpu-kv-heavy.kvr"
RECORDS = 2_000

COSTS = st.floats(0.0, 1e3, allow_nan=False)
CURVES = st.builds(
    LoadCurve,
    COSTS,
    COSTS,
    st.floats(1e-3, 1e15),
    st.floats(0.0, 40.0),
    st.lists(st.floats(-LARGEST_KNOT, LARGEST_KNOT), max_size=MAX_KNOTS),
)


def measured_profile() -> LinkProfile:
    """Samples, so that what loads start from is fitted: knots and all."""
    samples = tuple(
        Sample(1 << octave, 256, number, 2e-5 + 256 * (1e-7 + (1 << octave) / 3e9) * (1 + wobble))
        for octave in range(10, 20)
        for number, wobble in enumerate((0.0, 0.03, 0.2))
    )
    curve = Curve("host", "hbm", "dma_per_page", "torch", 1, False, samples)
    return LinkProfile("here", Provenance.MEASURED, Machine("cpu", 2, "linux"), (curve,))


def run_and_recorded(path: Path, priors: LoadPriors) -> list[Pair]:
    """What a run over these records pairs; `path` gets its recording."""
    pairs: list[Pair] = []
    pipeline = Pipeline(pairs.append, priors)
    items: list[Ingested] = list(islice(read_recording(RECORDED), RECORDS))
    with open_recording(path, priors) as writer:
        for item in items:
            writer.write(item)
            pipeline.ingest(item)
    return pairs


def replayed(path: Path) -> list[Pair]:
    pairs: list[Pair] = []
    play(path, lambda pair, line: pairs.append(pair))
    return pairs


@pytest.mark.parametrize(
    "profile",
    [measured_profile(), published_profile(next(iter(PUBLISHED)))],
    ids=lambda profile: profile.name,
)
def test_a_replay_pairs_as_the_run_with_a_link_profile_did(
    profile: LinkProfile, tmp_path: Path
) -> None:
    priors = priors_of(profile)
    recorded = tmp_path / "run.kvr"
    pairs = run_and_recorded(recorded, priors)
    assert replayed(recorded) == pairs
    assert any(profile.calibration_id in pair.forecast.model_version for pair in pairs)
    assert play(recorded).pipeline.priors.described == priors.described


def test_a_replay_of_a_run_without_a_profile_starts_generic(tmp_path: Path) -> None:
    recorded = tmp_path / "run.kvr"
    pairs = run_and_recorded(recorded, NO_PROFILE)
    assert read_recording(recorded).header.load_start is None
    assert replayed(recorded) == pairs


def test_a_recording_from_before_headers_told_replays_as_it_did() -> None:
    assert read_recording(RECORDED).header.load_start is None
    assert play(RECORDED).pipeline.priors is NO_PROFILE


@given(CURVES, CURVES, st.floats(1.001, 100.0))
def test_curves_come_back_bit_by_bit(quiet: LoadCurve, contended: LoadCurve, factor: float) -> None:
    path = LinkPath("host", "hbm", "gather")
    prior = Prior(PriorKind.MEASURED, quiet, contended, factor)
    more = prior._replace(quiet=contended, workers=4)
    priors = LoadPriors(PriorKind.MEASURED, "here", "0123", {path: prior}, {path: [prior, more]})
    told = priors.told()
    again = LoadPriors.of_told(msgspec.json.decode(msgspec.json.encode(told), type=LoadStart))
    assert again.told() == told
    found = again.prior(Tier.HOST, Tier.HBM, CopyMethod.GATHER)
    assert found.factor == factor
    other = again.prior(Tier.HOST, Tier.HBM, CopyMethod.GATHER, 4)
    assert (other.workers, found.workers) == (4, 0)
    assert other.quiet.seconds(1 << 20, 7) == contended.seconds(1 << 20, 7)
    for before, after in ((quiet, found.quiet), (contended, found.contended)):
        assert before.seconds(1 << 20, 7) == after.seconds(1 << 20, 7)


def test_a_header_from_before_factors_were_told_has_the_one_that_was_used() -> None:
    curve = [0.0, 0.0, 1e9, 0.0, []]
    paths = [["host", "hbm", "gather", curve, curve]]
    start = {"kind": "measured", "name": "here", "calibration_id": "0", "paths": paths}
    told = msgspec.convert(start, LoadStart)
    assert LoadPriors.of_told(told).prior(Tier.HOST, Tier.HBM, CopyMethod.GATHER).factor == 4.0


def test_a_header_with_figures_that_no_link_has_is_refused(tmp_path: Path) -> None:
    curve = CurveStart(0.0, 0.0, -1.0, 0.0, ())
    path = PathStart("host", "hbm", "gather", curve, curve)
    right = CurveStart(0.0, 0.0, 1e9, 0.0, ())
    sure = PathStart("host", "hbm", "gather", right, right, 1.0)
    for start in (
        LoadStart("measured", "here", "0123", (path,)),
        LoadStart("measured", "here", "0123", (sure,)),
        LoadStart("guessed", "here", "0123", ()),
    ):
        with pytest.raises(RecordingError, match="record anew"):
            LoadPriors.of_told(start)


def test_paths_that_no_engine_has_are_not_carried() -> None:
    curve = LoadCurve(0.0, 0.0, 1e9)
    prior = Prior(PriorKind.PUBLISHED, curve, curve)
    paths = {LinkPath("host", "hbm", f"mover {n}"): prior for n in range(1_000)}
    told = LoadPriors(PriorKind.PUBLISHED, "there", "0123", paths).told()
    assert told is not None
    assert told.paths == ()
