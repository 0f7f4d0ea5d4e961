"""The model that a setting or an option names: one of the presets, or a config.json."""

from __future__ import annotations

from pathlib import Path

from kvready.kernels.hf_config import read_model
from kvready.kernels.model_shape import ModelShape
from kvready.kernels.presets import PRESETS, preset


def model_from(name: str, kv_dtype: str | None = None) -> ModelShape:
    """A preset by its name, else the file or folder of that name. Raises `LayoutError`.

    `kv_dtype`: the engine's KV cache dtype, where it is not the one of the file.
    """
    if name.lower() in PRESETS:
        return preset(name)
    path = Path(name)
    return read_model(path, kv_dtype) if path.exists() else preset(name)
