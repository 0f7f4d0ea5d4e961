"""How long until a copy is usable: a cost model of loads, corrected online.

`t = q + a + k * (n * b + bytes / BW)`, n the fragments. `b` and `BW` are the link profile's; `a`
and `k`, the engine's own overhead and its factor over the profile, are fitted from the copies seen.
`q` is the wait until the mover takes the copy up: all that it still has to do, since it is first
in, first out; and some share of the step that the copy was ordered with, since an engine may submit
copies only after it has launched that step's compute. The share is fitted, per direction.
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
PRIOR_SUBMIT_SECONDS = 1e-3
PRIOR_STEP_SHARE = 0.5  # between submitting before the step's compute (0) and after it (1)
TYPICAL_STEP_SECONDS = 2e-2
HALF_LIFE_COPIES = 32.0  # contention with compute shifts within minutes
SMALLEST_WAIT_SECONDS = 5e-3

Direction = tuple[Tier, Tier]


def nominal_seconds(payload_bytes: int, fragments: int) -> float:
    """What the link profile says a copy takes, without overhead or contention."""
    return fragments * PROFILE_FRAGMENT_SECONDS + payload_bytes / PROFILE_BYTES_PER_SECOND


class LoadModel:
    """Seconds of a copy in one direction: until the mover takes it up, and from then on."""

    def __init__(self) -> None:
        self._service = OnlineFit(
            prior=(PRIOR_OVERHEAD_SECONDS, PRIOR_ENGINE_FACTOR),
            typical_features=(1.0, TYPICAL_NOMINAL_SECONDS),
            prior_observations=2.0,
            half_life=HALF_LIFE_COPIES,
        )
        self._wait = OnlineFit(
            prior=(PRIOR_SUBMIT_SECONDS, PRIOR_STEP_SHARE),
            typical_features=(1.0, TYPICAL_STEP_SECONDS),
            prior_observations=2.0,
            half_life=HALF_LIFE_COPIES,
            smallest=SMALLEST_WAIT_SECONDS,
        )
        self._refits = 0

    @property
    def version(self) -> str:
        """Names the coefficients that a forecast was made with."""
        return f"{MODEL}.{self._refits}"

    @property
    def submit_seconds(self) -> float:
        """The fitted time from an order to its submission, beside the step's share."""
        return self._wait.coefficients[0]

    @property
    def step_share(self) -> float:
        """How much of the step's compute a copy ordered with it waits for."""
        return self._wait.coefficients[1]

    def service_seconds(self, payload_bytes: int, fragments: int) -> float:
        """Predicted seconds from the mover's start to ready."""
        return self._service.predict((1.0, nominal_seconds(payload_bytes, fragments)))

    def wait_seconds(self, step_seconds: float, backlog_seconds: float) -> float:
        """Predicted seconds from the order to the mover's start.

        `step_seconds` is the compute of the batch planned with the order, `backlog_seconds` the
        service that the mover owes to copies before it.
        """
        return self._wait.predict((1.0, step_seconds)) + backlog_seconds

    def learn_service(self, payload_bytes: int, fragments: int, actual_seconds: float) -> None:
        """Take in one finished copy."""
        features = (1.0, nominal_seconds(payload_bytes, fragments))
        self._service.learn(features, actual_seconds)
        self._refit(self._service)

    def learn_wait(
        self, step_seconds: float, backlog_seconds: float, actual_seconds: float
    ) -> None:
        """Take in one copy's time from order to start."""
        beyond_backlog = max(0.0, actual_seconds - backlog_seconds)
        self._wait.learn((1.0, step_seconds), beyond_backlog, scale=actual_seconds)
        self._refit(self._wait)

    def _refit(self, fit: OnlineFit) -> None:
        if fit.observations <= REFIT_EVERY or fit.observations % REFIT_EVERY == 0:
            fit.solve()
            self._refits += 1


class Mover:
    """What is learned of an engine's copy threads: one model per direction."""

    def __init__(self) -> None:
        self.models: dict[Direction, LoadModel] = {}

    def model(self, source: Tier, destination: Tier) -> LoadModel:
        """The model of one direction."""
        return self.models.setdefault((source, destination), LoadModel())

    def service_seconds(self, load: LoadDecided) -> float:
        """Predicted seconds of this copy alone."""
        model = self.model(load.source, load.destination)
        return model.service_seconds(load.payload_bytes, load.fragments)
