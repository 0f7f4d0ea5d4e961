"""Fetches from disk into host memory while requests queue: best effort, as Strata's default.

A request that is picked before its fetch is done takes what has come, block by block from the
beginning of its chain, and the rest of the fetch is dropped.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from kvready.advisor.whatif.cache import Cache
from kvready.advisor.whatif.link import Link
from kvready.advisor.whatif.live_request import LiveRequest
from kvready.advisor.whatif.timeline import Timeline


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

    def want(self, now_seconds: float, live: LiveRequest, blocks: tuple[int, ...]) -> None:
        """Bring in what nobody else fetches already."""
        fresh = tuple(block for block in blocks if block not in self._wanted)
        if fresh:
            self._wanted.update(fresh)
            self._queue.append(_Fetch(live, fresh))
            self._start(now_seconds)

    def picked(self, now_seconds: float, live: LiveRequest) -> None:
        """A request is about to run: what has come of its fetch is in host memory now."""
        current = self._current
        if current is not None and current.live is live:
            taken = now_seconds - self._began_seconds
            each = self.link.copy_seconds(self._tokens(current.blocks)) / len(current.blocks)
            count = len(current.blocks) if each <= 0.0 else int(taken / each)
            self._end(now_seconds, current.blocks[:count])
            return
        for fetch in self._queue:
            if fetch.live is live:
                self._wanted.difference_update(fetch.blocks)
                self._queue.remove(fetch)
                return

    def _start(self, now_seconds: float) -> None:
        if self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._began_seconds = now_seconds
            done = now_seconds + self.link.copy_seconds(self._tokens(self._current.blocks))
            self.link.account(now_seconds, is_ordered=False, is_wanted=False)
            self.link.free_seconds = done
            self._timeline.at(done, self._done, self._current)

    def _done(self, now_seconds: float, fetch: _Fetch) -> None:
        if fetch is self._current:
            self._end(now_seconds, fetch.blocks)

    def _end(self, now_seconds: float, arrived: tuple[int, ...]) -> None:
        fetch = self._current
        if fetch is None:
            return
        self._current = None
        self._wanted.difference_update(fetch.blocks)
        self.link.account(now_seconds, is_ordered=False, is_wanted=False)
        self.link.free_seconds = now_seconds
        self.link.count(self._tokens(arrived))
        if arrived:
            self._cache.to_host(arrived)
            fetch.live.fetched_blocks.update(arrived)
        self._start(now_seconds)

    def _tokens(self, blocks: tuple[int, ...]) -> int:
        return len(blocks) * self._cache.block_tokens
