"""Letting requests into a simulated engine: memory, loads, and what each token cost.

Output is reserved with the prompt, so nothing is preempted: admission is a little later than in
an engine that hopes, and nothing is computed twice for want of memory.
"""

from __future__ import annotations

from kvready.advisor.roofline import Chunk
from kvready.advisor.whatif.batch import Batch, Share
from kvready.advisor.whatif.cache import Cache, Match
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.movers import Movers
from kvready.advisor.whatif.scenario import EngineLimits
from kvready.advisor.whatif.timeline import Timeline
from kvready.collectors.names import OverlapMode


class Admission:
    """Takes requests out of the queue and gives their tokens to batches."""

    def __init__(
        self, engine: EngineLimits, cache: Cache, movers: Movers, timeline: Timeline
    ) -> None:
        self.admitted = 0  # and not finished
        self.begun: list[LiveRequest] = []  # admitted, with tokens left that may be computed
        self._parked: dict[int, float] = {}  # blocks that are being loaded, until when
        self._engine = engine
        self._cache = cache
        self._movers = movers
        self._timeline = timeline

    @property
    def seats(self) -> int:
        """How many more may run."""
        return self._engine.running_requests - self.admitted

    def admit(self, now_seconds: float, live: LiveRequest, match: Match, batch: Batch) -> bool:
        """Let it in; False where its load has to end before it can be part of a batch."""
        self.admitted += 1
        self._bill(live, match)
        if live.held_since_seconds is not None:
            live.outcome.held_seconds += now_seconds - live.held_since_seconds
            live.held_since_seconds = None
        self._movers.back_up(now_seconds, self._cache.admit(live, match))
        if evicted := self._cache.take_evicted():
            done = self._movers.back_up(now_seconds, evicted)
            batch.room_seconds = max(batch.room_seconds, done)
        if self._engine.overlap is OverlapMode.BEFORE_ADMISSION:
            return not self._is_parked(now_seconds, live, match)
        if match.load_blocks:
            batch.load_blocks.extend(match.load_blocks)
            batch.load_tokens += len(match.load_blocks) * self._cache.block_tokens
            batch.loaders.append(live)
        return True

    def take(self, live: LiveRequest, batch: Batch, budget_tokens: int) -> int:
        """Give a batch as many of its tokens as it may have; returns how many."""
        taken = min(live.tokens_left, budget_tokens)
        if self._engine.chunk_tokens:
            taken = min(taken, self._engine.chunk_tokens)
        live.tokens_left -= taken
        chunk = Chunk(taken, live.context_tokens)
        batch.shares.append(Share(live, chunk, is_last=not live.tokens_left))
        live.context_tokens += taken
        return taken

    def take_begun(self, batch: Batch, budget_tokens: int) -> int:
        """Those that are in go first, in their order; returns the tokens taken."""
        left = budget_tokens
        still: list[LiveRequest] = []
        for live in self.begun:
            if left > 0:
                left -= self.take(live, batch, left)
            if live.tokens_left:
                still.append(live)
        self.begun = still
        return budget_tokens - left

    def _bill(self, live: LiveRequest, match: Match) -> None:
        """Its tokens by source."""
        outcome, block_tokens = live.outcome, self._cache.block_tokens
        fetched = len(set(live.fetched_blocks).intersection(match.load_blocks))
        outcome.disk_tokens = fetched * block_tokens
        outcome.host_tokens = (len(match.load_blocks) - fetched) * block_tokens
        outcome.hbm_tokens = (match.blocks - len(match.load_blocks)) * block_tokens
        live.context_tokens = match.blocks * block_tokens
        outcome.computed_tokens = live.request.prompt_tokens - live.context_tokens
        live.tokens_left = outcome.computed_tokens

    def _is_parked(self, now_seconds: float, live: LiveRequest, match: Match) -> bool:
        """Order its load at once; it waits for that, and for blocks that others load."""
        done = now_seconds
        if self._parked:
            shared = live.request.blocks[: match.blocks]
            done = max((self._parked.get(block, done) for block in shared), default=done)
        if match.load_blocks:
            tokens = len(match.load_blocks) * self._cache.block_tokens
            done = max(done, self._movers.load.copy(now_seconds, tokens))
            self._parked.update(dict.fromkeys(match.load_blocks, done))
        if done <= now_seconds:
            self._cache.loaded(match.load_blocks)
            self._forget(match.load_blocks)
            return False
        live.outcome.exposed_seconds += done - now_seconds
        self._timeline.at(done, self._loaded, (live, match.load_blocks))
        return True

    def _loaded(self, _now_seconds: float, parked: tuple[LiveRequest, tuple[int, ...]]) -> None:
        live, blocks = parked
        self._cache.loaded(blocks)
        self._forget(blocks)
        self.begun.append(live)

    def _forget(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self._parked.pop(block, None)
