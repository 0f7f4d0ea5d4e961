"""Fetches from disk into host memory while requests queue: best effort, as Strata's default.

A request that is picked before its fetch is done takes what has come, block by block from the
beginning of its chain, and the rest of the fetch is dropped. What has come stays in host memory
until its request is admitted; so that this cannot fill it, fetches take a bounded share of it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from kvready.advisor.whatif.cache import Cache
from kvready.advisor.whatif.link import Link
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.timeline import Timeline

HOST_SHARE = 0.5  # of host memory, for what was fetched and waits; as in SGLang


class _Fetch(NamedTuple):
    live: LiveRequest
    blocks: tuple[int, ...]


class Fetches:
    """One fetch at a time, first come, first served."""

    def __init__(self, link: Link, cache: Cache, timeline: Timeline) -> None:
        self.link = link
        self._cache = cache
        self._timeline = timeline
        self._queue: deque[_Fetch] = deque()
        self._current: _Fetch | None = None
        self._began_seconds = 0.0
        self._wanted: set[int] = set()  # blocks of the current fetch and of those in the queue
        self._spare_blocks = int(HOST_SHARE * cache.host.capacity_blocks)

    def want(self, now_seconds: float, live: LiveRequest, blocks: tuple[int, ...]) -> None:
        """Bring in what nobody else fetches already."""
        fresh = tuple(block for block in blocks if block not in self._wanted)
        fresh = fresh[: int(HOST_SHARE * self._cache.host.capacity_blocks)]
        if fresh:
            self._wanted.update(fresh)
            self._queue.append(_Fetch(live, fresh))
            self._start(now_seconds)

    def picked(self, now_seconds: float, live: LiveRequest) -> bool:
        """A request is about to be admitted: its fetch ends. True: some of it came only now."""
        current = self._current
        if current is not None and current.live is live:
            taken = now_seconds - self._began_seconds
            each = self.link.copy_seconds(self._tokens(current.blocks)) / len(current.blocks)
            count = len(current.blocks) if each <= 0.0 else int(taken / each)
            self._end(now_seconds, current, current.blocks[:count])
            return count > 0
        for fetch in self._queue:
            if fetch.live is live:
                self._wanted.difference_update(fetch.blocks)
                self._queue.remove(fetch)
                break
        return False

    def admitted(self, now_seconds: float, live: LiveRequest) -> None:
        """Its load holds what it needs; the rest may go."""
        if live.fetched_blocks:
            self._cache.loaded(live.fetched_blocks)
            self._spare_blocks += len(live.fetched_blocks)
            self._start(now_seconds)

    def _start(self, now_seconds: float) -> None:
        if self._current is not None or not self._queue:
            return
        if len(self._queue[0].blocks) > self._spare_blocks:
            return
        self._current = self._queue.popleft()
        self._spare_blocks -= len(self._current.blocks)
        self._began_seconds = now_seconds
        done = now_seconds + self.link.copy_seconds(self._tokens(self._current.blocks))
        self.link.account(now_seconds, is_ordered=False, is_wanted=False)
        self.link.free_seconds = done
        self._timeline.at(done, self._done, self._current)

    def _done(self, now_seconds: float, fetch: _Fetch) -> None:
        if fetch is self._current:
            self._end(now_seconds, fetch, fetch.blocks)

    def _end(self, now_seconds: float, fetch: _Fetch, arrived: tuple[int, ...]) -> None:
        self._current = None
        self._wanted.difference_update(fetch.blocks)
        self._spare_blocks += len(fetch.blocks) - len(arrived)
        self.link.account(now_seconds, is_ordered=False, is_wanted=False)
        self.link.free_seconds = now_seconds
        if arrived:
            self.link.count(self._tokens(arrived))
        fetch.live.fetched_blocks = arrived
        self._cache.fetched(arrived)
        self._start(now_seconds)

    def _tokens(self, blocks: tuple[int, ...]) -> int:
        return len(blocks) * self._cache.block_tokens
