"""What a load costs a batch, by how the engine overlaps the two. Pure formulas, seconds.

With `load` and `compute` of one layer each, over equal layers. `layerwise`: layer by layer, a layer
computes once it is loaded and the one before it is computed. `before_admission`: the request is
parked until its load is done, while others run. `blocking`: the whole batch waits for the load.
"""

from __future__ import annotations

from kvready.collectors.records import OverlapMode


def usable_batch_seconds(
    mode: OverlapMode, layers: int, load_seconds: float, compute_seconds: float
) -> float:
    """From the load's start until a batch that needs it has been computed, both of all layers."""
    if mode is not OverlapMode.LAYERWISE:
        return load_seconds + compute_seconds
    layers = max(layers, 1)
    load, compute = load_seconds / layers, compute_seconds / layers
    # The slower of the two is never idle; the other shows only its first or its last layer.
    return max(load_seconds + compute, load + compute_seconds)


def compute_seconds(
    mode: OverlapMode, layers: int, load_seconds: float, whole_seconds: float
) -> float | None:
    """The compute in a batch that took so long with its load; None where the load hid it."""
    if mode is OverlapMode.BEFORE_ADMISSION or load_seconds <= 0.0:
        return whole_seconds
    if mode is OverlapMode.BLOCKING:
        return whole_seconds - load_seconds if whole_seconds > load_seconds else None
    computed = whole_seconds - load_seconds / max(layers, 1)
    return computed if computed > load_seconds else None


def stall_seconds(
    mode: OverlapMode, layers: int, load_seconds: float, compute_seconds: float
) -> float:
    """How long the batch's compute stands still for the load."""
    if mode is OverlapMode.BEFORE_ADMISSION:
        return 0.0
    return usable_batch_seconds(mode, layers, load_seconds, compute_seconds) - compute_seconds
