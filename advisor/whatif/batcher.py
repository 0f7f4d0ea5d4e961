"""Which prefills a simulated engine runs next: its own order, or Strata's."""

from __future__ import annotations

from kvready.advisor.whatif.admission import Admission
from kvready.advisor.whatif.batch import Batch
from kvready.advisor.whatif.batch_costs import Decodes
from kvready.advisor.whatif.cache import Cache, Match
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.movers import Movers
from kvready.advisor.whatif.scenario import Scenario
from kvready.advisor.whatif.waiting_line import WaitingLine


class Batcher:
    """Plans a batch from those that are in and those that wait."""

    def __init__(
        self,
        scenario: Scenario,
        line: WaitingLine,
        admission: Admission,
        cache: Cache,
        movers: Movers,
    ) -> None:
        self._engine = scenario.engine
        self._line = line
        self._admission = admission
        self._cache = cache
        self._movers = movers

    def plan(self, now_seconds: float, decodes: Decodes) -> Batch | None:
        """The next batch of prefills; None: there is none to be had."""
        batch = Batch()
        budget = self._engine.batch_tokens
        if self._engine.mixed_batches:
            budget -= decodes.requests
        budget -= self._admission.take_begun(batch, budget)
        if self._line:
            self._admit_in_order(now_seconds, batch, budget)
        return batch if batch.shares else None

    def _admit_in_order(self, now_seconds: float, batch: Batch, budget: int) -> None:
        """The engine's own way: in order, up to the first that does not fit."""
        block_tokens = self._cache.block_tokens
        free_blocks = self._cache.room_tokens // block_tokens
        seats = self._admission.seats
        chosen: list[LiveRequest] = []
        for live in self._line.in_order():
            if budget <= 0 or seats <= 0:
                break
            match = self._picked(now_seconds, live)
            needed = -(-self._cache.room_needed(live, match) // block_tokens)
            if needed > free_blocks:
                break
            free_blocks -= needed
            seats -= 1
            chosen.append(live)
            if self._admission.admit(now_seconds, live, match, batch):
                budget -= self._admission.take(live, batch, budget)
                if live.tokens_left:
                    self._admission.begun.append(live)
        for live in chosen:
            self._line.leave(live)

    def _picked(self, now_seconds: float, live: LiveRequest) -> Match:
        match = self._line.match(live)
        if match.disk_blocks:
            self._movers.picked(now_seconds, live)
            match = self._line.match(live)
        return match
