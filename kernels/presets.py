"""Models whose public configuration is known here, so that a what-if needs no download."""

from __future__ import annotations

from kvready.kernels.errors import LayoutError
from kvready.kernels.layout import KvLayout
from kvready.kernels.model_shape import Experts, LatentAttention, ModelShape

LLAMA_8B = ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256)
QWEN_14B = ModelShape("qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064, qkv_bias=True)
MISTRAL_24B = ModelShape("mistral-small-24b", 40, 5120, 32, 8, 128, 32768, 131072)
DEEPSEEK_V3 = ModelShape(
    "deepseek-v3", 61, 7168, 128, 128, 192, 18432, 129280,
    latent=LatentAttention(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, query_rank=1536),
    experts=Experts(count=256, per_token=8, ffn=2048, shared=1, dense_layers=3),
)  # fmt: skip

PRESETS = {shape.name: shape for shape in (LLAMA_8B, LLAMA_70B, QWEN_14B, MISTRAL_24B, DEEPSEEK_V3)}
ALIASES = {"qwen2.5-14b-1m": QWEN_14B.name}  # a longer context, the same shape


def preset(name: str) -> ModelShape:
    """A model by its name in any case. Raises `LayoutError` that names the known ones."""
    wanted = name.lower()
    shape = PRESETS.get(ALIASES.get(wanted, wanted))
    if shape is None:
        known = ", ".join(sorted(PRESETS | ALIASES))
        raise LayoutError(f"no preset {name!r}; choose from {known}, or give a config.json")
    return shape


def preset_layout(name: str, page_tokens: int, tensor_parallel: int = 1) -> KvLayout:
    """A model's KV state in pages. Raises `LayoutError`."""
    return preset(name).layout(page_tokens, tensor_parallel)
