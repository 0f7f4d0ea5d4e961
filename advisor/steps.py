"""The engine's recent batches on a time line: what could have run when."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import msgspec

from kvready.advisor.waits import Interval
from kvready.collectors.records import BatchFinished, BatchPlanned, EngineDescribed

MAX_REMEMBERED_STEPS = 4_096
MEDIAN_WINDOW = 256


class Step(msgspec.Struct, gc=False):
    """One batch: when it ran, and whether another request would have fitted."""

    number: int
    planned_seconds: float
    has_room: bool
    free_blocks: int | None
    finished_seconds: float = math.inf

    def has_blocks(self, blocks_needed: int) -> bool:
        """Whether the pool could have held one more request of that size."""
        return self.free_blocks is None or self.free_blocks >= blocks_needed


class StepTimeline:
    """Remembers when the scheduler had room for one more request, and how long steps take."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=MAX_REMEMBERED_STEPS)
        self._durations: deque[float] = deque(maxlen=MEDIAN_WINDOW)

    def plan(self, batch: BatchPlanned, engine: EngineDescribed | None) -> None:
        """Note a batch and whether its budget and seats were used up."""
        tokens = sum(member.new_tokens for member in batch.members)
        token_limit = engine.batch_token_limit if engine else 0
        request_limit = engine.batch_request_limit if engine else 0
        full = (token_limit and tokens >= token_limit) or (
            request_limit and len(batch.members) >= request_limit
        )
        self._steps.append(Step(batch.step, batch.planned_seconds, not full, batch.free_blocks))

    def finish(self, record: BatchFinished) -> None:
        """Note when a batch ended and how long it took."""
        self._durations.append(record.duration_seconds)
        for step in reversed(self._steps):  # the newest few: batches end in order
            if step.number == record.step:
                step.finished_seconds = record.finished_seconds
                return

    @property
    def has_room(self) -> bool:
        """Whether the latest batch left a seat, budget and a block; before the first there is."""
        return not self._steps or (self._steps[-1].has_room and self._steps[-1].has_blocks(1))

    @property
    def median_step_seconds(self) -> float:
        """The median of recent batches; 0 before the first."""
        return median(self._durations) if self._durations else 0.0

    def seconds_with_room(self, span: Interval, blocks_needed: int = 0) -> float:
        """Seconds of `span` in which the scheduler could have run one more request.

        Budget and seats stand as a batch left them while it runs; while nothing runs there is room.
        Free blocks stand until the next batch is planned. Before the first remembered batch there
        is room.
        """
        exposed = 0.0
        end = span.end_seconds
        for step in reversed(self._steps):
            if end <= span.begin_seconds:
                return exposed
            begin = max(step.planned_seconds, span.begin_seconds)
            if begin >= end:
                continue
            if step.has_blocks(blocks_needed):
                busy_end = min(max(step.finished_seconds, begin), end)
                exposed += end - busy_end
                if step.has_room:
                    exposed += busy_end - begin
            end = begin
        return exposed + max(0.0, end - span.begin_seconds)
