"""How sure a ratio of losses is: blocks of event time drawn again and again.

What happens within a minute hangs together, so single samples say more than they know. The scored
time of all recordings is laid end to end in a ring, and as many blocks of 60 seconds as it is long
are drawn whole from anywhere on it. Their scatter, of the ratio's logarithm, gives the interval,
with the quantile of Student's t for so many blocks: a handful scatters less than it should.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]

BLOCK_SECONDS = 60.0
MIN_BLOCKS = 5  # in all recordings together; fewer say nothing of what other blocks would say
REPLICATES = 2_000
SEED = 20_260_101
CONFIDENCE = 0.95


class Between(msgspec.Struct, frozen=True):
    """A figure with the interval of what other blocks would have made of it."""

    value: float
    low: float | None  # None: too few blocks
    high: float | None
    blocks: int

    @property
    def is_known(self) -> bool:
        """Whether there was enough time to tell."""
        return self.low is not None and self.high is not None


class Track(NamedTuple):
    """One recording's samples: when each was, and two amounts to be summed."""

    seconds: Floats
    upper: Floats
    lower: Floats
    begin_seconds: float
    end_seconds: float

    @property
    def span_seconds(self) -> float:
        """How long its scored time is."""
        return self.end_seconds - self.begin_seconds


def ratio(
    tracks: Sequence[Track], seed: int = SEED, replicates: int = REPLICATES, most: float = math.inf
) -> Between:
    """The sum of all `upper` over that of all `lower`, with its interval, nowhere above `most`."""
    upper = sum(float(track.upper.sum()) for track in tracks)
    lower = sum(float(track.lower.sum()) for track in tracks)
    value = upper / lower if lower > 0.0 else math.nan
    ring = sum(track.span_seconds for track in tracks)
    blocks = int(ring / BLOCK_SECONDS)
    if blocks < MIN_BLOCKS or not value > 0.0:
        return Between(value, None, None, blocks)
    sums = _drawn(tracks, ring, np.random.default_rng(seed), replicates)
    kept = sums[(sums > 0.0).all(axis=1)]
    if len(kept) < replicates / 2:
        return Between(value, None, None, blocks)
    scatter = float(np.log(kept[:, 0] / kept[:, 1]).std()) * math.sqrt(blocks / (blocks - 1.0))
    reach = math.exp(float(stdtrit(blocks - 1, (1.0 + CONFIDENCE) / 2.0)) * scatter)
    return Between(value, min(value / reach, most), min(value * reach, most), blocks)


def _drawn(
    tracks: Sequence[Track], ring: float, generator: np.random.Generator, replicates: int
) -> Floats:
    """Sums of both amounts, a row per replicate."""
    begins = np.cumsum([0.0, *(track.span_seconds for track in tracks)])
    seconds = np.concatenate(
        [
            track.seconds - track.begin_seconds + begin
            for track, begin in zip(tracks, begins, strict=False)
        ]
    )
    amounts = np.concatenate([np.stack([track.upper, track.lower], axis=1) for track in tracks])
    order = np.argsort(seconds, kind="stable")
    # Twice around, so that a block may run over the end.
    twice = np.concatenate([seconds[order], seconds[order] + ring])
    around = np.vstack([amounts[order], amounts[order]])
    before = np.vstack([np.zeros((1, 2)), np.cumsum(around, axis=0)])
    starts = generator.random((replicates, max(1, round(ring / BLOCK_SECONDS)))) * ring
    first = np.searchsorted(twice, starts)
    last = np.searchsorted(twice, starts + BLOCK_SECONDS)
    sums: Floats = (before[last] - before[first]).sum(axis=1)
    return sums
