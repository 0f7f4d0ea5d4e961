"""Predictions judged beside rivals: what each may know, what is scored, what is told."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from served import KVREADY
from story import Story

from kvready.advisor.evaluation.evaluation import check
from kvready.advisor.evaluation.gathering import Gathered, Gatherer, gather
from kvready.advisor.evaluation.repeats import differences
from kvready.advisor.evaluation.results import OWN, Evaluation, GroupKind
from kvready.advisor.evaluation.rivals import AlphaBeta, Boosted, Constant, Rival
from kvready.advisor.evaluation.run import evaluate
from kvready.advisor.evaluation.samples import (
    FEATURES,
    ROUTER_FEATURES,
    TIER_FEATURES,
    Bounds,
    Known,
    Sample,
)
from kvready.advisor.evaluation.scores import covered, pinball
from kvready.advisor.evaluation.split import own, period_of, predict, rows_of
from kvready.advisor.evaluation.text import print_evaluation
from kvready.advisor.ledger import PairState, Target
from kvready.advisor.load_priors import NO_PROFILE
from kvready.advisor.playback import play
from kvready.collectors.errors import RecordingError
from kvready.collectors.recording import (
    Provenance,
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from kvready.collectors.slicing import Slice
from kvready.kernels.profile import Cost, Curve, LinkProfile, Machine, write_profile
from kvready.kernels.profile import Provenance as Whose

RECORDED = Path(__file__).parents[1] / "examples/recordings/vllm-0.32-cpu-kv-heavy.kvr"


@pytest.fixture(scope="module")
def run() -> Gathered:
    return gather(RECORDED)


# What was known ------------------------------------------------------------------------------

Told = dict[tuple[Target, str, int, float], tuple[Known, Bounds]]


def told_until(items: list[Any], ingest: int) -> Told:
    """Each forecast made before a record, by what it was of."""
    gatherer = Gatherer(NO_PROFILE)
    made: Told = {}
    for item in items:
        gatherer.take(item)
    last = next(item.received_seconds for item in items if item.ingest == ingest)
    for sample in gatherer.samples:
        if sample.made_seconds < last:
            key = sample.target, sample.request, sample.part, sample.starts_seconds
            made[key] = sample.known, sample.bounds
    return made


@settings(max_examples=20)
@given(st.data())
def test_what_comes_later_changes_nothing_that_was_known(
    told_story: Story, data: st.DataObject
) -> None:
    told = told_story.told
    cut = data.draw(st.integers(len(told) // 3, len(told) - 10))
    later = [item.record for item in told[cut:]]
    shuffled = data.draw(st.permutations(later))
    other = told[:cut] + [
        msgspec.structs.replace(item, record=record)
        for item, record in zip(told[cut:], shuffled, strict=True)
    ]
    straight, turned = told_until(told, cut), told_until(other, cut)
    both = straight.keys() & turned.keys()
    assert both
    for key in both:
        # NaN is unknown in both: compare what is written down.
        assert repr(straight[key]) == repr(turned[key])


def test_a_request_is_described_as_it_stood_at_its_arrival(run: Gathered) -> None:
    for sample in run.samples:
        known = sample.known
        assert all(value >= 0.0 or value != value for value in known.row(FEATURES))
        if sample.target in (Target.TTFT, Target.PREFILL):
            assert 0.0 <= known.prefix_ratio < 1.0
            uncached = known.input_tokens * (1.0 - known.prefix_ratio)
            assert known.uncached_input_tokens == pytest.approx(uncached)
        if sample.target is Target.LOAD:
            assert known.load_bytes == sample.size
            assert sample.mover == "dma_per_page"
    waits = {sample.known.waiting_requests for sample in run.samples}
    assert len(waits) > 3, "the queue is seen"


def test_routers_are_told_neither_tiers_nor_bytes() -> None:
    assert not set(ROUTER_FEATURES) & set(TIER_FEATURES)
    assert not [name for name in ROUTER_FEATURES if "load" in name or "host" in name]


# Thirds --------------------------------------------------------------------------------------


def test_rivals_learn_from_what_ended_in_the_first_third_alone(run: Gathered) -> None:
    period = period_of(run)
    rows = rows_of(run, Target.TTFT, period)
    whole = period.end_seconds - min(sample.made_seconds for sample in run.samples)
    assert (period.end_seconds - period.begin_seconds) / whole == pytest.approx(2 / 3)
    assert max(sample.ended_seconds for sample in rows.learned) <= period.begin_seconds
    assert min(sample.made_seconds for sample in rows.scored) >= period.begin_seconds
    changed = [msgspec.structs.replace(one, actual_seconds=99.0) for one in rows.scored]
    for rival in (Constant(), AlphaBeta(Target.TTFT)):
        before = predict(rival, rows, refit=False)
        after = predict(rival, rows._replace(scored=changed), refit=False)
        for one, other in zip(before, after, strict=True):
            assert np.array_equal(one, other)
        learning = predict(rival, rows, refit=True)
        assert not np.array_equal(learning.p50, before.p50)


def test_refitting_uses_nothing_that_had_not_ended(run: Gathered) -> None:
    period = period_of(run)
    rows = rows_of(run, Target.TTFT, period)

    class Witness(Constant):
        """Notes until when it was told outcomes, and what it was asked then."""

        def fit(self, samples: Any) -> None:
            self.told_until = max(sample.ended_seconds for sample in samples)
            super().fit(samples)

        def predict(self, samples: Any) -> Any:
            assert self.told_until <= min(sample.made_seconds for sample in samples)
            asked.extend(samples)
            return super().predict(samples)

    asked: list[Sample] = []
    predict(Witness(), rows, refit=True)
    assert asked == rows.scored


# Rivals --------------------------------------------------------------------------------------


def sample_of(known: Known, seconds: float, at: float) -> Sample:
    return Sample(
        target=Target.TTFT,
        shape_cell="",
        tier="",
        mover="",
        starts_seconds=at,
        made_seconds=at,
        actual_seconds=seconds,
        bounds=Bounds(1.0, 1.0, 1.0, 1.0),
        known=known,
        request="",
        part=0,
        size=0,
    )


@pytest.fixture(scope="module")
def lawful() -> list[Sample]:
    """Outcomes that follow the uncached tokens and the host's, with noise of a known law."""
    random = np.random.default_rng(6)
    samples = []
    for number in range(700):
        new, host = random.uniform(10, 500), random.choice([0.0, 2_000.0])
        seconds = (0.02 + new * 1e-3 + host * 2e-4) * float(np.exp(0.2 * random.normal()))
        known = Known(
            input_tokens=new + host,
            prefix_ratio=host / (new + host),
            uncached_input_tokens=new,
            new_tokens=new,
            host_tokens=host,
        )
        samples.append(sample_of(known, seconds, float(number)))
    return samples


def test_rivals_learn_the_law_and_cover_what_they_say(lawful: list[Sample]) -> None:
    learned, scored = lawful[:250], lawful[250:]
    actual = np.array([sample.actual_seconds for sample in scored])
    rivals: list[Rival] = [
        Constant(),
        AlphaBeta(Target.TTFT),
        Boosted("boosted", ROUTER_FEATURES + TIER_FEATURES),
    ]
    losses = []
    for rival in rivals:
        rival.fit(learned)
        found = rival.predict(scored)
        losses.append(float(pinball(actual, found.p50, 0.5).mean()))
        assert 0.84 <= covered(actual, found).mean() <= 0.96
        assert 0.84 <= (actual <= found.p90).mean() <= 0.96
    assert losses[2] < losses[1] < losses[0]
    perfect = np.array(
        [0.02 + s.known.new_tokens * 1e-3 + s.known.host_tokens * 2e-4 for s in scored]
    )
    assert losses[2] < 1.4 * pinball(actual, perfect, 0.5).mean(), (
        "trees are tuned, not a straw man"
    )


# Repeats -------------------------------------------------------------------------------------


def test_requests_are_found_again_by_order_or_by_id_and_only_of_one_size(run: Gathered) -> None:
    ids = {name: f"again {number}" for name, number in run.arrivals.items()}
    slower = [
        msgspec.structs.replace(
            sample,
            request=ids.get(sample.request, ""),
            actual_seconds=sample.actual_seconds + 0.25,
        )
        for sample in run.samples
    ]
    again = msgspec.structs.replace(
        run, samples=slower, arrivals={ids[name]: place for name, place in run.arrivals.items()}
    )
    apart = differences(run.samples, run, again)
    batches = np.array([sample.target is Target.BATCH_COMPUTE for sample in run.samples])
    assert np.isnan(apart[batches]).all()
    assert apart[~batches] == pytest.approx(0.25)
    larger = [msgspec.structs.replace(sample, size=sample.size + 1) for sample in slower]
    other = msgspec.structs.replace(again, samples=larger)
    assert np.isnan(differences(run.samples, run, other)).all()
    mixed = msgspec.structs.replace(run, arrivals=dict(reversed(run.arrivals.items())))
    same = differences(run.samples, run, mixed)
    assert same[~batches] == pytest.approx(0.0), "by id, whatever the order"


# From files to figures -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    curve = Curve("host", "hbm", "dma_per_page", "torch", 1, False, cost=Cost(1e-4, 0.0, 2.8e9))
    path = tmp_path_factory.mktemp("profiles") / "links.json"
    made = LinkProfile("the recorded machine", Whose.MEASURED, Machine("cpu", 2, "linux"), (curve,))
    write_profile(made, path)
    return path


@pytest.fixture(scope="module")
def printed(profile: Path) -> bytes:
    ended = subprocess.run(
        [*KVREADY, "evaluate", RECORDED, "--target", "load", "--link-profile", profile, "--json"],
        capture_output=True,
        check=True,
        timeout=300,
    )
    return ended.stdout


@pytest.fixture(scope="module")
def evaluation(printed: bytes) -> Evaluation:
    return msgspec.json.decode(printed, type=Evaluation)


def test_the_bundled_recording_is_judged_on_the_pairs_that_a_replay_makes(
    evaluation: Evaluation, run: Gathered
) -> None:
    pairs = []
    play(RECORDED, lambda pair, line: pairs.append(pair))
    begin = period_of(run).begin_seconds
    loads = [
        pair
        for pair in pairs
        if pair.forecast.target is Target.LOAD
        and pair.state is PairState.PAIRED
        and pair.forecast.made_seconds >= begin
    ]
    (target,) = evaluation.targets
    whole = target.groups[0]
    assert whole.kind is GroupKind.ALL
    assert whole.samples == target.scored == len(loads)
    ours = whole.scores[OWN]
    errors = [pair.signed_error_seconds for pair in loads]
    assert ours.median_signed_error_seconds == pytest.approx(np.median(errors))
    assert ours.median_absolute_error_seconds == pytest.approx(np.median(np.abs(errors)))
    assert ours.coverage_ratio == pytest.approx(np.mean([pair.covered for pair in loads]))
    assert ours.bad_ratio == pytest.approx(np.mean([pair.bad for pair in loads]))
    assert evaluation.evidence == "measured"
    assert evaluation.recordings[0].conditions["model"] == "kv-heavy"


def test_each_model_is_scored_on_the_same_samples_and_shapes_make_up_the_whole(
    evaluation: Evaluation,
) -> None:
    (target,) = evaluation.targets
    models = [OWN, "constant", "alpha-beta", "llm-d features", "+ tier, bytes"]
    for group in target.groups:
        assert list(group.scores) == models
    whole = target.groups[0]
    for kind in (GroupKind.TIER, GroupKind.SHAPE):
        parts = [group for group in target.groups if group.kind is kind]
        assert sum(group.samples for group in parts) == whole.samples
        for model in models:
            mean = sum(
                group.samples * group.scores[model].interval_score_seconds for group in parts
            )
            expected = whole.scores[model].interval_score_seconds * whole.samples
            assert mean == pytest.approx(expected)
    for against in whole.against:
        ours, theirs = whole.scores[OWN], whole.scores[against.rival]
        expected = ours.pinball_p50_seconds / theirs.pinball_p50_seconds
        assert against.pinball_p50.value == pytest.approx(expected)


def test_first_loads_are_judged_from_three_starts(evaluation: Evaluation, run: Gathered) -> None:
    rows = evaluation.first_loads
    assert [row.evidence for row in rows] == ["generic", "published", "measured"]
    assert {row.copies for row in rows} == {50}
    loads = sorted(
        (sample for sample in run.samples if sample.target is Target.LOAD),
        key=lambda sample: sample.made_seconds,
    )[:50]
    actual, ours = np.array([sample.actual_seconds for sample in loads]), own(loads)
    assert rows[0].coverage_ratio == pytest.approx(covered(actual, ours).mean())
    error = np.median(np.abs(actual - ours.p50))
    assert rows[0].median_absolute_error_seconds == pytest.approx(error)
    assert "the recorded machine" in rows[2].starts_from


def test_what_is_told_fits_eighty_columns_and_hides_no_loss(evaluation: Evaluation) -> None:
    console = Console(width=80, file=io.StringIO())
    print_evaluation(evaluation, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    for expected in ("llm-d features", "First loads", "without intervals", "fewer than 20"):
        assert expected in " ".join(text.split())
    (target,) = evaluation.targets
    worse = [one.rival for one in target.groups[0].against if one.pinball_p50.value > 1.0]
    assert all(any(f"against {rival}" in note for note in evaluation.notes) for rival in worse)


def test_json_carries_every_number(printed: bytes) -> None:
    plain = json.loads(printed)
    assert {"seed", "block_seconds", "nominal_coverage_ratio", "targets", "notes"} <= plain.keys()
    score = plain["targets"][0]["groups"][0]["scores"]["kvready"]
    assert {"pinball_p90_seconds", "median_width_ratio", "coverage_ratio"} <= score.keys()


# What cannot be judged -----------------------------------------------------------------------


def part_of(path: Path, seconds: float) -> Path:
    source = read_recording(RECORDED)
    with RecordingWriter(path, source.header) as writer:
        for item in Slice(0.0, seconds).of(source):
            writer.write(item)
    return path


def test_a_recording_that_is_too_short_says_how_much_is_needed(tmp_path: Path) -> None:
    short = part_of(tmp_path / "short.kvr", 15.0)
    with pytest.raises(RecordingError, match="needs at least 60"):
        evaluate([short])


def test_one_run_told_twice_is_refused(tmp_path: Path) -> None:
    part = part_of(tmp_path / "part.kvr", 40.0)
    for files, repeats in (([part], [part]), ([part, part], [])):
        with pytest.raises(RecordingError, match="is the same run"):
            evaluate(files, repeats)


def test_what_was_cut_off_is_told_and_several_recordings_stand_together(tmp_path: Path) -> None:
    part = part_of(tmp_path / "part.kvr", 45.0)
    damaged = part_of(tmp_path / "damaged.kvr", 40.0)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    found = evaluate([part, damaged], targets=[Target.FETCH])
    assert [bool(one.damage) for one in found.recordings] == [False, True]
    assert found.targets == [], "it has no disk tier"


def test_kinds_of_evidence_are_never_merged(run: Gathered) -> None:
    header = RecordingHeader(Provenance.SIMULATED, 0.0, "test")
    simulated = msgspec.structs.replace(run, header=header)
    assert check([simulated, simulated]) == "simulated"
    with pytest.raises(RecordingError, match="never judged together"):
        check([run, simulated])


def test_too_little_to_learn_from_leaves_kvready_alone(recording: Path) -> None:
    found = evaluate([recording], targets=[Target.LOAD])
    (target,) = found.targets
    assert target.without_rivals
    assert list(target.groups[0].scores) == [OWN]
    assert any("no rival could learn" in note for note in found.notes)
    assert found.evidence == "simulated"
