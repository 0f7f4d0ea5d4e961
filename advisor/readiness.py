"""How long until a copy is usable: a cost model of loads, corrected online.

`t = q + a + k * (n * b + bytes / BW)`: q is the work that the mover still has before it, n the
fragments. `b` and `BW` are the link profile's; `a` and `k`, the engine's own overhead and its
factor over the profile, are fitted from the copies seen, one pair per direction.
"""

from __future__ import annotations

from kvready.advisor.fitting import OnlineFit
from kvready.collectors.records import LoadDecided, Tier

REFIT_EVERY = 4  # observations; each of the first 4 refits at once
MODEL = "load-alpha-beta-1"

# A generic link: what one per-page copy and one byte cost before this machine has been measured.
PROFILE_FRAGMENT_SECONDS = 5e-6
PROFILE_BYTES_PER_SECOND = 10e9
PRIOR_OVERHEAD_SECONDS = 1e-3
PRIOR_ENGINE_FACTOR = 1.0
TYPICAL_NOMINAL_SECONDS = 1e-2

Direction = tuple[Tier, Tier]


def nominal_seconds(payload_bytes: int, fragments: int) -> float:
    """What the link profile says a copy takes, without overhead or contention."""
    return fragments * PROFILE_FRAGMENT_SECONDS + payload_bytes / PROFILE_BYTES_PER_SECOND


class LoadModel:
    """Seconds of a copy in one direction, once the mover takes it up."""

    def __init__(self) -> None:
        self._fit = OnlineFit(
            prior=(PRIOR_OVERHEAD_SECONDS, PRIOR_ENGINE_FACTOR),
            typical_features=(1.0, TYPICAL_NOMINAL_SECONDS),
            prior_observations=2.0,
            half_life=128.0,
        )
        self._refits = 0

    @property
    def version(self) -> str:
        """Names the coefficients that a forecast was made with."""
        return f"{MODEL}.{self._refits}"

    @property
    def overhead_seconds(self) -> float:
        """The fitted fixed cost of one copy."""
        return self._fit.coefficients[0]

    @property
    def engine_factor(self) -> float:
        """The fitted factor over the link profile."""
        return self._fit.coefficients[1]

    def service_seconds(self, payload_bytes: int, fragments: int) -> float:
        """Predicted seconds from the mover's start to ready."""
        return self._fit.predict((1.0, nominal_seconds(payload_bytes, fragments)))

    def learn(self, payload_bytes: int, fragments: int, actual_seconds: float) -> None:
        """Take in one finished copy."""
        if actual_seconds <= 0.0:
            return
        self._fit.learn((1.0, nominal_seconds(payload_bytes, fragments)), actual_seconds)
        if self._fit.observations <= REFIT_EVERY or self._fit.observations % REFIT_EVERY == 0:
            self._fit.solve()
            self._refits += 1


class Mover:
    """The queue in front of an engine's copy thread: first in, first out, one at a time."""

    def __init__(self) -> None:
        self.models: dict[Direction, LoadModel] = {}

    def model(self, source: Tier, destination: Tier) -> LoadModel:
        """The model of one direction."""
        return self.models.setdefault((source, destination), LoadModel())

    def service_seconds(self, load: LoadDecided) -> float:
        """Predicted seconds of this copy alone."""
        model = self.model(load.source, load.destination)
        return model.service_seconds(load.payload_bytes, load.fragments)
