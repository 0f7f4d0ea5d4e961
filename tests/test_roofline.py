"""The roofline gives the figures worked out for the paper's models and machine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from story import Story

from kvready.advisor.compute import ComputeModel, ComputePrior, batch_features
from kvready.advisor.load_priors import NO_PROFILE
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.roofline import GPUS, Chunk, Roofline
from kvready.advisor.service.runner import compute_prior, open_recording
from kvready.advisor.settings import load_settings
from kvready.collectors.compute_start import ComputeStart
from kvready.collectors.errors import RecordingError, SettingsError
from kvready.collectors.records import BatchMember
from kvready.kernels.model_shape import ModelShape
from kvready.kernels.presets import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, MISTRAL_24B, QWEN_14B

LINK = 48e9  # bytes a second, of each rank
MODELS = {"8b": (LLAMA_8B, 1), "14b": (QWEN_14B, 1), "70b": (LLAMA_70B, 4), "24b": (MISTRAL_24B, 1)}
H200 = GPUS["h200"]


def on_h200(name: str, fixed_seconds: float = 4e-3) -> Roofline:
    shape, ranks = MODELS[name]
    return Roofline(shape, H200, ranks, fixed_seconds=fixed_seconds)


def rank_bytes(name: str) -> float:
    shape, ranks = MODELS[name]
    return shape.layout(1).kv_bytes_per_token / ranks


# How long recomputing a prefix takes over loading it, both by themselves.
RECOMPUTE_OVER_LOAD = {
    2_000: (10.7, 13.5, 41, 27),
    8_000: (11.9, 15, 44, 28),
    21_600: (14.5, 18, 49, 31),
    54_800: (21, 26, 62, 37),
    100_000: (30, 37, 79, 46),
}


@pytest.mark.parametrize("prefix", RECOMPUTE_OVER_LOAD)
def test_recompute_over_load_is_as_published_models_have_it(prefix: int) -> None:
    for name, expected in zip(MODELS, RECOMPUTE_OVER_LOAD[prefix], strict=True):
        seconds = on_h200(name, fixed_seconds=0.0).batch_seconds([Chunk(prefix, 0)])
        assert seconds / (prefix * rank_bytes(name) / LINK) == pytest.approx(expected, rel=0.03)


# How many tokens a load may bring per new token while the batch's compute hides it.
BREAK_EVEN = {
    (1, 16, 21_600): (182, 168, 429, 267),
    (1, 32, 54_800): (101, 95, 225, 144),
    (1, 64, 21_600): (45, 42, 107, 67),
    (8, 16, 21_600): (35, 33, 76, 45),
    (16, 64, 21_600): (20, 24, 60, 36),
}


@pytest.mark.parametrize("batch", BREAK_EVEN)
def test_break_even_ratios_are_as_published_models_have_them(batch: tuple[int, int, int]) -> None:
    requests, new, context = batch
    for name, expected in zip(MODELS, BREAK_EVEN[batch], strict=True):
        seconds = on_h200(name).batch_seconds([Chunk(new, context)] * requests)
        ratio = seconds * LINK / (rank_bytes(name) * requests * new)
        assert ratio == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("name", "seconds"), [("8b", 0.86), ("14b", 1.62)])
def test_a_whole_document_takes_as_long_as_worked_out(name: str, seconds: float) -> None:
    chunks = [Chunk(21_613, 0)]
    assert on_h200(name).batch_seconds(chunks) == pytest.approx(seconds, rel=0.02)


def test_a_decode_step_reads_the_weights_and_the_context() -> None:
    seconds = on_h200("8b").batch_seconds([Chunk(1, 999)] * 4)
    read = LLAMA_8B.total_parameters * 2 + 4_000 * 131_072
    assert seconds == pytest.approx(4e-3 + read / 4.8e12)


def test_of_a_mixture_of_experts_a_token_computes_with_few_but_all_are_read() -> None:
    roofline = Roofline(DEEPSEEK_V3, H200, tensor_parallel=8)
    assert roofline.weight_bytes == pytest.approx(2 * 671e9, rel=0.01)
    assert roofline.flops(Chunk(1_000, 0)) < 2 * 45e9 * 1_000


SHAPES = [LLAMA_8B, QWEN_14B, LLAMA_70B]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.name))
@pytest.mark.parametrize("gpu", GPUS)
def test_as_a_prior_it_is_never_quicker_and_at_most_twice_as_slow(
    gpu: str, shape: ModelShape
) -> None:
    roofline = Roofline(shape, GPUS[gpu])
    model = ComputeModel(roofline.prior("x"))
    for chunks in ([(512, 0)], [(16, 20_000)], [(8_192, 40_000)], [(64, 2_000)] * 16):
        members = [BatchMember("r", new, context, True) for new, context in chunks]
        exact = roofline.batch_seconds([Chunk(*chunk) for chunk in chunks])
        # but for reading the context and the last layer's head, left out for batches with prefill
        assert 0.75 * exact <= model.batch_seconds(members) <= 2.0 * exact
    decodes = [BatchMember("r", 1, 4_000, False)] * 32
    exact = roofline.batch_seconds([Chunk(1, 4_000)] * 32)
    assert 0.99 * exact <= model.batch_seconds(decodes) <= 2.0 * exact


def test_evidence_replaces_the_prior_and_keeps_its_proportions_where_there_is_none() -> None:
    """An engine three times slower than its data sheet, seen with short contexts only."""
    model = ComputeModel(on_h200("8b").prior("x"))
    before = model.batch_seconds([BatchMember("r", 512, 30_000, True)])
    for n in range(200):
        members = [BatchMember("r", 256 + 16 * (n % 16), 64 * (n % 4), True)]
        costs = zip(model.prior.prefill, batch_features(members), strict=True)
        model.learn(members, 3.0 * math.fsum(c * f for c, f in costs))
    after = model.batch_seconds([BatchMember("r", 512, 30_000, True)])
    assert after == pytest.approx(3.0 * before, rel=0.1)


def prior_of(**calibration: object) -> ComputePrior:
    flags = {f"calibration.{name}": value for name, value in calibration.items()}
    return compute_prior(load_settings(flags=flags).settings.calibration)


def test_settings_that_name_a_gpu_and_a_model_start_from_their_roofline() -> None:
    prior = prior_of(gpu="H200", model="llama-3.1-70b", tensor_parallel=4)
    expected = Roofline(LLAMA_70B, H200, 4).prior("llama-3.1-70b on 4 h200")
    assert prior == expected
    assert "assumed" in prior.described
    assert prior_of().name == "generic"


def test_half_a_description_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"calibration\.gpu says nothing without"):
        prior_of(gpu="h200")
    with pytest.raises(SettingsError, match=r"calibration\.model says nothing without"):
        prior_of(model="llama-3.1-8b")
    with pytest.raises(SettingsError, match="choose from a100"):
        prior_of(gpu="h2000", model="llama-3.1-8b")


def test_a_replay_starts_from_what_the_run_started_from(tmp_path: Path) -> None:
    prior = prior_of(gpu="h200", model="llama-3.1-8b")
    story = Story()
    story.arrives(1.0, "a", tuple(range(10)))
    story.batch(1.0, 1.1, BatchMember("a", 328, 0, True))
    story.first_token(1.1, "a")
    pairs = []
    pipeline = Pipeline(pairs.append, compute_prior=prior)
    with open_recording(tmp_path / "run.kvr", NO_PROFILE, prior) as writer:
        for item in story.told:
            writer.write(item)
            pipeline.ingest(item)
    again = []
    played = play(tmp_path / "run.kvr", lambda pair, line: again.append(pair))
    assert again == pairs
    assert played.pipeline.compute_prior == prior
    assert all("+roofline:" in pair.forecast.model_version for pair in pairs)
    assert pairs != story.pairs


def test_costs_of_no_engine_are_refused() -> None:
    good = prior_of(gpu="h200", model="llama-3.1-8b").told()
    assert good is not None
    assert ComputePrior.of_told(good).told() == good
    for bad in (
        ComputeStart("x", "x", good.prefill[:4], good.decode),
        ComputeStart("x", "x", (math.inf, *good.prefill[1:]), good.decode),
        ComputeStart("x", "x", (0.0,) * 5, (0.0,) * 3),
    ):
        with pytest.raises(RecordingError, match="upgrade kvready, or record anew"):
            ComputePrior.of_told(bad)
