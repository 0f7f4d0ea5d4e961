"""What a simulated engine's costs really are: known to nobody else, so that they must be learnt.

A seeded factor for compute and one for each mover, away from what any profile says, and noise on
every single operation: lognormal, with a tail of rare slow ones.
"""

from __future__ import annotations

import math
import random

from kvready.advisor.whatif.sim_engine.faults import Faults

COMPUTE_SPREAD = 1.6  # hidden factors lie between 1/spread and spread
LINK_SPREAD = 2.0
COMPUTE_SIGMA = 0.05  # of the logarithm, per batch
LOAD_SIGMA = 0.12
SLOW_SHARE = 0.01  # of operations that something else disturbs
SLOW_FACTOR = 2.0


class Hidden:
    """True costs of one engine. Seconds; draws follow the order of the operations."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._seed = seed
        self._faults = faults
        self._compute = self._factor("compute", COMPUTE_SPREAD)
        self._movers: dict[str, float] = {}
        self._batch_noise = random.Random(f"{seed}/batches")
        self._load_noise = random.Random(f"{seed}/loads")

    def batch_seconds(self, nominal_seconds: float, now: float) -> float:
        """What a batch really takes."""
        noise = _noise(self._batch_noise, COMPUTE_SIGMA)
        return nominal_seconds * self._compute * noise * self._faults.compute_factor(now)

    def copy_seconds(self, nominal_seconds: float, mover: str, now: float) -> float:
        """What a copy really takes."""
        if mover not in self._movers:
            self._movers[mover] = self._factor(mover, LINK_SPREAD)
        noise = _noise(self._load_noise, LOAD_SIGMA)
        return nominal_seconds * self._movers[mover] * noise * self._faults.load_factor(now)

    def _factor(self, what: str, spread: float) -> float:
        """Log-uniform."""
        drawn = random.Random(f"{self._seed}/{what}").uniform(-1.0, 1.0)
        return math.exp(drawn * math.log(spread))


def _noise(draws: random.Random, sigma: float) -> float:
    slow = SLOW_FACTOR if draws.random() < SLOW_SHARE else 1.0
    return slow * math.exp(draws.gauss(0.0, sigma) - sigma * sigma / 2.0)
