"""What chance gave an engine in an episode: how long its batches and copies took beside the model.

Whoever rolls the same requests pays the same: a batch of prefills as the batches did that really
computed those prompts, a step of decodes as the one that really ran at that time, a copy what it
really took. So what differs between two rolls is what was decided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from kvready.advisor.rollforward import BatchCost
from kvready.collectors.records import BatchMember

T = TypeVar("T")


class Ran(NamedTuple):
    """A batch as it ran; seconds count from the episode's first pass."""

    members: Sequence[BatchMember]
    begin_seconds: float
    took_seconds: float


class _Chunk(NamedTuple):
    """Tokens of one prompt that one batch computed."""

    begin: int
    end: int
    factor: float


class Moments(Generic[T]):
    """What was seen, by when; asked by time."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._seen: list[T] = []

    def add(self, begin_seconds: float, seen: T) -> None:
        """Times must not fall."""
        self._begins.append(begin_seconds)
        self._seen.append(seen)

    def at(self, seconds: float) -> T | None:
        """The nearest in time; None: nothing was seen."""
        begins = self._begins
        if not begins:
            return None
        after = bisect_left(begins, seconds)
        if after == len(begins):
            return self._seen[-1]
        is_before = after > 0 and seconds - begins[after - 1] <= begins[after] - seconds
        return self._seen[after - 1 if is_before else after]


class BatchDraws:
    """How many times as long batches took as a model says of them."""

    def __init__(self, batches: Sequence[Ran], model: BatchCost) -> None:
        self._chunks: dict[str, list[_Chunk]] = {}
        self._prefills: Moments[float] = Moments()
        self._decodes: Moments[float] = Moments()
        self.begin_seconds = batches[0].begin_seconds if batches else None
        self.end_seconds = batches[-1].begin_seconds if batches else 0.0  # of what was drawn
        for members, begin_seconds, took_seconds in batches:
            says = model(members) if members else 0.0
            if says <= 0.0 or took_seconds <= 0.0:
                continue
            factor = took_seconds / says
            prefills = [member for member in members if member.is_prefill]
            (self._prefills if prefills else self._decodes).add(begin_seconds, factor)
            for member in prefills:
                end = member.context_tokens + member.new_tokens
                chunk = _Chunk(member.context_tokens, end, factor)
                self._chunks.setdefault(member.request_id, []).append(chunk)

    def factor(self, members: Sequence[BatchMember], now: float) -> float:
        """Of a batch that somebody would run at this moment."""
        tokens = 0
        weighed = 0.0
        for member in members:
            if member.is_prefill:
                tokens += member.new_tokens
                weighed += member.new_tokens * self._of_chunk(member, now)
        if tokens:
            return weighed / tokens
        return self._decodes.at(now) or self._prefills.at(now) or 1.0

    def _of_chunk(self, member: BatchMember, now: float) -> float:
        """By the batch that computed the first of these tokens; by the time where none did."""
        for begin, end, factor in self._chunks.get(member.request_id, ()):
            if begin <= member.context_tokens < end:
                return factor
        return self._prefills.at(now) or self._decodes.at(now) or 1.0


NO_DRAWS = BatchDraws((), lambda _: 0.0)
