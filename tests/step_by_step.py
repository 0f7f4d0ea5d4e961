"""The simulated engine once more, as plainly as can be: one decode step at a time, plain lists.

First come, first served, batches of prefills before decodes, backups of every block, no disk. It
shares no code with the simulator but the formulas of the roofline and of overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvready.advisor.overlap import usable_batch_seconds
from kvready.advisor.roofline import Chunk, Roofline
from kvready.advisor.whatif.scenario import LinkSpec, Scenario
from kvready.advisor.whatif.workload import SimRequest, Workload


@dataclass
class Asked:
    request: SimRequest
    hbm: int = 0
    host: int = 0
    first: float = 0.0
    finished: float = 0.0
    left: int = 0  # prompt tokens to be planned
    done: int = 0  # prompt tokens there or planned
    generated: int = 0
    new: tuple[int, ...] = ()
    chain: tuple[int, ...] = ()
    private: int = 0


@dataclass
class Planned:
    parts: list[tuple[Asked, Chunk, bool]] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)


class StepByStep:
    def __init__(self, workload: Workload, scenario: Scenario) -> None:
        self.block = workload.block_tokens
        self.scenario = scenario
        self.roofline = Roofline(
            scenario.shape, scenario.device, 1, scenario.mfu, scenario.fixed_seconds
        )
        self.layout = scenario.shape.layout(scenario.page_tokens)
        token = self.layout.rank_bytes_per_token
        self.hbm_tokens = scenario.tiers.hbm_bytes // token
        self.host_blocks = scenario.tiers.host_bytes // token // self.block
        self.all = [Asked(request) for request in workload.requests]
        self.coming = sorted(self.all, key=lambda one: one.request.arrived_seconds)
        self.waiting: list[Asked] = []
        self.begun: list[Asked] = []
        self.running: list[Asked] = []
        self.hbm: list[int] = []  # idle, least recently used first
        self.held: list[int] = []  # once for each that holds it
        self.host: list[int] = []
        self.host_held: list[int] = []
        self.writing: list[tuple[float, list[int]]] = []
        self.writer_free = 0.0
        self.private = 0
        self.now = self.coming[0].request.arrived_seconds if self.coming else 0.0

    def run(self) -> list[Asked]:
        ahead: Planned | None = None
        asynchronous = self.scenario.engine.asynchronous
        self.happen(self.now)
        while any(not one.finished for one in self.all):
            batch, ahead = ahead, None
            if batch is None and not (asynchronous and self.running):
                batch = self.plan()
            if batch is not None:
                end = self.now + self.batch_seconds(batch)
            elif self.running:
                contexts = [one.request.prompt_tokens + one.generated - 1 for one in self.running]
                end = self.now + self.roofline.batch_seconds([Chunk(1, c) for c in contexts])
            else:
                times = [one.request.arrived_seconds for one in self.coming]
                self.now = min(times + [done for done, _ in self.writing])
                self.happen(self.now)
                continue
            decoding = list(self.running) if batch is None else []
            if asynchronous:
                ahead = self.plan()
            self.happen(end)
            self.now = end
            self.end(batch, decoding)
            self.happen(end)
        return self.all

    def happen(self, until: float) -> None:
        """Arrivals and ends of backups; they do not affect each other."""
        for done, blocks in list(self.writing):
            if done <= until:
                self.writing.remove((done, blocks))
                for block in blocks:
                    self.held.remove(block)
                for block in reversed(blocks):
                    if block not in self.held:
                        self.hbm.append(block)
                    if block in self.host:
                        self.host.remove(block)
                    if block not in self.host_held:
                        self.host.append(block)
                self.shrink_host()
        while self.coming and self.coming[0].request.arrived_seconds <= until:
            self.waiting.append(self.coming.pop(0))

    def shrink_host(self) -> None:
        while self.host and len(self.host) + len(set(self.host_held)) > self.host_blocks:
            self.host.pop(0)

    def plan(self) -> Planned | None:
        batch = Planned()
        budget = self.scenario.engine.batch_tokens
        for one in list(self.begun):
            budget -= self.take(one, batch, budget)
            if not one.left:
                self.begun.remove(one)
        while self.waiting and budget > 0:
            one = self.waiting[0]
            if not self.admit(one, batch):
                break
            self.waiting.pop(0)
            budget -= self.take(one, batch, budget)
            if one.left:
                self.begun.append(one)
        return batch if batch.parts else None

    def take(self, one: Asked, batch: Planned, budget: int) -> int:
        chunk = min(one.left, budget, self.scenario.engine.chunk_tokens or one.left)
        if chunk:
            one.left -= chunk
            batch.parts.append((one, Chunk(chunk, one.done), one.left == 0))
            one.done += chunk
        return chunk

    def admit(self, one: Asked, batch: Planned) -> bool:
        request = one.request
        found: list[int] = []
        loads: list[int] = []
        for block in request.blocks[: (request.prompt_tokens - 1) // self.block]:
            if block in self.hbm or block in self.held:
                found.append(block)
            elif block in self.host or block in self.host_held:
                found.append(block)
                loads.append(block)
            else:
                break
        reserved = request.prompt_tokens + request.output_tokens
        already = sum(block in self.held for block in found)
        held = len(set(self.held)) * self.block + self.private
        if reserved - already * self.block > self.hbm_tokens - held:
            return False
        for block in found:
            if block in self.hbm:
                self.hbm.remove(block)
            self.held.append(block)
        for block in loads:
            if block in self.host:
                self.host.remove(block)
            self.host_held.append(block)
        for block in reversed(found):
            if block in self.host:
                self.host.remove(block)
                self.host.append(block)
        one.private = reserved - len(found) * self.block
        self.private += one.private
        while (len(set(self.held)) + len(self.hbm)) * self.block + self.private > self.hbm_tokens:
            self.hbm.pop(0)
        self.back_up(found)
        one.chain, one.new = tuple(found), request.blocks[len(found) :]
        one.host = len(loads) * self.block
        one.hbm = len(found) * self.block - one.host
        one.done = len(found) * self.block
        one.left = request.prompt_tokens - one.done
        batch.loads.extend(loads)
        return True

    def batch_seconds(self, batch: Planned) -> float:
        compute = self.roofline.batch_seconds([chunk for _, chunk, _ in batch.parts])
        load = self.copy_seconds(self.scenario.load, len(batch.loads))
        mode = self.scenario.engine.overlap
        return usable_batch_seconds(mode, self.layout.layers, load, compute) if load else compute

    def copy_seconds(self, link: LinkSpec, blocks: int) -> float:
        tokens = blocks * self.block
        if not tokens:
            return 0.0
        moved = tokens * self.layout.rank_bytes_per_token / link.bytes_per_second
        fragments = self.layout.pages(tokens) * self.layout.planes
        return link.start_seconds + fragments * link.fragment_seconds + moved

    def end(self, batch: Planned | None, decoding: list[Asked]) -> None:
        for one in decoding:
            one.generated += 1
            if one.generated == one.request.output_tokens:
                self.running.remove(one)
                self.finish(one)
        if batch is None:
            return
        for block in batch.loads:
            self.host_held.remove(block)
        for block in reversed(batch.loads):
            if block not in self.host_held:
                self.host.append(block)
        self.shrink_host()
        for one, _, is_last in batch.parts:
            if not is_last:
                continue
            for block in one.new:
                if block in self.hbm:
                    self.hbm.remove(block)
                self.held.append(block)
            one.chain += one.new
            one.private -= len(one.new) * self.block
            self.private -= len(one.new) * self.block
            self.back_up(one.new)
            one.first, one.generated = self.now, 1
            if one.request.output_tokens > 1:
                self.running.append(one)
            else:
                self.finish(one)

    def finish(self, one: Asked) -> None:
        one.finished = self.now
        self.private -= one.private
        for block in reversed(one.chain):
            self.held.remove(block)
            if block not in self.held:
                self.hbm.append(block)

    def back_up(self, blocks: list[int] | tuple[int, ...]) -> None:
        under_way = {block for _, some in self.writing for block in some}
        there = under_way | set(self.host) | set(self.host_held)
        wanted = [block for block in blocks if block not in there]
        if not wanted or not self.host_blocks:
            return
        self.held.extend(wanted)
        began = max(self.now, self.writer_free)
        self.writer_free = began + self.copy_seconds(self.scenario.backup, len(wanted))
        self.writing.append((self.writer_free, wanted))
