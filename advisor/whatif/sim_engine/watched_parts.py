"""The simulator's own parts, which tell what happens in them: tiers, links, movers, admission."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvready.advisor.whatif.admission import Admission
from kvready.advisor.whatif.batch import Batch
from kvready.advisor.whatif.cache import Cache, Match
from kvready.advisor.whatif.link import Link
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.movers import Movers
from kvready.advisor.whatif.scenario import EngineLimits, LinkSpec, Scenario
from kvready.advisor.whatif.sim_engine.hidden import Hidden
from kvready.advisor.whatif.sim_engine.round import Order, Round
from kvready.advisor.whatif.tier import Tier
from kvready.advisor.whatif.timeline import Timeline
from kvready.collectors.names import Tier as TierName

NOBODY = ""  # backups are nobody's

Told = Callable[[Sequence[int]], None]


class WatchedTier(Tier):
    """A tier that tells what comes into it and what is evicted."""

    def __init__(self, capacity_blocks: int, on_stored: Told, on_removed: Told) -> None:
        super().__init__(capacity_blocks)
        self._on_stored = on_stored
        self._on_removed = on_removed

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep resident blocks, or bring in new ones, until released."""
        new = [block for block in blocks if block not in self]
        super().hold(blocks)
        if new:
            self._on_stored(new)

    def put(self, blocks: Sequence[int]) -> list[int]:
        """Bring in a chain that nobody holds; returns what that evicted, oldest first."""
        new = [block for block in blocks if block not in self]
        if new:
            self._on_stored(new)
        return super().put(blocks)

    def evict(self, count: int) -> list[int]:
        """So many of those that nobody holds, or all of these; oldest first."""
        evicted = super().evict(count)
        if evicted:
            self._on_removed(evicted)
        return evicted


class HiddenLink(Link):
    """A link whose copies take what they really take, by the mover that is switched on."""

    def __init__(
        self,
        choose: Callable[[], LinkSpec],
        scenario: Scenario,
        hidden: Hidden,
        start_seconds: float,
    ) -> None:
        layout = scenario.shape.layout(scenario.page_tokens, scenario.tensor_parallel)
        super().__init__(choose(), layout, start_seconds)
        self._choose = choose
        self._hidden = hidden

    def copy(self, now_seconds: float, tokens: int) -> float:
        """Order a copy behind those under way; returns when it is done."""
        self.spec = self._choose()
        self.count(tokens)
        begins = max(now_seconds, self.free_seconds)
        nominal = self.copy_seconds(tokens)
        self.free_seconds = begins + self._hidden.copy_seconds(nominal, self.spec.mover, begins)
        return self.free_seconds


class WatchedMovers(Movers):
    """Movers whose backups are told of, and whose loads take their hidden time."""

    def __init__(
        self,
        scenario: Scenario,
        cache: Cache,
        timeline: Timeline,
        start_seconds: float,
        told: Round,
        load: HiddenLink,
        backup: HiddenLink,
    ) -> None:
        super().__init__(scenario, cache, timeline, start_seconds)
        self.load: Link = load
        self.backup: Link = backup
        self._told = told

    def back_up(self, now_seconds: float, blocks: Sequence[int]) -> float:
        """Copy blocks into host memory; returns when they are there."""
        begins = max(now_seconds, self.backup.free_seconds)
        done = super().back_up(now_seconds, blocks)
        if blocks:
            order = Order(NOBODY, TierName.HBM, TierName.HOST, tuple(blocks), begins, done)
            self._told.order(now_seconds, order)
        return done


class WatchedAdmission(Admission):
    """Admission that tells of the loads it orders, and of whom another one's load holds back."""

    def __init__(
        self,
        engine: EngineLimits,
        cache: Cache,
        movers: Movers,
        timeline: Timeline,
        told: Round,
    ) -> None:
        super().__init__(engine, cache, movers, timeline)
        self._unscheduled: dict[int, LiveRequest] = {}  # let in for a load, by their order
        self._told = told

    def admit(self, now_seconds: float, live: LiveRequest, match: Match, batch: Batch) -> bool:
        """Let it in; False where its load has to end before it can be part of a batch."""
        self._told.loading.update(match.load_blocks)
        in_batch = super().admit(now_seconds, live, match, batch)
        if in_batch:
            self._told.loaded(match.load_blocks)
        return in_batch

    def _is_parked(self, now_seconds: float, live: LiveRequest, match: Match) -> bool:
        link = self._movers.load
        begins = max(now_seconds, link.free_seconds)
        if not super()._is_parked(now_seconds, live, match):
            return False
        self._unscheduled[live.order] = live
        request_id = live.request.request_id
        if match.load_blocks:
            order = Order(
                request_id,
                TierName.HOST,
                TierName.HBM,
                match.load_blocks,
                begins,
                link.free_seconds,
            )
            self._told.order(now_seconds, order)
        else:
            self._told.deferred.append(request_id)
        return True

    @property
    def waiting(self) -> list[LiveRequest]:
        """Those that were let in for their load and have not been in a batch yet."""
        return list(self._unscheduled.values())

    def take(self, live: LiveRequest, batch: Batch, budget_tokens: int) -> int:
        """Give a batch as many of its tokens as it may have; returns how many."""
        self._unscheduled.pop(live.order, None)
        return super().take(live, batch, budget_tokens)
