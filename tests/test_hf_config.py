"""Configurations of models: read where the KV state is dense, refused where it is not."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.errors import KernelError, LayoutError, UnsupportedModel
from kvready.kernels.hf_config import read_model
from kvready.kernels.model_shape import ModelShape
from kvready.kernels.presets import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, MISTRAL_24B, QWEN_14B

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_LARGE = LLAMA | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64,
}  # fmt: skip
QWEN = LLAMA | {
    "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 13824,
    "num_hidden_layers": 48, "num_attention_heads": 40, "vocab_size": 152064,
    "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 48,
}  # fmt: skip
QWEN_LONG = QWEN | {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}}
MISTRAL = LLAMA | {
    "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768,
    "num_hidden_layers": 40, "head_dim": 128, "vocab_size": 131072, "sliding_window": None,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
}  # fmt: skip


def without(config: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in keys}


def numbers(shape: ModelShape) -> dict[str, object]:
    return without(asdict(shape), "name")


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (LLAMA, LLAMA_8B),
        (LLAMA_LARGE, LLAMA_70B),
        (QWEN, QWEN_14B),
        (QWEN_LONG, QWEN_14B),
        (MISTRAL, MISTRAL_24B),
        (DEEPSEEK, DEEPSEEK_V3),
    ],
)
def test_public_configurations_give_the_presets(
    config: dict[str, object], shape: ModelShape
) -> None:
    assert numbers(read_model(config)) == numbers(shape)


def make_model() -> ModuleType:
    path = Path(__file__).parents[1] / "examples/vllm/make_model.py"
    spec = importlib.util.spec_from_file_location("make_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_model_that_tests_serve_has_128_kib_a_token(tmp_path: Path) -> None:
    shape = asdict(make_model().SHAPES["kv-heavy"])
    config = shape | {"model_type": "llama", "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_model(tmp_path)
    assert read == read_model(tmp_path / "config.json")
    assert read.layout(32).kv_bytes_per_token == 131_072
    assert read.total_parameters == pytest.approx(20e6, rel=0.05)


def test_without_kv_heads_every_head_has_its_own() -> None:
    for config in (without(LLAMA, "num_key_value_heads"), LLAMA | {"num_key_value_heads": None}):
        assert read_model(config).kv_heads == 32


def test_head_dim_is_derived_unless_it_is_given_or_the_family_fixes_it() -> None:
    assert read_model(without(MISTRAL, "head_dim")).head_dim == 160
    assert read_model(LLAMA | {"head_dim": 64}).head_dim == 64
    assert read_model(LLAMA | {"model_type": "qwen3", "hidden_size": 2048}).head_dim == 128
    with pytest.raises(LayoutError, match="give head_dim"):
        read_model(LLAMA | {"hidden_size": 4097})


def test_the_language_part_of_a_multimodal_model_is_read() -> None:
    vision = {"model_type": "pixtral", "hidden_size": 1024, "image_size": 1540}
    nested = {
        "model_type": "mistral3", "torch_dtype": "bfloat16", "vision_config": vision,
        "text_config": without(MISTRAL, "torch_dtype"),
    }  # fmt: skip
    assert numbers(read_model(nested)) == numbers(MISTRAL_24B)
    omni = {"thinker_config": {"text_config": QWEN | {"model_type": "qwen2_5_vl_text"}}}
    assert numbers(read_model(omni)) == numbers(QWEN_14B)


@pytest.mark.parametrize(
    ("config", "kv_dtype", "size"),
    [
        (LLAMA, None, 2),
        (LLAMA, "auto", 2),
        (LLAMA, "fp8", 1),
        (LLAMA, "fp8_e5m2", 1),
        (LLAMA | {"dtype": "float32"}, None, 4),
        (LLAMA | {"torch_dtype": "torch.float16"}, None, 2),
        (without(LLAMA, "torch_dtype"), "bfloat16", 2),
    ],
)
def test_kv_state_is_kept_as_the_engine_says_or_as_the_weights_are(
    config: dict[str, object], kv_dtype: str | None, size: int
) -> None:
    assert read_model(config, kv_dtype).layout(1).dtype_bytes == size


def test_a_checkpoint_that_quantizes_kv_state_wants_the_engine_s_word_for_it() -> None:
    quantized = {**DEEPSEEK, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    with pytest.raises(LayoutError, match="KV cache dtype"):
        read_model(quantized)
    assert read_model(quantized, "fp8").layout(1).dtype_bytes == 1


def test_fp8_halves_the_bytes_of_a_token() -> None:
    assert read_model(DEEPSEEK, "fp8").layout(1).kv_bytes_per_token == 61 * 576


@pytest.mark.parametrize(
    "more",
    [
        {"model_type": "gemma2"},
        {"model_type": "gpt_oss"},
        {"model_type": "mamba2"},
        {"model_type": "qwen3_next"},
        {"model_type": "llama4"},
        {"is_encoder_decoder": True},
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "mistral"},  # whose code takes a window where none is named
        {"sliding_window": 4096, "use_sliding_window": True},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["linear_attention"] * 32},
        {"mamba_d_state": 16},
        {"ssm_cfg": {}},
        {"linear_num_key_heads": 16},
        {"full_attention_interval": 4},
        {"attn_layer_period": 8},
        {"hybrid_override_pattern": "M-M*"},
        {"attention_chunk_size": 8192},
        {"index_topk": 2048},
        {"cross_attention_layers": [3, 8]},
        {"num_kv_shared_layers": 10},
    ],
)
def test_other_than_dense_attention_in_one_group_is_unsupported(more: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModel):
        read_model(LLAMA | more)
    with pytest.raises(UnsupportedModel):
        read_model({"model_type": "outer", "text_config": LLAMA | more})


def test_dense_layers_may_be_named_one_by_one_and_switched_off_windows_kept() -> None:
    dense = {"layer_types": ["full_attention"] * 48, "sliding_window": 4096}
    for switched in ({"use_sliding_window": False}, {}):
        config = without(QWEN, "use_sliding_window") | dense | switched
        assert numbers(read_model(config)) == numbers(QWEN_14B)
    assert numbers(read_model(LLAMA | {"attention_chunk_size": None})) == numbers(LLAMA_8B)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads",
                                 "intermediate_size", "vocab_size"])  # fmt: skip
@pytest.mark.parametrize("value", ["4096", -1, 0, 10**30, True, 4096.0, [], float("nan"), None])
def test_a_nonsense_number_is_refused_by_its_name(key: str, value: object) -> None:
    with pytest.raises(LayoutError, match=key) as caught:
        read_model(LLAMA | {key: value})
    assert not isinstance(caught.value, UnsupportedModel)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"model_type": None}, "model_type"),
        ({"torch_dtype": None}, "torch_dtype"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"torch_dtype": 16}, "dtype"),
        ({"num_key_value_heads": 5}, "5 KV heads"),
        ({"num_key_value_heads": 64}, "64 KV heads"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"text_config": [1]}, "nested"),
        ({"text_config": {"text_config": {"text_config": LLAMA}}}, "more than 3 deep"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(more: dict[str, object], named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        read_model(LLAMA | more)


def test_latent_attention_needs_all_its_ranks() -> None:
    for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        with pytest.raises(LayoutError, match=key):
            read_model(without(DEEPSEEK, key))
    assert read_model(DEEPSEEK | {"q_lora_rank": None}).latent is not None


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list").write_text("[]")
    (tmp_path / "cut").write_text('{"model_type": "llama"')
    (tmp_path / "deep").write_text("[" * 200_000)
    (tmp_path / "latin").write_bytes(b'{"model_type": "\xe9"}')
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("none", ".", "pipe", "list", "cut", "deep", "latin", "huge", "n\0l"):
        with pytest.raises(LayoutError, match=r"config\.json|right file"):
            read_model(tmp_path / name)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(sorted({str(v) for v in {**QWEN, **DEEPSEEK}.values()})),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner,
                                                                 max_size=3),
    max_leaves=6,
)  # fmt: skip
keys = st.sampled_from(
    sorted({*QWEN, *DEEPSEEK, "layer_types", "text_config", "dtype", "head_dim", "num_experts"})
)


@given(
    st.sampled_from((LLAMA, QWEN, MISTRAL, DEEPSEEK)),
    st.dictionaries(keys, values, max_size=6),
    st.none() | st.text(max_size=8),
)
def test_any_configuration_gives_a_shape_or_one_of_our_errors(
    config: dict[str, object], more: dict[str, object], kv_dtype: str | None
) -> None:
    try:
        shape = read_model(config | more, kv_dtype)
    except KernelError:
        return
    assert shape.layout(16).kv_bytes_per_token > 0
    assert shape.total_parameters > shape.linear_parameters >= shape.active_linear_parameters > 0


@given(st.dictionaries(st.text(max_size=8) | st.integers(), values, max_size=6) | values)
def test_any_json_is_refused_as_such(
    tmp_path_factory: pytest.TempPathFactory, content: object
) -> None:
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(LayoutError):
        read_model(path)
