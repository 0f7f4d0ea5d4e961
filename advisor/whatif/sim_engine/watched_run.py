"""The simulator's run, a step at a time, watched: the engine behind the surfaces."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvready.advisor.strata import PAPER, Settings
from kvready.advisor.whatif.batch import Batch
from kvready.advisor.whatif.batch_costs import DecodeRun, Decodes
from kvready.advisor.whatif.batcher import Batcher
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.scenario import LinkSpec, Scenario
from kvready.advisor.whatif.sim_engine.faults import SLOW_LEADER_SECONDS, FaultName, Faults
from kvready.advisor.whatif.sim_engine.flags import Obeyed
from kvready.advisor.whatif.sim_engine.hidden import Hidden
from kvready.advisor.whatif.sim_engine.kv_wire import block_hash
from kvready.advisor.whatif.sim_engine.round import Round
from kvready.advisor.whatif.sim_engine.watched_parts import (
    HiddenLink,
    WatchedAdmission,
    WatchedMovers,
    WatchedTier,
)
from kvready.advisor.whatif.simulate import Run, Slot
from kvready.advisor.whatif.watcher import Watcher
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.names import CopyMethod
from kvready.collectors.records import BatchMember

Movable = Mapping[CopyMethod, LinkSpec]


class WatchedRun(Run):
    """One incarnation. `loads` and `backups` are the links by mover; the flags choose."""

    def __init__(
        self,
        workload: Workload,
        scenario: Scenario,
        watcher: Watcher,
        hidden: Hidden,
        faults: Faults,
        flags: Obeyed,
        loads: Movable,
        backups: Movable,
    ) -> None:
        # Planning ahead would make batches seem to take as long as those before them, too.
        engine = msgspec.structs.replace(scenario.engine, asynchronous=False)
        scenario = msgspec.structs.replace(scenario, engine=engine)
        super().__init__(workload, scenario, 0, None)
        self._watcher = watcher
        self._hidden = hidden
        self._faults = faults
        self._flags = flags
        self._entered: list[LiveRequest] = []  # since the scheduler last looked
        self._told_scheduled: set[int] = set()  # by their order
        self._aside: dict[int, str] = {}  # who may not run yet, by their order
        self._step = 0
        self._open_step = 0  # 0: none
        self._told = Round(watcher, self._timeline, _parents(workload))
        self._told.now = self._now
        self._watch_cache(workload)
        self._watch_movers(loads, backups)
        self._watched = WatchedAdmission(
            self._engine, self._cache, self._movers, self._timeline, self._told
        )
        self._obeyed: tuple[bool, bool] | None = None

    def _watch_cache(self, workload: Workload) -> None:
        told, cache = self._told, self._cache
        cache.hbm = WatchedTier(cache.hbm.capacity_blocks, told.in_hbm, told.out_of_hbm)
        cache.host = WatchedTier(cache.host.capacity_blocks, told.in_host, told.out_of_host)
        cache.to_host(workload.warm_blocks)

    def _watch_movers(self, loads: Movable, backups: Movable) -> None:
        scenario, flags = self._scenario, self._flags

        def link(specs: Movable) -> HiddenLink:
            return HiddenLink(lambda: specs[flags.copy_method], scenario, self._hidden, self._now)

        self._movers = WatchedMovers(
            scenario,
            self._cache,
            self._timeline,
            self._now,
            self._told,
            link(loads),
            link(backups),
        )

    def _obey(self) -> None:
        """Read the flags; where they changed, whoever waits waits for another batcher."""
        wanted = (self._flags.dedup, self._flags.balance)
        if wanted == self._obeyed:
            return
        self._obeyed = wanted
        strata = None
        if any(wanted):
            strata = Settings(dedup=wanted[0], balance=wanted[1], decode_fill=False)
        policies = msgspec.structs.replace(self._scenario.policies, strata=strata)
        scenario = msgspec.structs.replace(self._scenario, policies=policies)
        waiting = list(self._batcher.line.in_order())
        self._cache.changed = None
        self._batcher = Batcher(scenario, self._roofline, self._cache, self._movers, self._timeline)
        self._batcher.admission = self._watched
        self._batcher.hold_only(self._may_hold)
        self._batcher.pass_over(self._aside.keys())
        for live in waiting:
            self._batcher.join(self._now, live, self._cache.match(live.findable_blocks))

    def _may_hold(self, live: LiveRequest, awaited_tokens: int) -> bool:
        blocks = live.request.blocks
        return self._flags.may_hold(block_hash(blocks[0]) if blocks else None, awaited_tokens)

    def _begin_slot(self) -> Slot | None:
        now = self._told.now = self._now
        entered, self._entered = self._entered, []
        for live in entered:
            self._watcher.arrived(now, live.request)
        stalled = self._faults.stall_seconds(now)
        if stalled > 0.0 and self._left:
            return Slot(None, 0, now + stalled)
        self._obey()
        self._told.aside.extend(self._aside.values())
        self._told.planning = True
        slot = super()._begin_slot()
        if slot is None:
            self._told.tell(now)
        self._told.planning = False
        self._watcher.planned_all(now)
        return slot

    def _begin_batch(self, batch: Batch, decodes: Decodes) -> Slot:
        slot = super()._begin_batch(batch, decodes)
        if batch.plan is not None:
            self._told.held.extend(batch.plan.deferred)
        members = self._decoding_members() if slot.decode_steps else []
        members += [
            BatchMember(
                share.live.request.request_id,
                share.chunk.new_tokens,
                share.chunk.context_tokens,
                is_prefill=True,
            )
            for share in batch.shares
        ]
        self._tell_planned(slot, members)
        for share in batch.shares:
            live = share.live
            if live.order not in self._told_scheduled:
                self._told_scheduled.add(live.order)
                outcome = live.outcome
                loaded = outcome.host_tokens + outcome.disk_tokens
                self._watcher.scheduled(
                    self._now, live.request.request_id, outcome.hbm_tokens, loaded
                )
        return slot

    def _decode(self, run: DecodeRun, steps: int) -> Slot:
        slot = super()._decode(run, steps)
        self._tell_planned(slot, self._decoding_members())
        return slot

    def _decode_steps(self) -> int:
        return 1  # each one is told

    def _tell_planned(self, slot: Slot, members: list[BatchMember]) -> None:
        now = self._now
        slot.end_seconds = now + self._hidden.batch_seconds(slot.end_seconds - now, now)
        self._step += 1
        self._open_step = self._step
        waiting = [*self._watched.waiting, *self._batcher.line.in_order()]
        self._watcher.planned(
            now,
            self._step,
            members,
            [live.request.request_id for live in waiting],
            self._cache.room_tokens // self._cache.block_tokens,
        )
        self._told.tell(now)

    def _decoding_members(self) -> list[BatchMember]:
        return [
            BatchMember(live.request.request_id, 1, context, is_prefill=False)
            for live, context in self._decoding.contexts()
        ]

    def _end_slot(self, slot: Slot) -> None:
        now = self._told.now = self._now
        for share in slot.batch.shares if slot.batch is not None else ():
            if share.is_last:
                self._watcher.first_token(now, share.live.request.request_id)
        super()._end_slot(slot)
        if self._open_step:
            self._watcher.ended(now, self._open_step)
            self._open_step = 0

    def _finish(self, live: LiveRequest) -> None:
        request = live.request
        self._watcher.finished(self._now, request.request_id, request.output_tokens)
        self._told_scheduled.discard(live.order)
        super()._finish(live)

    def _enter(self, now_seconds: float, live: LiveRequest) -> None:
        super()._enter(now_seconds, live)
        self._entered.append(live)
        slow = self._faults.active(FaultName.SLOW_LEADER, now_seconds)
        if slow is not None and self._leads(live):
            self._aside[live.order] = live.request.request_id
            self._timeline.at(now_seconds + SLOW_LEADER_SECONDS, self._let_in, live)

    def _let_in(self, _now_seconds: float, live: LiveRequest) -> None:
        del self._aside[live.order]

    def _leads(self, live: LiveRequest) -> bool:
        """Whether it is the first to bring enough of its prefix that others may wait for it."""
        missing = live.findable_blocks[self._cache.match(live.findable_blocks).blocks :]
        if len(missing) * self._cache.block_tokens <= PAPER.delay_tokens:
            return False
        first, waiting = missing[0], self._batcher.line.in_order()
        return first not in self._cache.computing and not any(
            first in other.findable_blocks for other in waiting if other is not live
        )


def _parents(workload: Workload) -> dict[int, int | None]:
    """The block before each block: ids are of whole prefixes, so there is one."""
    parents: dict[int, int | None] = {}
    for request in workload.requests:
        before: int | None = None
        for block in (*request.blocks, *request.output_blocks):
            parents[block] = before
            before = block
    return parents
