"""Shapes of known models close with their published numbers of parameters."""

from __future__ import annotations

import dataclasses

import pytest

from kvready.kernels.errors import LayoutError
from kvready.kernels.layout import LATENT
from kvready.kernels.model_shape import Experts
from kvready.kernels.presets import (
    DEEPSEEK_V3,
    LLAMA_8B,
    LLAMA_70B,
    MISTRAL_24B,
    PRESETS,
    QWEN_14B,
    preset,
    preset_layout,
)

# Elements in the published weights.
PUBLISHED_PARAMETERS = {
    LLAMA_8B.name: 8_030_261_248,
    LLAMA_70B.name: 70_553_706_496,
    QWEN_14B.name: 14_770_033_664,
    MISTRAL_24B.name: 23_572_403_200,
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED_PARAMETERS.items())
def test_parameters_are_as_many_as_in_the_published_weights(name: str, published: int) -> None:
    assert preset(name).total_parameters == published


@pytest.mark.parametrize(
    ("shape", "billions"),
    [(LLAMA_8B, 6.979), (QWEN_14B, 13.212), (LLAMA_70B, 68.451), (MISTRAL_24B, 22.230)],
)
def test_matrices_between_the_embeddings_are_counted_apart(shape, billions: float) -> None:
    assert shape.linear_parameters == pytest.approx(billions * 1e9, abs=5e5)
    assert shape.active_linear_parameters == shape.linear_parameters


def test_a_mixture_of_experts_has_its_published_total_and_active_size() -> None:
    assert DEEPSEEK_V3.total_parameters == pytest.approx(671e9, rel=1e-3)
    head = DEEPSEEK_V3.vocab * DEEPSEEK_V3.hidden  # the published figure counts it in
    assert DEEPSEEK_V3.active_linear_parameters + head == pytest.approx(36.6e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "token_bytes", "rank_bytes", "plane_bytes"),
    [
        ("llama-3.1-8b", 1, 131_072, 131_072, 2048),
        ("qwen2.5-14b", 1, 196_608, 196_608, 2048),
        ("Qwen2.5-14B-1M", 1, 196_608, 196_608, 2048),
        ("llama-3.1-70b", 4, 327_680, 81_920, 512),
        ("mistral-small-24b", 1, 163_840, 163_840, 2048),
        ("deepseek-v3", 8, 61 * 576 * 2, 61 * 576 * 2, 1152),
    ],
)
def test_kv_bytes_of_a_token(
    name: str, tensor_parallel: int, token_bytes: int, rank_bytes: int, plane_bytes: int
) -> None:
    layout = preset_layout(name, page_tokens=32, tensor_parallel=tensor_parallel)
    assert layout.kv_bytes_per_token == token_bytes
    assert layout.rank_bytes_per_token == rank_bytes
    assert layout.fragment_bytes == 32 * plane_bytes
    assert (layout.planes_per_layer == LATENT) == (name == "deepseek-v3")


def test_every_preset_holds_together() -> None:
    for name, shape in PRESETS.items():
        assert preset(name.upper()) is shape
        assert shape.check() is shape
        assert shape.layout(16).page_bytes == shape.layout(1).page_bytes * 16


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LayoutError, match=r"no preset 'gpt-2'; .*llama-3\.1-8b.*qwen2\.5-14b-1m"):
        preset("gpt-2")


def test_shapes_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(LayoutError, match="32 attention heads cannot share 5 KV heads"):
        dataclasses.replace(LLAMA_8B, kv_heads=5).check()
    for experts in (Experts(2, 3, 8), Experts(2, 1, 8, dense_layers=33)):
        with pytest.raises(LayoutError, match="experts"):
            dataclasses.replace(LLAMA_8B, experts=experts).check()
