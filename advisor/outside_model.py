"""What reports alone teach of the wait for a first token: a model that can be frozen at a moment.

No cache is seen from outside: what is known of a request when it arrives is the length of its
prompt, how those before it fared, and, where metrics are scraped, how many waited and ran at the
last scrape. How many tokens they had is not told. The depth is used while it has foretold queueing
better than the middle of late ones has.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from kvready.advisor.fitting import OnlineFit
from kvready.advisor.intervals import Interval, Intervals

MODEL = "outside-2"
MIN_LEARNED = 8  # requests; with fewer there is no model worth scoring
QUEUE_WINDOW = 32  # requests whose queueing stands for the present one's
REFIT_EVERY = 8  # requests
PRIOR_FIXED_SECONDS = 2e-2
PRIOR_SECONDS_PER_TOKEN = 1e-4
TYPICAL_PROMPT_TOKENS = 1_024.0
HALF_LIFE_REQUESTS = 128.0
ALL_SHAPES = "all"
PRIOR_DEPTH = (1e-3, 0.1, 1e-3)  # seconds: of an empty engine, a waiting and a running request
TYPICAL_DEPTH = (1.0, 2.0, 8.0)
SMALLEST_QUEUE_SECONDS = 5e-3
EARNED_OVER = 32.0  # requests over which the depth must have told more than the median
USUAL_RATE = 1.0 / HALF_LIFE_REQUESTS
LARGEST_VOTE = 0.5  # of one request, in logarithms of how far off it was


class BackcastTarget(StrEnum):
    """What is predicted from outside; each is scored apart."""

    TTFT = "ttft"
    QUEUE = "queue"


class Depth(NamedTuple):
    """Requests in an engine, as its gauges said."""

    waiting: float
    running: float

    @property
    def features(self) -> tuple[float, float, float]:
        """What queueing is fitted to."""
        return 1.0, self.waiting, self.running


class Frozen(NamedTuple):
    """The model as it stood after so many requests."""

    learned: int
    queue_seconds: float
    depth_costs: tuple[float, ...]  # empty: the depth tells no more than the median
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

    def outlook(
        self, target: BackcastTarget, prompt_tokens: int, depth: Depth | None = None
    ) -> Interval:
        """The wait of a request that arrives with this prompt, behind so many others."""
        predicted_seconds = self.queue_seconds
        if depth is not None and self.depth_costs:
            costs = zip(self.depth_costs, depth.features, strict=True)
            predicted_seconds = sum(cost * number for cost, number in costs)
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
        self._by_depth = OnlineFit(
            prior=PRIOR_DEPTH,
            typical_features=TYPICAL_DEPTH,
            half_life=HALF_LIFE_REQUESTS,
            smallest=SMALLEST_QUEUE_SECONDS,
        )
        self._usual_queue_seconds = 0.0
        self._depth_earned = 0.0
        self._intervals = {target: Intervals() for target in BackcastTarget}

    def learn(
        self,
        prompt_tokens: int,
        ttft_seconds: float,
        queue_seconds: float | None,
        depth: Depth | None = None,
    ) -> None:
        """Take in one request's waits. Where its queueing is not told, it counts as service."""
        if queue_seconds is not None:
            if depth is not None:
                self._learn_depth(depth, queue_seconds)
            self._queues.append(queue_seconds)
        service_seconds = max(ttft_seconds - (queue_seconds or 0.0), 0.0)
        self._fit.learn((1.0, float(prompt_tokens)), service_seconds)
        self._learned += 1
        if self._learned <= REFIT_EVERY or self._learned % REFIT_EVERY == 0:
            self._fit.solve()

    def _learn_depth(self, depth: Depth, queue_seconds: float) -> None:
        fit = self._by_depth
        if self._queues and fit.observations >= MIN_LEARNED:
            nearer = _distance(median(self._queues), queue_seconds) - _distance(
                fit.predict(depth.features), queue_seconds
            )
            self._depth_earned *= 1.0 - 1.0 / EARNED_OVER
            self._depth_earned += min(max(nearer, -LARGEST_VOTE), LARGEST_VOTE)
        # Relative to what is usual: a wait of nothing would weigh more than all long ones.
        self._usual_queue_seconds += USUAL_RATE * (queue_seconds - self._usual_queue_seconds)
        fit.learn(depth.features, queue_seconds, scale=self._usual_queue_seconds)
        if fit.observations <= REFIT_EVERY or fit.observations % REFIT_EVERY == 0:
            fit.solve()

    def frozen(self) -> Frozen:
        """The model as it stands; later learning leaves it alone."""
        fixed_seconds, seconds_per_token = self._fit.coefficients
        return Frozen(
            learned=self._learned,
            queue_seconds=median(self._queues) if self._queues else 0.0,
            depth_costs=tuple(self._by_depth.coefficients) if self._depth_earned > 0.0 else (),
            fixed_seconds=fixed_seconds,
            seconds_per_token=seconds_per_token,
            intervals={
                target: kept.around(ALL_SHAPES, 1.0) for target, kept in self._intervals.items()
            },
        )


def _distance(predicted_seconds: float, actual_seconds: float) -> float:
    """How far off, as a logarithm; short waits are all alike."""
    predicted = predicted_seconds + SMALLEST_QUEUE_SECONDS
    return abs(math.log(predicted / (actual_seconds + SMALLEST_QUEUE_SECONDS)))
