"""Which prefills a simulated engine runs next: its own order, or Strata's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from kvready.advisor.roofline import Roofline
from kvready.advisor.strata import BatchLimits, fill_steps
from kvready.advisor.whatif.admission import Admission
from kvready.advisor.whatif.batch import Batch
from kvready.advisor.whatif.batch_costs import Decodes
from kvready.advisor.whatif.cache import Cache, Match
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.movers import Movers
from kvready.advisor.whatif.naive_reorder import (
    IDLE_DELAY_SECONDS,
    LONGEST_DEFERRAL_SECONDS,
    naive_order,
)
from kvready.advisor.whatif.scenario import QueueOrder, Scenario
from kvready.advisor.whatif.strata_line import SimCosts, StrataLine
from kvready.advisor.whatif.timeline import Timeline
from kvready.advisor.whatif.waiting_line import WaitingLine
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import OverlapMode


class Batcher:
    """Plans batches from those that are in and those that wait."""

    def __init__(
        self,
        scenario: Scenario,
        roofline: Roofline,
        cache: Cache,
        movers: Movers,
        timeline: Timeline,
    ) -> None:
        self.line = WaitingLine(scenario.policies, cache)
        self.admission = Admission(scenario.engine, cache, movers, timeline)
        self._engine = scenario.engine
        self._policies = policies = scenario.policies
        self._cache = cache
        self._movers = movers
        self._timeline = timeline
        self._is_naive = policies.order is QueueOrder.NAIVE_REORDER
        self._aside: Set[int] = frozenset()
        self._strata = None
        if policies.strata is not None:
            if self._is_naive:
                raise SettingsError(
                    "naive_reorder is a policy of its own: drop it, or Strata's policies"
                )
            costs = SimCosts(roofline, movers.load)
            overlap = scenario.engine.overlap
            self._strata = StrataLine(policies.strata, policies, overlap, cache, costs)

    def join(self, now_seconds: float, live: LiveRequest, match: Match) -> None:
        """A request waits from now on, with what it matched on arrival."""
        self.line.join(live, match)
        self._movers.want(now_seconds, live, match)
        if self._strata is not None:
            self._strata.join(live, now_seconds)
        if self._is_naive and live.wants_load:
            for delay in (IDLE_DELAY_SECONDS, LONGEST_DEFERRAL_SECONDS):
                self._timeline.at(now_seconds + delay, _look_again, live)

    def hold_only(self, may_hold: Callable[[LiveRequest, int], bool]) -> None:
        """Dedup defers these, by how many tokens they wait for, and nobody else."""
        if self._strata is not None:
            self._strata.may_hold = may_hold

    def pass_over(self, orders: Set[int]) -> None:
        """Those, by their order, may not run yet; the set may change."""
        self._aside = orders
        if self._strata is not None:
            self._strata.aside = orders

    def computed(self, live: LiveRequest) -> None:
        """Its prefill is done, its blocks are in the cache."""
        if self._strata is not None:
            self._strata.computed(live)

    def ran(self, batch: Batch, stall_seconds: float, batch_seconds: float) -> None:
        """A batch takes so long, of which it stands still for its load."""
        if self._strata is not None and batch.plan is not None:
            self._strata.see(batch.plan, stall_seconds, batch_seconds)

    def fill_steps(self, load_seconds: float, compute_seconds: float, step_seconds: float) -> int:
        """Decode steps to put before a batch while it loads."""
        strata = self._policies.strata
        if strata is None or not strata.decode_fill:
            return 0
        return fill_steps(load_seconds, compute_seconds, step_seconds)

    def plan(self, now_seconds: float, decodes: Decodes) -> Batch | None:
        """The next batch of prefills; None: there is none to be had."""
        batch = Batch()
        budget = self._engine.batch_tokens
        if self._engine.mixed_batches:
            budget -= decodes.requests
        budget -= self.admission.take_begun(batch, budget)
        if not self.line:
            pass
        elif self._strata is not None:
            self._admit_planned(self._strata, now_seconds, batch, budget)
        elif self._is_naive:
            ready = self._not_deferred(now_seconds, decodes.requests > 0)
            self._admit(now_seconds, ready, batch, budget)
        else:
            self._admit(now_seconds, self.line.in_order(), batch, budget)
        return batch if batch.shares else None

    def _admit_planned(
        self, strata: StrataLine, now_seconds: float, batch: Batch, budget: int
    ) -> None:
        """As Strata's planner says; where loads park a request its tokens leave room for more."""
        engine, admission = self._engine, self.admission
        while budget > 0 and admission.seats > 0 and self.line:
            # The planner counts whole blocks; whether somebody fits is decided on admission.
            slack = 1 + min(admission.seats, len(self.line))
            limits = BatchLimits(
                batch_tokens=budget,
                batch_requests=admission.seats,
                free_blocks=self._cache.room_tokens // self._cache.block_tokens + slack,
                request_tokens=engine.chunk_tokens or None,
                block_tokens=self._cache.block_tokens,
            )
            chosen, batch.plan = strata.round(now_seconds, limits)
            admitted, budget = self._admit(now_seconds, chosen, batch, budget)
            for live in admitted:
                strata.leave(live, now_seconds)
            if not admitted or engine.overlap is not OverlapMode.BEFORE_ADMISSION:
                return

    def _admit(
        self, now_seconds: float, lives: Iterable[LiveRequest], batch: Batch, budget: int
    ) -> tuple[list[LiveRequest], int]:
        """In order, up to the first that does not fit; returns who is in, and the tokens left."""
        admission = self.admission
        admitted: list[LiveRequest] = []
        for live in lives:
            if budget <= 0 or admission.seats <= 0:
                break
            if live.order in self._aside:
                continue
            match = self.line.match(live)
            if not self._cache.has_room(live, match):
                break
            if self._movers.picked(now_seconds, live):
                match = self.line.match(live)
            admitted.append(live)
            is_in = admission.admit(now_seconds, live, match, batch)
            self._movers.admitted(now_seconds, live)
            if is_in:
                budget -= admission.take(live, batch, budget)
                if live.tokens_left:
                    admission.begun.append(live)
        for live in admitted:
            self.line.leave(live)
        return admitted, budget

    def _not_deferred(self, now_seconds: float, is_decoding: bool) -> list[LiveRequest]:
        ready, deferred = naive_order(
            self.line.in_order(), self.line.match, now_seconds, is_decoding
        )
        for live in deferred:
            if live.held_since_seconds is None:
                live.held_since_seconds = now_seconds
        return ready


def _look_again(_now_seconds: float, _live: LiveRequest) -> None:
    """Time has passed: that alone lets the engine plan anew."""
