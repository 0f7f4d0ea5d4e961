"""Runs a workload on a scenario: one engine, event by event, in simulated seconds.

The engine does one thing at a time, a slot: a batch of prefills, or decode steps. Where it
schedules asynchronously the next batch is chosen as a slot begins, so it does not see what that
slot brings.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable

from kvready.advisor.overlap import usable_batch_seconds
from kvready.advisor.roofline import Roofline
from kvready.advisor.whatif.batch import Batch
from kvready.advisor.whatif.batch_costs import DecodeRun, Decodes, batch_seconds, slowed, work_done
from kvready.advisor.whatif.batcher import Batcher
from kvready.advisor.whatif.cache import Cache
from kvready.advisor.whatif.decoding import Decoding
from kvready.advisor.whatif.distances import reuse_tokens
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.movers import Movers
from kvready.advisor.whatif.outcome import SimOutcome
from kvready.advisor.whatif.scenario import Scenario
from kvready.advisor.whatif.timeline import Timeline
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.errors import WorkloadError

MAX_SLOTS = 20_000_000  # beyond, what is left counts as unfinished
PROGRESS_CALLS = 100
NO_DECODES = Decodes(0, 0)

Progress = Callable[[float], None]


def simulate(
    workload: Workload, scenario: Scenario, seed: int = 0, progress: Progress | None = None
) -> SimOutcome:
    """One run. Rows come in the workload's order; an unfinished one has `finished_seconds` 0.

    The seed orders requests that arrive at the same instant, which traces with coarse clocks leave
    open; with 0 they stay as the workload has them. `progress` is told the share that has finished.
    """
    return Run(workload, scenario, seed, progress).run()


class Slot:
    """What the engine does now, and until when."""

    def __init__(self, batch: Batch | None, decode_steps: int, end_seconds: float) -> None:
        self.batch = batch
        self.decode_steps = decode_steps
        self.end_seconds = end_seconds


class Run:
    """One engine, from the first arrival until nothing happens any more.

    The simulated engine that others watch (`sim_engine`) derives from it: same parts, same order.
    """

    def __init__(
        self, workload: Workload, scenario: Scenario, seed: int, progress: Progress | None
    ) -> None:
        self._workload = workload
        self._scenario = scenario
        self._engine = scenario.engine
        self._layers = scenario.shape.layers
        self._roofline = Roofline(
            scenario.shape,
            scenario.device,
            scenario.tensor_parallel,
            scenario.mfu,
            scenario.fixed_seconds,
        )
        layout = scenario.shape.layout(1, scenario.tensor_parallel)
        self._cache = Cache(scenario.tiers, layout.rank_bytes_per_token, workload.block_tokens)
        self._cache.to_host(workload.warm_blocks)
        self._timeline = Timeline()
        self._lives = [
            LiveRequest(request, order, workload.block_tokens)
            for order, request in enumerate(workload.requests)
        ]
        self._followers = _followers(self._lives)
        start = self._announce_arrivals(seed)
        self._now = self._started = start
        self._movers = Movers(scenario, self._cache, self._timeline, start)
        self._batcher = Batcher(scenario, self._roofline, self._cache, self._movers, self._timeline)
        self._decoding = Decoding()
        self._arrived: list[int] = []  # by their place in the workload, as they came
        self._outside: deque[LiveRequest] = deque()  # beyond the in-flight cap
        self._in_flight = 0
        self._left = len(self._lives)  # neither finished nor refused
        self._refused = 0
        self._next: Batch | None = None
        self._progress = progress
        self._outcome = SimOutcome(
            scenario=scenario.name,
            workload=workload.name,
            requests=[live.outcome for live in self._lives],
            elapsed_seconds=0.0,
            load_link=self._movers.load.time,
            backup_link=self._movers.backup.time,
            fetch_link=self._movers.fetch.time,
        )

    def run(self) -> SimOutcome:
        """Until all have finished, or nothing can happen any more."""
        for _ in range(MAX_SLOTS):
            slot = self._begin_slot()
            if slot is not None:
                self._timeline.run_until(slot.end_seconds)
                self._pass_time(slot.end_seconds)
                self._end_slot(slot)
                self._timeline.run_until(self._now)
            elif not self._wait_idle():
                break
        return self._settle()

    def _wait_idle(self) -> bool:
        """Nothing runs until something happens; False: nothing ever will."""
        until = self._timeline.next_seconds
        if not self._left or until == math.inf:
            return False
        self._outcome.idle_seconds += max(until - self._now, 0.0)
        self._timeline.run_until(until)
        self._pass_time(until)
        return True

    def _begin_slot(self) -> Slot | None:
        batch, self._next = self._next, None
        decodes = self._decoding.decodes
        if batch is None and not (self._engine.asynchronous and decodes.requests):
            batch = self._batcher.plan(self._now, decodes)
        if batch is None:
            return self._begin_decodes(decodes) if decodes.requests else None
        if batch.awaits_load:
            batch.loaded_seconds = self._movers.load.copy(self._now, batch.load_tokens)
            if steps := self._fill_steps(batch, decodes):
                self._next = batch
                return self._decode(DecodeRun(self._roofline, decodes), steps)
        slot = self._begin_batch(batch, decodes)
        if self._engine.asynchronous:
            self._next = self._batcher.plan(self._now, decodes)
        return slot

    def _fill_steps(self, batch: Batch, decodes: Decodes) -> int:
        """Decode steps to run before a batch, whose load has just been ordered."""
        if not decodes.requests or batch.loaded_seconds is None:
            return 0
        load = batch.loaded_seconds - self._now
        compute = batch_seconds(self._roofline, batch.chunks, NO_DECODES)
        step = DecodeRun(self._roofline, decodes).seconds(1)
        steps = self._batcher.fill_steps(load, compute, step)
        return min(steps, self._decode_steps())

    def _begin_batch(self, batch: Batch, decodes: Decodes) -> Slot:
        now, outcome = self._now, self._outcome
        riding = decodes if self._engine.mixed_batches else NO_DECODES
        work = batch_seconds(self._roofline, batch.chunks, riding)
        compute = slowed(now, work, self._movers.prefill_slowings())
        load = max((batch.loaded_seconds or now) - now, 0.0)
        taken = compute
        if load > 0.0:
            taken = usable_batch_seconds(self._engine.overlap, self._layers, load, compute)
        taken = max(taken, batch.room_seconds - now + compute)
        stall = taken - compute
        for live in batch.loaders:
            live.outcome.exposed_seconds += stall
        self._batcher.ran(batch, stall, taken)
        outcome.prefill_seconds += taken
        outcome.stall_seconds += stall
        outcome.prefill_batches += 1
        outcome.decode_steps += bool(riding.requests)
        return Slot(batch, 1 if riding.requests else 0, now + taken)

    def _begin_decodes(self, decodes: Decodes) -> Slot:
        """Steps until somebody leaves, or something happens: the step under way is the last."""
        most, now = self._decode_steps(), self._now
        if self._engine.asynchronous:
            self._next = self._batcher.plan(now, decodes)
            if self._next is not None:
                most = 1
        run = DecodeRun(self._roofline, decodes)
        horizon = self._timeline.next_seconds
        slowings = self._movers.decode_slowings()
        if most > 1 and now + slowed(now, run.seconds(most), slowings) > horizon:
            most = run.steps(work_done(now, horizon - now, slowings), most)
        return self._decode(run, most)

    def _decode(self, run: DecodeRun, steps: int) -> Slot:
        taken = slowed(self._now, run.seconds(steps), self._movers.decode_slowings())
        self._outcome.decode_seconds += taken
        self._outcome.decode_steps += steps
        return Slot(None, steps, self._now + taken)

    def _decode_steps(self) -> int:
        """How many decode steps may be taken at once."""
        return self._decoding.steps_to_next_end

    def _end_slot(self, slot: Slot) -> None:
        for live in self._decoding.advance(slot.decode_steps):
            self._finish(live)
        batch = slot.batch
        if batch is None:
            return
        self._cache.loaded(batch.load_blocks)
        for share in batch.shares:
            if not share.is_last:
                continue
            live = share.live
            self._movers.back_up(self._now, self._cache.computed(live))
            self._batcher.computed(live)
            live.outcome.first_token_seconds = self._now
            if live.request.output_tokens > 1:
                self._decoding.join(live)
            else:
                self._finish(live)

    def _finish(self, live: LiveRequest) -> None:
        now = self._now
        live.outcome.finished_seconds = now
        self._movers.back_up(now, self._cache.finished(live))
        self._batcher.admission.admitted -= 1
        self._in_flight -= 1
        self._left -= 1
        for follower in self._followers.get(live.request.request_id, ()):
            self._timeline.at(now + follower.request.think_seconds, self._arrive, follower)
        if self._outside:
            self._enter(now, self._outside.popleft())
        self._tell_progress()

    def _tell_progress(self) -> None:
        requests = len(self._lives)
        if self._progress is not None and self._left % max(1, requests // PROGRESS_CALLS) == 0:
            self._progress(1.0 - self._left / requests)

    def _arrive(self, now_seconds: float, live: LiveRequest) -> None:
        live.outcome.arrived_seconds = now_seconds
        self._arrived.append(live.order)
        if live.reserved_tokens > self._cache.hbm_tokens:
            self._refuse(live)
            return
        cap = self._engine.in_flight_requests
        if cap and self._in_flight >= cap:
            self._outside.append(live)
        else:
            self._enter(now_seconds, live)

    def _refuse(self, live: LiveRequest) -> None:
        """It can never run, nor can who comes after it."""
        refused = [live]
        for gone in refused:
            refused.extend(self._followers.get(gone.request.request_id, ()))
        self._refused += len(refused)
        self._left -= len(refused)

    def _enter(self, now_seconds: float, live: LiveRequest) -> None:
        """It comes under the cap: the engine sees it from now on."""
        self._account_load(now_seconds)
        self._in_flight += 1
        live.outcome.admitted_seconds = now_seconds
        match = self._cache.match(live.findable_blocks)
        resident_blocks = match.blocks + len(match.disk_blocks)
        live.outcome.nominal_tokens = resident_blocks * self._cache.block_tokens
        self._batcher.join(now_seconds, live, match)

    def _pass_time(self, now_seconds: float) -> None:
        self._account_load(now_seconds)
        self._now = now_seconds

    def _account_load(self, now_seconds: float) -> None:
        is_ordered = self._next is not None and self._next.awaits_load
        self._movers.load.account(now_seconds, is_ordered, self._batcher.line.wanting_loads > 0)

    def _announce_arrivals(self, seed: int) -> float:
        """Returns when the first request arrives."""
        first = [live for live in self._lives if not live.request.after]
        if seed:
            random.Random(seed).shuffle(first)
        first.sort(key=lambda live: live.request.arrived_seconds)
        for live in first:
            self._timeline.at(live.request.arrived_seconds, self._arrive, live)
        return first[0].request.arrived_seconds if first else 0.0

    def _settle(self) -> SimOutcome:
        outcome = self._outcome
        outcome.elapsed_seconds = self._now - self._started
        outcome.unfinished = self._left + self._refused
        outcome.duplicate_tokens = self._cache.duplicate_blocks * self._cache.block_tokens
        for row, tokens in zip(
            outcome.requests, reuse_tokens(self._workload, self._arrived), strict=True
        ):
            row.reuse_tokens = tokens
        self._movers.end(self._now)
        return outcome


def _followers(lives: list[LiveRequest]) -> dict[str, list[LiveRequest]]:
    """Who comes after whom. Raises `WorkloadError` where a request comes after nobody."""
    known = {live.request.request_id for live in lives}
    followers: dict[str, list[LiveRequest]] = {}
    for live in lives:
        if after := live.request.after:
            if after not in known:
                raise WorkloadError(
                    f"request {live.request.request_id} comes after {after}, which the workload "
                    "lacks; keep all rounds of a conversation, or give it an arrival of its own"
                )
            followers.setdefault(after, []).append(live)
    return followers
