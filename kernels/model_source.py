"""The model that a setting or an option names: one of the presets, or a config.json."""

from __future__ import annotations

from pathlib import Path

from kvready.kernels.hf_config import read_model
from kvready.kernels.model_shape import ModelShape
from kvready.kernels.presets import PRESETS, preset


def model_from(name: str) -> ModelShape:
    """A preset by its name, else the file or folder of that name. Raises `LayoutError`."""
    if name.lower() in PRESETS:
        return preset(name)
    path = Path(name)
    return read_model(path) if path.exists() else preset(name)
