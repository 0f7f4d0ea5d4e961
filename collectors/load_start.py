"""What the load model of a run started from, as a recording's header carries it.

Equal recordings give equal forecasts only where both start alike, and a link profile may be gone by
the time of a replay. Numbers only: what they mean is the load model's own affair.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_PATHS = 1_024  # tiers by tiers by movers by their workers, with room for more of each
MAX_KNOTS = 64
MAX_NAME_CHARACTERS = 256

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]


class CurveStart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Seconds of a copy: overhead, per fragment, bytes per second, and knots per octave."""

    overhead_seconds: float
    fragment_seconds: float
    bytes_per_second: float
    first_octave: float
    knots: Annotated[tuple[float, ...], Meta(max_length=MAX_KNOTS)]


class PathStart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One mover in one direction, alone and beside compute. Its usual workers come first."""

    source: Name
    destination: Name
    mover: Name
    quiet: CurveStart
    contended: CurveStart
    factor: float = 4.0  # first copies lie within so many times; the default is what it was untold
    workers: int = 0  # that the mover was timed with; 0: untold


class LoadStart(msgspec.Struct, frozen=True):
    """Every path's curves, and whose figures they are."""

    kind: Name
    name: Name
    calibration_id: Name
    paths: Annotated[tuple[PathStart, ...], Meta(max_length=MAX_PATHS)]
