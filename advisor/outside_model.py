"""What reports alone teach of the wait for a first token: a model that can be frozen at a moment.

No cache is seen from outside, and no queue: what is known of a request when it arrives is the
length of its prompt, and how those before it fared.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from kvready.advisor.fitting import OnlineFit
from kvready.advisor.intervals import Interval, Intervals

MODEL = "outside-1"
MIN_LEARNED = 8  # requests; with fewer there is no model worth scoring
QUEUE_WINDOW = 32  # requests whose queueing stands for the present one's
REFIT_EVERY = 8  # requests
PRIOR_FIXED_SECONDS = 2e-2
PRIOR_SECONDS_PER_TOKEN = 1e-4
TYPICAL_PROMPT_TOKENS = 1_024.0
HALF_LIFE_REQUESTS = 128.0
ALL_SHAPES = "all"


class BackcastTarget(StrEnum):
    """What is predicted from outside; each is scored apart."""

    TTFT = "ttft"
    QUEUE = "queue"


class Frozen(NamedTuple):
    """The model as it stood after so many requests."""

    learned: int
    queue_seconds: float
    fixed_seconds: float
    seconds_per_token: float
    intervals: dict[BackcastTarget, Interval]  # around a second

    @property
    def version(self) -> str:
        """Names what a backcast was made with."""
        return f"{MODEL}.{self.learned}"

    @property
    def is_usable(self) -> bool:
        """Whether it has seen enough."""
        return self.learned >= MIN_LEARNED

    def outlook(self, target: BackcastTarget, prompt_tokens: int) -> Interval:
        """The wait of a request that arrives with this prompt."""
        predicted_seconds = self.queue_seconds
        if target is BackcastTarget.TTFT:
            predicted_seconds += self.fixed_seconds + self.seconds_per_token * prompt_tokens
        return self.intervals[target].around(predicted_seconds)


class OutsideModel:
    """Learns requests in the order in which they ended."""

    def __init__(self) -> None:
        self._learned = 0
        self._queues: deque[float] = deque(maxlen=QUEUE_WINDOW)
        self._fit = OnlineFit(
            prior=(PRIOR_FIXED_SECONDS, PRIOR_SECONDS_PER_TOKEN),
            typical_features=(1.0, TYPICAL_PROMPT_TOKENS),
            half_life=HALF_LIFE_REQUESTS,
        )
        self._intervals = {target: Intervals() for target in BackcastTarget}

    def learn(self, prompt_tokens: int, ttft_seconds: float, queue_seconds: float | None) -> None:
        """Take in one request's waits. Where its queueing is not told, it counts as service."""
        if queue_seconds is not None:
            self._queues.append(queue_seconds)
        service_seconds = max(ttft_seconds - (queue_seconds or 0.0), 0.0)
        self._fit.learn((1.0, float(prompt_tokens)), service_seconds)
        self._learned += 1
        if self._learned <= REFIT_EVERY or self._learned % REFIT_EVERY == 0:
            self._fit.solve()

    def frozen(self) -> Frozen:
        """The model as it stands; later learning leaves it alone."""
        fixed_seconds, seconds_per_token = self._fit.coefficients
        return Frozen(
            learned=self._learned,
            queue_seconds=median(self._queues) if self._queues else 0.0,
            fixed_seconds=fixed_seconds,
            seconds_per_token=seconds_per_token,
            intervals={
                target: kept.around(ALL_SHAPES, 1.0) for target, kept in self._intervals.items()
            },
        )
