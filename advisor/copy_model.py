"""Seconds that one mover takes for a copy in one direction: a link's curve, made an engine's own.

`t = (a + k * curve * (1 + s * shared)) * scale`. `a` is the engine's overhead and `k` its factor
over the curve, `s` what loads of other directions cost while they run, as far as they do. All are
fitted to the copies seen; `scale` follows their pace.
"""

from __future__ import annotations

import math

import msgspec

from kvready.advisor.fitting import OnlineFit
from kvready.advisor.load_priors import TYPICAL_COPY_SECONDS, Prior, PriorKind
from kvready.advisor.online_scale import OnlineScale
from kvready.collectors.records import CopyMethod, Tier

REFIT_EVERY = 4  # observations; each of the first 4 refits at once
PRIOR_FACTOR = 1.0
PRIOR_SHARING = 0.0  # both ways at full speed, until copies tell otherwise
HALF_LIFE_COPIES = 128.0  # what is quicker is the scale's to follow
SMALLEST_FACTOR, LARGEST_FACTOR = 0.5, 2.0  # outside, a calibration is of something else
COPIES_TO_JUDGE = 16
SMALLEST_TOLD_FACTOR = 1e-6


class CopyCalibration(msgspec.Struct, frozen=True):
    """How one mover's copies compare with what was believed of them."""

    source: Tier
    destination: Tier
    method: CopyMethod | None  # None: the engine does not tell
    evidence: PriorKind
    calibration_id: str
    copies: int
    factor: float  # of the engine over the curve
    overhead_seconds: float
    scale: float  # of late
    stale: bool

    @property
    def distance(self) -> float:
        """How far the engine is from the curve, whichever way."""
        return abs(math.log(max(self.factor, SMALLEST_TOLD_FACTOR)))


class CopyModel:
    """What is learned of one mover in one direction."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.scale = OnlineScale()
        self.refits = 0
        self._fit = OnlineFit(
            prior=(prior.overhead_seconds, PRIOR_FACTOR, PRIOR_SHARING),
            typical_features=(1.0, TYPICAL_COPY_SECONDS, TYPICAL_COPY_SECONDS / 2.0),
            prior_observations=2.0,
            half_life=HALF_LIFE_COPIES,
        )

    @property
    def copies(self) -> int:
        """Copies learned from."""
        return self._fit.observations

    @property
    def overhead_seconds(self) -> float:
        """What the engine adds to a copy, whatever its size."""
        return self._fit.coefficients[0]

    @property
    def factor(self) -> float:
        """How much longer the engine takes than the curve says."""
        return self._fit.coefficients[1]

    @property
    def is_stale(self) -> bool:
        """Whether a profile speaks of another link than the one these copies cross."""
        if self.prior.kind is PriorKind.GENERIC or self.copies < COPIES_TO_JUDGE:
            return False
        return not SMALLEST_FACTOR <= self.factor <= LARGEST_FACTOR

    def seconds(
        self,
        payload_bytes: int,
        fragments: int,
        *,
        beside_compute: bool = False,
        shared_ratio: float = 0.0,
    ) -> float:
        """Predicted seconds from the mover's start to ready.

        `shared_ratio` of that time, copies of other directions are under way on the same link.
        """
        nominal = self.prior.seconds(payload_bytes, fragments, beside_compute=beside_compute)
        overhead, factor, sharing = self._fit.coefficients
        return (overhead + nominal * (factor + sharing * shared_ratio)) * self.scale.value

    def seconds_per_byte(
        self,
        payload_bytes: int,
        fragments: int,
        *,
        beside_compute: bool = False,
        shared_ratio: float = 0.0,
    ) -> float:
        """By how much `seconds` grow with bytes in fragments of this size: they are affine."""
        if not payload_bytes:
            return 0.0
        nominal = self.prior.seconds(payload_bytes, fragments, beside_compute=beside_compute)
        twice = self.prior.seconds(2 * payload_bytes, 2 * fragments, beside_compute=beside_compute)
        _, factor, sharing = self._fit.coefficients
        growth = (factor + sharing * shared_ratio) * self.scale.value
        return (twice - nominal) * growth / payload_bytes

    def learn(
        self,
        payload_bytes: int,
        fragments: int,
        actual_seconds: float,
        *,
        beside_compute: bool = False,
        shared_ratio: float = 0.0,
    ) -> None:
        """Take in one finished copy."""
        nominal = self.prior.seconds(payload_bytes, fragments, beside_compute=beside_compute)
        features = (1.0, nominal, nominal * shared_ratio)
        if self.copies >= REFIT_EVERY:  # before, the fit itself jumps
            self.scale.learn(self._fit.predict(features), actual_seconds)
        self._fit.learn(features, actual_seconds)
        if self.copies <= REFIT_EVERY or self.copies % REFIT_EVERY == 0:
            self._fit.solve()
            self.refits += 1
