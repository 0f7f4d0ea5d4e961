"""A model's shape from its Hugging Face `config.json`.

Only families whose KV state is known to be dense attention in one group are read. A family that
is not on the list is refused even where its keys look familiar: several leave their sliding or
linear layers to the defaults of their code, and the file does not show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvready.kernels.errors import LayoutError, UnsupportedModel
from kvready.kernels.model_shape import Experts, LatentAttention, ModelShape

MAX_CONFIG_BYTES = 16 << 20
MAX_NUMBER = 1 << 24  # no dimension of a model comes near
MAX_NESTING = 3

DENSE_FAMILIES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl",
     "qwen2_5_vl_text", "qwen3", "qwen3_vl_text", "qwen3_moe"}
)  # fmt: skip
LATENT_FAMILIES = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
NESTED_IN = ("text_config", "thinker_config", "llm_config", "language_config")
# What a family's code takes where its file leaves a key out, if not the plain reading of it.
LEFT_OUT: dict[str, dict[str, int]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
    "qwen3_vl_text": {"head_dim": 128},
}
DTYPE_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "half": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1,
}  # fmt: skip
FULL_ATTENTION = "full_attention"
# Keys that only models with other than dense attention in one group carry.
FOREIGN_STATE = {
    "a state-space or linear part": (
        "mamba", "ssm_", "state_size", "linear_attention", "linear_attn", "linear_num",
        "linear_key_head", "linear_value_head", "full_attention_interval", "rwkv", "lru_",
        "conv_l_cache", "hybrid", "layers_block_type", "layer_group_size", "attn_type_list",
        "block_types", "attn_layer_period", "attn_layer_offset", "attn_layer_indices",
    ),
    "a window or chunks": ("attention_chunk_size", "sliding_window_pattern", "interleaved_sliding"),
    "sparse attention": ("index_topk", "nsa_", "sparse_block"),
    "several groups": ("cross_attention_layers", "num_kv_shared_layers", "global_head_dim"),
}  # fmt: skip


def read_model(config: Path | Mapping[str, object], kv_dtype: str | None = None) -> ModelShape:
    """The shape in a config.json, in the folder of one, or in its content.

    `kv_dtype` is the engine's own setting; without it, or with "auto", KV state is kept as the
    weights are. Raises `LayoutError`, and of it `UnsupportedModel`.
    """
    content = _content(config) if isinstance(config, Path) else config
    text = _text_model(content)
    _refuse_foreign_state(text)
    family = text.get("model_type")
    if not isinstance(family, str):
        raise LayoutError("model_type is missing from the configuration; name the model's family")
    if family not in DENSE_FAMILIES | LATENT_FAMILIES:
        raise UnsupportedModel(
            f"model_type {family!r} is not known to be dense attention in one group; known are "
            f"{', '.join(sorted(DENSE_FAMILIES | LATENT_FAMILIES))}"
        )
    text = {**LEFT_OUT.get(family, {}), **text}
    _refuse_windows(text)
    layers, hidden = _number(text, "num_hidden_layers"), _number(text, "hidden_size")
    heads = _number(text, "num_attention_heads")
    latent = _latent(text) if family in LATENT_FAMILIES else None
    return ModelShape(
        name=_name(content, family),
        layers=layers,
        hidden=hidden,
        q_heads=heads,
        kv_heads=_number(text, "num_key_value_heads", heads),
        head_dim=_head_dim(text, hidden, heads) if latent is None
        else latent.nope_dim + latent.rope_dim,
        ffn=_number(text, "intermediate_size"),
        vocab=_number(text, "vocab_size"),
        kv_dtype_bytes=_dtype_bytes(content, text, kv_dtype),
        tied_embeddings=text.get("tie_word_embeddings") is True,
        qkv_bias=family.startswith("qwen2"),
        latent=latent,
        experts=_experts(text),
    ).check()  # fmt: skip


def _content(path: Path) -> Mapping[str, object]:
    try:
        file = path / "config.json" if path.is_dir() else path
        if file.exists() and not file.is_file():
            raise LayoutError(f"{file} is no file; name a model's config.json")
        with file.open("rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LayoutError(f"cannot read {path}: {reason}; name a model's config.json") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise LayoutError(f"{file} is larger than any model's configuration; name the right file")
    try:
        content = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(f"{file} is not JSON ({error}); name a model's config.json") from error
    if not isinstance(content, dict):
        raise LayoutError(f"{file} holds no configuration; name a model's config.json")
    return content


def _text_model(content: Mapping[str, object]) -> Mapping[str, object]:
    """The part that speaks of the language model, which multimodal configurations nest."""
    for _ in range(MAX_NESTING):
        if content.get("is_encoder_decoder") is True:
            raise UnsupportedModel("an encoder and a decoder keep KV state in several groups")
        nested = next((content[key] for key in NESTED_IN if content.get(key) is not None), None)
        if nested is None:
            return content
        if not isinstance(nested, Mapping):
            raise LayoutError(f"the nested configuration is a {type(nested).__name__}, no object")
        _refuse_foreign_state(content)
        content = nested
    raise LayoutError(f"the configuration nests its language model more than {MAX_NESTING} deep")


def _refuse_foreign_state(text: Mapping[str, object]) -> None:
    """Raise `UnsupportedModel` for keys that tell of more than dense attention."""
    kinds = text.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list | tuple):
            raise LayoutError("layer_types is no list; name each layer's kind of attention")
        other = next((kind for kind in kinds if kind != FULL_ATTENTION), None)
        if other is not None:
            raise UnsupportedModel(
                f"layer_types has {other!r} beside {FULL_ATTENTION}: KV state in several groups "
                "has no single size per token"
            )
    for key, value in text.items():
        if value is None or value is False or value == []:
            continue
        for kind, starts in FOREIGN_STATE.items():
            if str(key).lower().startswith(starts):
                raise UnsupportedModel(
                    f"{key} tells of {kind}, and KV state other than dense attention in one group "
                    "has no single size per token"
                )


def _refuse_windows(text: Mapping[str, object]) -> None:
    window = text.get("sliding_window")
    if window is None or text.get("use_sliding_window") is False:
        return
    switched_by_flag = str(text["model_type"]).startswith("qwen")
    if switched_by_flag and "use_sliding_window" not in text:
        return  # there the window is off unless it is switched on
    raise UnsupportedModel(
        f"sliding_window is {window!r}: tokens before the window keep no KV state; "
        "only a model with sliding_window null is read"
    )


def _number(text: Mapping[str, object], key: str, left_out: int | None = None) -> int:
    """A dimension. Null reads as left out; without a default that is an error."""
    value = text.get(key)
    if value is None:
        if left_out is None:
            raise LayoutError(f"{key} is missing from the configuration")
        return left_out
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NUMBER:
        raise LayoutError(
            f"{key} is {_shown(value)}; a whole number from 1 to {MAX_NUMBER:,} is needed"
        )
    return value


def _head_dim(text: Mapping[str, object], hidden: int, heads: int) -> int:
    if text.get("head_dim") is None and hidden % heads:
        raise LayoutError(
            f"hidden_size {hidden} is no multiple of {heads} attention heads; give head_dim"
        )
    return _number(text, "head_dim", hidden // heads or None)


def _latent(text: Mapping[str, object]) -> LatentAttention:
    return LatentAttention(
        kv_rank=_number(text, "kv_lora_rank"),
        rope_dim=_number(text, "qk_rope_head_dim"),
        nope_dim=_number(text, "qk_nope_head_dim"),
        value_dim=_number(text, "v_head_dim"),
        query_rank=None if text.get("q_lora_rank") is None else _number(text, "q_lora_rank"),
    )


def _experts(text: Mapping[str, object]) -> Experts | None:
    counts = ("n_routed_experts", "num_local_experts", "num_experts")
    key = next((key for key in counts if text.get(key) is not None), None)
    if key is None:
        return None
    for uneven in ("decoder_sparse_step", "moe_layer_freq"):
        if _number(text, uneven, 1) != 1:
            raise UnsupportedModel(f"{uneven} above 1: experts in every other layer are not read")
    if text.get("mlp_only_layers"):
        raise UnsupportedModel("mlp_only_layers: experts in some layers only are not read")
    first = text.get("first_k_dense_replace")
    shared = text.get("n_shared_experts")
    return Experts(
        count=_number(text, key),
        per_token=_number(text, "num_experts_per_tok"),
        ffn=_number(text, "moe_intermediate_size", _number(text, "intermediate_size")),
        shared=0 if shared in (None, 0) else _number(text, "n_shared_experts"),
        dense_layers=0 if first in (None, 0) else _number(text, "first_k_dense_replace"),
    )


def _dtype_bytes(
    content: Mapping[str, object], text: Mapping[str, object], kv_dtype: str | None
) -> int:
    named: object = kv_dtype
    if kv_dtype is None or kv_dtype == "auto":
        if _keeps_kv_otherwise(content):
            raise LayoutError(
                "the checkpoint's quantization_config sets how KV state is kept (kv_cache_scheme), "
                "which engines may or may not follow; say the engine's KV cache dtype"
            )
        places = ((part, key) for part in (text, content) for key in ("dtype", "torch_dtype"))
        named = next((part[key] for part, key in places if part.get(key) is not None), None)
    if named is None:
        raise LayoutError("neither dtype nor torch_dtype is given; say the engine's KV cache dtype")
    size = DTYPE_BYTES.get(named.removeprefix("torch.")) if isinstance(named, str) else None
    if size is None:
        raise LayoutError(
            f"dtype {_shown(named)} is not known; choose from {', '.join(DTYPE_BYTES)}"
        )
    return size


def _keeps_kv_otherwise(content: Mapping[str, object]) -> bool:
    quantized = content.get("quantization_config")
    return isinstance(quantized, Mapping) and quantized.get("kv_cache_scheme") is not None


def _name(content: Mapping[str, object], family: str) -> str:
    name = content.get("_name_or_path")
    # A path would carry the folders of whoever saved the model.
    return name.rstrip("/").rpartition("/")[2] or family if isinstance(name, str) else family


def _shown(value: object) -> str:
    """A value in an error, in short."""
    text = repr(value) if isinstance(value, str | bool | float) else type(value).__name__
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(value) if value.bit_length() < MAX_NUMBER.bit_length() * 2 else "too large"
    return text[:40]
