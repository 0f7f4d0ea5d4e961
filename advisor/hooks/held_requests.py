"""How long each request may be held, and how long the holds of this engine lasted. Pure.

A hold pays while what it waits for comes sooner than the request could compute it by itself. So it
is given that long, as leaders were seen to compute here, and some patience; and never longer than
the operator's bound, whatever was predicted. What is over is over: a request whose time has passed
is not held again.
"""

from __future__ import annotations

import math
from collections import Counter

PATIENCE = 2.0  # times the predicted seconds
LEAST_SECONDS = 0.25  # predictions of less than a few steps are worth little
SPEED_WEIGHT = 0.2  # of the latest pass in the running mean


class LeaderSpeed:
    """Tokens a second that one prefill advances by, as a running mean."""

    def __init__(self) -> None:
        self.tokens_per_second = 0.0  # 0: none seen yet

    def saw(self, tokens: int, seconds: float) -> None:
        """One prefill advanced so far between two passes."""
        if tokens <= 0 or seconds <= 0.0:
            return
        speed = tokens / seconds
        known = self.tokens_per_second
        self.tokens_per_second = speed if not known else known + SPEED_WEIGHT * (speed - known)


class HeldRequests:
    """Deadlines by request, from its first hold on."""

    def __init__(self, hold_seconds: float, speed: LeaderSpeed) -> None:
        self.overdue = 0  # requests let go at their deadlines
        self.holds = 0  # requests that were held
        self.soonest_seconds = math.inf  # until the first deadline of those in this round
        self._bound_seconds = hold_seconds
        self._speed = speed
        self._deadline_seconds: dict[str, float] = {}  # how long each may be held in all
        self._over: set[str] = set()

    def begin(self) -> None:
        """A round of questions begins."""
        self.soonest_seconds = math.inf

    def may_hold(self, request_id: str, awaited_tokens: int, held_seconds: float) -> bool:
        """Whether its time is not over yet. The first question sets the time."""
        deadline = self._deadline_seconds.get(request_id)
        if deadline is None:
            deadline = self._deadline_seconds[request_id] = self._patience(awaited_tokens)
            self.holds += 1
        if held_seconds < deadline:
            self.soonest_seconds = min(self.soonest_seconds, deadline - held_seconds)
            return True
        if request_id not in self._over:
            self._over.add(request_id)
            self.overdue += 1
        return False

    def forget(self, request_id: str) -> None:
        """It waits no longer."""
        self._deadline_seconds.pop(request_id, None)
        self._over.discard(request_id)

    def counts(self) -> Counter[str]:
        """For a log."""
        return Counter(holds=self.holds, overdue=self.overdue)

    def _patience(self, awaited_tokens: int) -> float:
        speed = self._speed.tokens_per_second
        if not speed:
            return self._bound_seconds
        predicted = PATIENCE * awaited_tokens / speed
        return min(max(predicted, LEAST_SECONDS), self._bound_seconds)
