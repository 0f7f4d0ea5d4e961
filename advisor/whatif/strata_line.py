"""Strata's planner on a simulated engine's queue: the code that shadow mode and hooks run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set

import msgspec

from kvready.advisor.adaptive_ratio import AdaptiveRatio
from kvready.advisor.load_start_order import load_start_order
from kvready.advisor.roofline import Chunk, Roofline
from kvready.advisor.strata import BatchLimits, Plan, Settings, Waiting, intended_batch
from kvready.advisor.transient import TransientBlocks
from kvready.advisor.waiting_queue import Match as QueueMatch
from kvready.advisor.waiting_queue import WaitingQueue
from kvready.advisor.whatif.cache import Cache
from kvready.advisor.whatif.link import Link
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.scenario import Policies, QueueOrder
from kvready.collectors.names import OverlapMode

SCANNED_REQUESTS = 128  # a longer queue is planned from its front


class SimCosts:
    """What the planner expects of a batch: the simulator's own costs, summed where those take the
    larger."""

    def __init__(self, roofline: Roofline, load: Link) -> None:
        self._roofline = roofline
        self._load = load

    def load_seconds(self, tokens: int) -> float:
        """Alone on its link."""
        return self._load.copy_seconds(tokens)

    def batch_seconds(self) -> float:
        """With no token in it."""
        return self._roofline.seconds(0.0, 0)

    def compute_seconds(self, new_tokens: int, context_tokens: int) -> float:
        """One request's arithmetic."""
        return self._roofline.flops(Chunk(new_tokens, context_tokens)) / (
            self._roofline.flops_per_second
        )


class StrataLine:
    """Follows who waits, who computes what, and what came and went in the cache."""

    def __init__(
        self,
        settings: Settings,
        policies: Policies,
        overlap: OverlapMode,
        cache: Cache,
        costs: SimCosts,
    ) -> None:
        cache.changed = []
        self._ratio = AdaptiveRatio(settings)
        self._policies = policies
        self._parks = overlap is OverlapMode.BEFORE_ADMISSION
        self._cache = cache
        self._costs = costs
        self._transient = TransientBlocks()
        self._queue = WaitingQueue(self._residency, self._transient, cache.block_tokens)
        self._lives: dict[str, LiveRequest] = {}
        self._promised: dict[str, int] = {}  # from which block on
        self._deferred: set[str] = set()  # in the round before
        self._behind: deque[LiveRequest] = deque()  # beyond what is scanned
        # Whom dedup treats, and for how many awaited tokens; None: all.
        self.may_hold: Callable[[LiveRequest, int], bool] | None = None
        self.aside: Set[int] = frozenset()  # by their order: what they promise holds, they wait

    def join(self, live: LiveRequest, now_seconds: float) -> None:
        """It waits, and promises what it does not find."""
        if len(self._lives) >= SCANNED_REQUESTS:
            self._behind.append(live)
            return
        self._touch()
        request = live.request
        self._lives[request.request_id] = live
        self._queue.arrive(request.request_id, request.prompt_tokens, live.findable_blocks)
        self._promise(self._queue.these([request.request_id], now_seconds))

    def leave(self, live: LiveRequest, now_seconds: float) -> None:
        """It computes from now on."""
        request_id = live.request.request_id
        self._queue.leave(request_id)
        self._transient.dispatch(request_id)
        del self._lives[request_id], self._promised[request_id]
        self._deferred.discard(request_id)
        if self._behind:
            self.join(self._behind.popleft(), now_seconds)

    def computed(self, live: LiveRequest) -> None:
        """What it promised is there."""
        self._touch()
        self._transient.complete(live.request.request_id)
        self._queue.follow(live.request.request_id)

    def round(self, now_seconds: float, limits: BatchLimits) -> tuple[list[LiveRequest], Plan]:
        """Whom to admit, in order."""
        self._touch()
        queue: Sequence[Waiting] = self._queue.waiting(now_seconds)
        self._promise(queue)
        if self._policies.order is QueueOrder.LONGEST_PREFIX:
            queue = sorted(queue, key=lambda waiting: -waiting.context_tokens)
        queue = self._treated(queue)
        settings = self._ratio.settings
        if self._parks:
            # Nothing stands still for a load there: balance is when loads start.
            queue = load_start_order(queue, limits, settings)
            settings = msgspec.structs.replace(settings, balance=False)
        plan = intended_batch(queue, limits, settings, self._costs)
        self._queue.settle(plan, now_seconds)
        self._count_holds(set(plan.deferred), now_seconds)
        return [self._lives[admission.request_id] for admission in plan.admitted], plan

    def _treated(self, queue: Sequence[Waiting]) -> Sequence[Waiting]:
        """Who may run; who is not treated waits for nobody."""
        if self.aside:
            queue = [one for one in queue if self._lives[one.request_id].order not in self.aside]
        if self.may_hold is None:
            return queue
        may_hold, lives = self.may_hold, self._lives
        return [
            waiting
            if not waiting.awaited_tokens
            or may_hold(lives[waiting.request_id], waiting.awaited_tokens)
            else msgspec.structs.replace(waiting, awaited_tokens=0)
            for waiting in queue
        ]

    def see(self, plan: Plan, stall_seconds: float, batch_seconds: float) -> None:
        """A planned batch ran."""
        self._ratio.see(plan, stall_seconds, batch_seconds)

    def _residency(self, chain: Sequence[int]) -> QueueMatch:
        return QueueMatch(*self._cache.residency(chain, self._policies.load_hits))

    def _touch(self) -> None:
        if changed := self._cache.changed:
            self._cache.changed = []
            self._queue.removed(changed)  # it is not told which of them came and which went
            self._queue.stored(changed)

    def _promise(self, queue: Sequence[Waiting]) -> None:
        """What a request finds can shrink while it waits: then it will compute more."""
        block_tokens, promised = self._cache.block_tokens, self._promised
        for waiting in queue:
            start = waiting.context_tokens // block_tokens
            known = promised.get(waiting.request_id)
            if known is None or start < known:
                promised[waiting.request_id] = start
                chain = self._lives[waiting.request_id].findable_blocks
                self._transient.promise(chain, start, waiting.request_id)

    def _count_holds(self, deferred: set[str], now_seconds: float) -> None:
        for request_id in deferred - self._deferred:
            self._lives[request_id].held_since_seconds = now_seconds
        for request_id in self._deferred - deferred:
            live = self._lives[request_id]
            if live.held_since_seconds is not None:
                live.outcome.held_seconds += now_seconds - live.held_since_seconds
                live.held_since_seconds = None
        self._deferred = deferred
