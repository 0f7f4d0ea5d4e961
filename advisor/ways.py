"""The ways of getting something ready, and how long each takes in an engine's overlap mode.

Seconds count from now until every token's KV is in HBM and may be attended to.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.estimates import Estimates
from kvready.advisor.holding import Holding
from kvready.advisor.overlap import usable_batch_seconds
from kvready.advisor.ranges import NOTHING, Range, beyond, later, total
from kvready.advisor.split import best_split
from kvready.collectors.records import OverlapMode, Tier


class WayName(StrEnum):
    """How something may be got ready."""

    LOAD = "load"
    RECOMPUTE = "recompute"
    LOAD_AND_RECOMPUTE = "load_and_recompute"
    WAIT = "wait"
    RUN_OTHER = "run_other"


class Stage(StrEnum):
    """What a way's seconds are spent on; each instant counts once."""

    QUEUE = "queue"  # until the scheduler takes it up
    IN_FLIGHT = "in_flight"  # beyond that, until another request has brought its part
    LINK_WAIT = "link_wait"  # until the mover takes up the copy
    FETCH = "fetch"  # from disk or remote into host memory
    LOAD = "load"  # into HBM; under layerwise overlap only what compute does not hide
    COMPUTE = "compute"


QUEUE, IN_FLIGHT, LINK_WAIT, FETCH, LOAD, COMPUTE = Stage  # read often: a name costs less here


class Way(msgspec.Struct, frozen=True, gc=False):
    """One way with its range; `stages_seconds` split its p50 and sum to it."""

    way: WayName
    ready_seconds: Range
    stages_seconds: dict[Stage, float]
    stalls_batch_seconds: float = 0.0  # p50 in which the whole batch waits for this load
    load_tokens: int = 0
    compute_tokens: int = 0


class Option(msgspec.Struct, frozen=True, gc=False):
    """A way beside what sets it apart: its seconds without those that every way takes."""

    way: Way
    apart: Range


class Load(msgspec.Struct, frozen=True, gc=False):
    """The parts of a load, before any overlap."""

    link_wait: Range
    fetch: Range
    copy: Range


def load_of(holding: Holding, estimates: Estimates) -> Load | None:
    """What bringing the lower tiers' part takes; None where a path was never seen."""
    fetch = copy = NOTHING
    for portion in holding.portions:
        size, fragments = portion.payload_bytes, portion.fragments
        hop = estimates.load_seconds(portion.tier, size, fragments)
        if hop is None:
            return None
        copy = total(copy, hop)
        if portion.tier is not Tier.HOST:
            first = estimates.fetch_seconds(portion.tier, size, fragments)
            if first is None:
                return None
            fetch = total(fetch, first)
    return Load(estimates.link_wait_seconds(), fetch, copy)


class Weighing:
    """One holding under one engine's estimates: computes each way once."""

    __slots__ = (
        "_absent",
        "_after_load",
        "_common",
        "_computed_after_load",
        "_estimates",
        "_hbm",
        "_holding",
        "_layers",
        "_lower",
        "_queue",
        "_rest",
        "load",
        "queue",
        "recompute_all",
    )

    def __init__(self, holding: Holding, estimates: Estimates, queue: Range | None) -> None:
        self._holding = holding
        self._estimates = estimates
        self._layers = estimates.layers if estimates.overlap is OverlapMode.LAYERWISE else 0
        self.queue = queue
        self._queue = self.queue or NOTHING
        self.load = load_of(holding, estimates) if holding.portions else None
        # What every way computes: nobody has it.
        self._rest = holding.missing_tokens + holding.unknown_tokens
        self._lower = holding.lower_tokens
        self._after_load = holding.in_flight_tokens + self._rest
        self._hbm = holding.hbm_tokens
        self._absent = self._lower + self._after_load
        before_rest = self._hbm + self._absent - self._rest
        self._common = total(self._queue, self._compute(self._rest, before_rest))
        self.recompute_all = self._compute(self._absent, self._hbm)
        self._computed_after_load = (
            self._compute(self._after_load, self._hbm + self._lower) if self.load else NOTHING
        )

    @property
    def saved(self) -> Range:
        """Compute that having the lower tiers' part saves."""
        return beyond(self.recompute_all, self._computed_after_load)

    def recompute(self) -> Option:
        """Compute all that is not in HBM."""
        queue, computed = self._queue, self.recompute_all
        stages = {QUEUE: queue.p50, COMPUTE: computed.p50}
        whole = total(queue, computed)
        return self._weighed(Way(WayName.RECOMPUTE, whole, stages, 0.0, 0, self._absent))

    def by_load(self) -> Option | None:
        """Load what lower tiers hold, compute the rest."""
        if self.load is None:
            return None
        computed = self._computed_after_load
        return self._loading(WayName.LOAD, self.load, computed, self._lower, self._after_load)

    def split(self) -> Option | None:
        """Load the head of what lower tiers hold while its tail is computed, layer by layer.

        Only a layer-wise engine does both at once; elsewhere one of the pure ways is the best.
        """
        if self.load is None or not self._layers or not self._holding.recomputable:
            return None
        block = self._estimates.block_tokens
        blocks = self._lower // block if block else 0
        if blocks < 2:
            return None
        hbm, whole = self._hbm, self._hbm + self._absent

        def part_of(number: int) -> Load | None:
            return load_of(_head(self._holding, number * block), self._estimates)

        def parts(number: int) -> tuple[float, float, float]:
            """Before the copy, the copy, the compute: p50 seconds with so many blocks loaded."""
            done = hbm + number * block
            computed = self._compute(whole - done, done).p50
            part = part_of(number) if number else None
            if part is None:
                return 0.0, 0.0, computed
            return part.link_wait.p50 + part.fetch.p50, part.copy.p50, computed

        best = best_split(blocks, parts, self._layers)
        part = part_of(best)
        if not 0 < best < blocks or part is None:
            return None
        done = hbm + best * block
        computed = self._compute(whole - done, done)
        return self._loading(WayName.LOAD_AND_RECOMPUTE, part, computed, best * block, whole - done)

    def wait(self) -> Option | None:
        """Wait for what another request brings, load the lower tiers' part meanwhile."""
        ready = self._holding.in_flight_ready
        if ready is None or not self._holding.in_flight_tokens:
            return None
        if self._holding.portions and self.load is None:
            return None
        load = self.load or Load(NOTHING, NOTHING, NOTHING)
        loaded = total(self._queue, load.link_wait, load.fetch, load.copy)
        usable = later(loaded, ready)
        rest = beyond(self._common, self._queue)
        whole = total(usable, rest)
        stages = {
            QUEUE: self._queue.p50,
            IN_FLIGHT: usable.p50 - loaded.p50,
            LINK_WAIT: load.link_wait.p50,
            FETCH: load.fetch.p50,
            LOAD: load.copy.p50,
            COMPUTE: rest.p50,
        }
        return self._weighed(Way(WayName.WAIT, whole, stages, 0.0, self._lower, self._rest))

    def run_other(self) -> Option | None:
        """Bring it in now, under other requests' compute, and run it when it has come."""
        if self.load is None:
            return None
        load = self.load
        moved = total(load.link_wait, load.fetch, load.copy)
        taken = later(self._queue, moved)
        computed = self._computed_after_load
        # The queue passes while the copy runs: what of the copy is left after it counts.
        left = taken.p50 - self._queue.p50
        stages = {QUEUE: self._queue.p50}
        for stage, seconds in (
            (LOAD, load.copy.p50),
            (FETCH, load.fetch.p50),
            (LINK_WAIT, load.link_wait.p50),
        ):
            spent = stages[stage] = left if left < seconds else seconds
            left -= spent
        stages[COMPUTE] = computed.p50
        whole = total(taken, computed)
        return self._weighed(
            Way(WayName.RUN_OTHER, whole, stages, 0.0, self._lower, self._after_load)
        )

    def _loading(
        self, name: WayName, load: Load, computed: Range, load_tokens: int, compute_tokens: int
    ) -> Option:
        ready, exposed = computed, load.copy
        if self._layers:
            ready = self._overlapped(load.copy, computed)
            exposed = beyond(ready, computed)
        queue, wait, fetch = self._queue, load.link_wait, load.fetch
        stages = {
            QUEUE: queue.p50,
            LINK_WAIT: wait.p50,
            FETCH: fetch.p50,
            LOAD: exposed.p50,
            COMPUTE: computed.p50,
        }
        whole = total(queue, wait, fetch, exposed, computed)
        waits = self._estimates.overlap is not OverlapMode.BEFORE_ADMISSION
        stalls = exposed.p50 if waits else 0.0
        return self._weighed(Way(name, whole, stages, stalls, load_tokens, compute_tokens))

    def _overlapped(self, load: Range, compute: Range) -> Range:
        mode, layers = self._estimates.overlap, self._layers
        return Range(
            usable_batch_seconds(mode, layers, load.p50, compute.p50),
            usable_batch_seconds(mode, layers, load.low, compute.low),
            usable_batch_seconds(mode, layers, load.high, compute.high),
        )

    def _weighed(self, way: Way) -> Option:
        """Without the queue and the compute that every way has, since both err for all alike."""
        common, ready = self._common, way.ready_seconds
        apart = beyond(ready, common)
        if self._holding.degraded:
            # What is held may be gone: at worst everything is computed.
            worst = total(self._queue, self.recompute_all).high
            if worst > ready.high:
                way = msgspec.structs.replace(way, ready_seconds=Range(ready.p50, ready.low, worst))
                apart = Range(apart.p50, apart.low, max(apart.high, worst - common.high))
        return Option(way, apart)

    def _compute(self, tokens: int, context: int) -> Range:
        """Tokens of unknown residency are taken as missing, but may turn out to be there."""
        if not tokens or not self._holding.recomputable:
            return NOTHING
        seconds = self._estimates.prefill_seconds(tokens, context)
        unknown = self._holding.unknown_tokens
        if not unknown:
            return seconds
        certain = tokens - unknown
        low = self._estimates.prefill_seconds(certain, context).low if certain else 0.0
        return Range(seconds.p50, min(low, seconds.p50), seconds.high)


def _head(holding: Holding, tokens: int) -> Holding:
    """The same with only the first so many tokens of the lower tiers' part, nearest tier first."""
    portions = []
    for portion in holding.portions:
        taken = min(tokens, portion.tokens)
        tokens -= taken
        if taken:
            share = taken / portion.tokens
            portions.append(
                msgspec.structs.replace(
                    portion,
                    tokens=taken,
                    payload_bytes=round(portion.payload_bytes * share),
                    fragments=max(1, round(portion.fragments * share)),
                )
            )
    return msgspec.structs.replace(holding, portions=tuple(portions))
