"""The requests that decode together, advanced many steps at once."""

from __future__ import annotations

import heapq

from kvready.advisor.whatif.batch_costs import Decodes
from kvready.advisor.whatif.live_request import LiveRequest


class Decoding:
    """Continuous batching: everybody gains a token a step, and leaves after its last one."""

    def __init__(self) -> None:
        self.requests = 0
        self.context_tokens = 0  # of all
        self._steps = 0  # so far
        self._ends: list[tuple[int, int, LiveRequest]] = []  # by the step that is its last

    @property
    def decodes(self) -> Decodes:
        """What the next step computes."""
        return Decodes(self.requests, self.context_tokens)

    @property
    def steps_to_next_end(self) -> int:
        """Until the first of them leaves; there must be one."""
        return self._ends[0][0] - self._steps

    def contexts(self) -> list[tuple[LiveRequest, int]]:
        """Each with the tokens before its next one, oldest first."""
        return [
            (
                live,
                live.request.prompt_tokens + live.request.output_tokens - 1 - (end - self._steps),
            )
            for end, _, live in sorted(self._ends, key=lambda one: one[1])
        ]

    def join(self, live: LiveRequest) -> None:
        """One whose prefill gave its first token, and that wants more."""
        request = live.request
        self.requests += 1
        self.context_tokens += request.prompt_tokens
        end = self._steps + request.output_tokens - 1
        heapq.heappush(self._ends, (end, live.order, live))

    def advance(self, steps: int) -> list[LiveRequest]:
        """Run so many steps, not beyond the next end; returns who leaves."""
        self._steps += steps
        self.context_tokens += steps * self.requests
        gone = []
        while self._ends and self._ends[0][0] <= self._steps:
            live = heapq.heappop(self._ends)[2]
            self.requests -= 1
            self.context_tokens -= live.request.prompt_tokens + live.request.output_tokens - 1
            gone.append(live)
        return gone
