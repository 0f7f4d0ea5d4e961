"""What every mover on a GPU does around its copies: reach memory, wait for bytes, time both."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvready.kernels.cuda_driver import CudaDriver
from kvready.kernels.cuda_reach import require_reachable
from kvready.kernels.cuda_stream import CudaContext, CudaEvent, CudaStream, anchored
from kvready.kernels.errors import MoveError
from kvready.kernels.pools import Move, Pools


@dataclass(frozen=True)
class MoveTimes:
    """When a move was ordered, began and was done. Seconds of CLOCK_MONOTONIC."""

    payload_bytes: int
    ordered_seconds: float
    started_seconds: float  # on the device, once a copy engine or an SM took it up
    ready_seconds: float


class CudaMover(ABC):
    """A mover with a stream of its own, for one thread at a time.

    The stream waits for no other: a caller that stores pages has waited for whoever wrote them.
    """

    name: str

    def __init__(self, driver: CudaDriver | None = None, ordinal: int = 0) -> None:
        self.driver = driver or CudaDriver()
        self.ordinal = ordinal
        self.context = CudaContext(self.driver, ordinal)
        self.backend = f"cuda-{self.driver.version_text}"
        self._prepared: Pools | None = None
        try:
            with self.context.current():
                self._anchor = CudaEvent(self.driver)
                self._started = CudaEvent(self.driver)
                self._ended = CudaEvent(self.driver)
                self._stream = CudaStream(self.context)
        except MoveError:
            self.context.close()
            raise

    def move(self, pools: Pools, move: Move) -> int:
        """Bring the pages over and wait for it. Payload bytes."""
        return self.timed_move(pools, move).payload_bytes

    def prepare(self, pools: Pools) -> None:
        """What is done once for two pools, and again once others came in between.

        Raises `MoveError` where they cannot be reached. They must stay where they are while used.
        """
        if pools is not self._prepared:
            with self.context.current():
                self._reach(pools)
            self._prepared = pools

    def timed_move(self, pools: Pools, move: Move) -> MoveTimes:
        """The same, and when it happened."""
        self.prepare(pools)
        with self.context.current():
            anchored_seconds = anchored(self._anchor, self._stream)
            ordered_seconds = time.monotonic()
            move.check(pools)
            try:
                started_after_seconds = self._run(pools, move)
            except BaseException:
                self._stream.drain()
                raise
            done_seconds = time.monotonic()
            ready = anchored_seconds + self._ended.seconds_since(self._anchor)
        # The anchor is read some microseconds after it was passed: keep to what the host saw.
        ready = min(max(ready, ordered_seconds), done_seconds)
        started = min(max(anchored_seconds + started_after_seconds, ordered_seconds), ready)
        payload_bytes = move.fragments(pools) * pools.fragment_bytes
        return MoveTimes(payload_bytes, ordered_seconds, started, ready)

    def close(self) -> None:
        """Give the stream back. Safe twice."""
        if self._stream.handle:
            with self.context.current():
                for event in (self._anchor, self._started, self._ended):
                    event.close()
                self._stream.close()
        self.context.close()

    def _reach(self, pools: Pools) -> None:
        require_reachable(self.driver, self.ordinal, pools)

    @abstractmethod
    def _run(self, pools: Pools, move: Move) -> float:
        """Carry out a checked move, mark its end with `_ended`, and wait for it.

        Returns seconds from `_anchor` until the device began with it.
        """
