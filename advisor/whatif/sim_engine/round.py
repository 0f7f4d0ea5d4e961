"""What one round of a simulated scheduler leads to besides a batch, until it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvready.advisor.whatif.timeline import Timeline
from kvready.advisor.whatif.watcher import Watcher
from kvready.collectors.names import DeferReason, Tier


class Order(NamedTuple):
    """A copy that was ordered: whose, from where to where, and when it runs."""

    request_id: str
    source: Tier
    destination: Tier
    blocks: tuple[int, ...]
    begins_seconds: float
    done_seconds: float


class Round:
    """Gathers orders and deferrals, which are told behind their batch; places copies in time."""

    def __init__(
        self, watcher: Watcher, timeline: Timeline, parents: Mapping[int, int | None]
    ) -> None:
        self.deferred: list[str] = []  # for a load that another one ordered
        self.held: list[str] = []  # by a policy
        self.aside: list[str] = []  # for what is not there yet, by the engine itself
        self.loading: set[int] = set()  # in HBM for whoever waits for them, not yet findable
        self.now = 0.0
        self.planning = False  # then orders are told behind the batch; else at once
        self._watcher = watcher
        self._timeline = timeline
        self._parents = parents
        self._orders: list[tuple[float, int, Order]] = []
        self._copies = 0

    def order(self, now: float, order: Order) -> None:
        """A copy was ordered."""
        self._copies += 1
        self._orders.append((now, self._copies, order))
        self._timeline.at(order.begins_seconds, self._started, self._copies)
        self._timeline.at(order.done_seconds, self._ready, (self._copies, order))
        if not self.planning:
            self._tell_orders()

    def tell(self, now: float) -> None:
        """Tell what was gathered, behind the batch."""
        self._tell_orders()
        for request_id in self.deferred:
            self._watcher.deferred(now, request_id, DeferReason.LOAD)
        for request_id in self.held:
            self._watcher.deferred(now, request_id, DeferReason.HOLD)
        for request_id in self.aside:
            self._watcher.deferred(now, request_id, DeferReason.OTHER)
        for told in (self.deferred, self.held, self.aside):
            told.clear()

    def _tell_orders(self) -> None:
        orders, self._orders = self._orders, []
        for ordered, load_id, order in orders:
            self._watcher.ordered(
                ordered,
                load_id,
                order.request_id,
                order.source,
                order.destination,
                len(order.blocks),
            )

    def loaded(self, blocks: Sequence[int]) -> None:
        """Blocks that were loaded can be found from now on."""
        self.loading.difference_update(blocks)
        self._stored(Tier.HBM, blocks)

    def in_hbm(self, blocks: Sequence[int]) -> None:
        """Blocks came into HBM; those that are being loaded are told when they are there."""
        self._stored(Tier.HBM, [block for block in blocks if block not in self.loading])

    def out_of_hbm(self, blocks: Sequence[int]) -> None:
        """Blocks left HBM."""
        self._watcher.removed(self.now, Tier.HBM, blocks)

    def in_host(self, blocks: Sequence[int]) -> None:
        """Blocks came into host memory."""
        self._stored(Tier.HOST, blocks)

    def out_of_host(self, blocks: Sequence[int]) -> None:
        """Blocks left host memory."""
        self._watcher.removed(self.now, Tier.HOST, blocks)

    def _stored(self, tier: Tier, blocks: Sequence[int]) -> None:
        """Told chain by chain."""
        begin = 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or self._parents.get(blocks[end]) != blocks[end - 1]:
                parent = self._parents.get(blocks[begin])
                self._watcher.stored(self.now, tier, blocks[begin:end], parent)
                begin = end

    def _started(self, now: float, load_id: int) -> None:
        self.now = now
        self._watcher.started(now, load_id)

    def _ready(self, now: float, copy: tuple[int, Order]) -> None:
        self.now = now
        load_id, order = copy
        if order.destination is Tier.HBM:
            self.loaded(order.blocks)
        self._watcher.ready(now, load_id)
