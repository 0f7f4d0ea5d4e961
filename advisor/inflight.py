"""When a prefix that another request is bringing becomes usable: forecast, watched, scored.

A follower waits for its leader's progress past the blocks that they share, or for a load that its
leader ordered. The last shared block is usable when the batch that computes it ends, or the load.
Where the leader is aborted, or the follower computes the blocks itself, there is no outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kvready.advisor.forecast_writer import ForecastWriter, Moment
from kvready.advisor.hits import DELAY_HIT_TOKENS
from kvready.advisor.jobs import Mark, Rolled
from kvready.advisor.ledger import Target
from kvready.advisor.lookahead import Lookahead
from kvready.advisor.readiness import Mover
from kvready.advisor.requests import Copy, RequestState, RequestTracker
from kvready.advisor.shape_cells import inflight_cell
from kvready.collectors.records import BatchPlanned

MAX_AWAITED = 4_096  # followers; further ones get no forecast, counted

Key = TypeVar("Key", str, int)


class Awaited:
    """What one follower waits for: its leader's progress, or copies that others ordered."""

    __slots__ = ("copies", "follower", "leader", "starts_seconds", "tokens")

    def __init__(
        self,
        follower: str,
        starts_seconds: float,
        leader: str = "",
        tokens: int = 0,
        copies: Iterable[int] = (),
    ) -> None:
        self.follower = follower
        self.starts_seconds = starts_seconds
        self.leader = leader
        self.tokens = tokens  # from the start of the prompt to the end of what is shared
        self.copies = set(copies)


class InflightForecasts:
    """Followers of one rank, each with at most one open forecast."""

    def __init__(
        self,
        writer: ForecastWriter,
        lookahead: Lookahead,
        mover: Mover,
        requests: RequestTracker,
    ) -> None:
        self.unwatched = 0  # followers beyond the bound
        self._writer = writer
        self._lookahead = lookahead
        self._mover = mover
        self._requests = requests
        self._awaited: dict[str, Awaited] = {}  # by follower
        self._by_leader: dict[str, set[str]] = {}
        self._by_copy: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def rolled_to(self, state: RequestState, tokens: int, moment: Moment) -> Rolled:
        """Forward until a request has computed so many tokens of its prompt."""
        if state.has_computed(tokens):
            return Rolled(None, None, 0.0)
        return self._lookahead.roll(state, moment, Mark(state.arrived.request_id, tokens))

    def copies_ready_seconds(self, copies: Iterable[Copy], moment: Moment) -> float:
        """From now until the last of these is usable."""
        return max((self._mover.left_seconds(copy, moment[1]) for copy in copies), default=0.0)

    # What begins a wait ----------------------------------------------------------------------

    def mark_of(self, state: RequestState) -> Mark | None:
        """What an arriving request would wait for, if others bring enough of its prefix."""
        is_delay_hit = state.promised_tokens >= DELAY_HIT_TOKENS
        if not is_delay_hit or state.leader not in self._requests.live:
            return None
        return Mark(state.leader, state.promised_end_tokens)

    def follow(
        self,
        state: RequestState,
        rolled: Rolled,
        starts_seconds: float,
        moment: Moment,
    ) -> None:
        """A request arrived, or got another leader: forecast when that one has brought enough."""
        mark, mark_seconds = self.mark_of(state), rolled.mark_seconds
        follower = state.arrived.request_id
        if mark is None or mark_seconds is None or follower in self._awaited:
            return
        awaited = Awaited(follower, starts_seconds, mark.request_id, mark.tokens)
        if self._watch(awaited):
            cell = inflight_cell("batch", state.promised_tokens)
            version = self._lookahead.version_of(rolled, mark_seconds)
            self._write(awaited, mark_seconds, cell, version, moment)

    def follow_copies(self, state: RequestState, begin_seconds: float, moment: Moment) -> None:
        """The engine passed a request over, for loads that others ordered."""
        follower = state.arrived.request_id
        copies = [copy for _, copy in state.waits_on if copy.ready_seconds is None]
        if not copies or follower in self._awaited:
            return
        names = [copy.decided.load_id for copy in copies]
        awaited = Awaited(follower, begin_seconds, copies=names)
        if self._watch(awaited):
            decided = copies[0].decided
            version = self._mover.model(decided.source, decided.destination).version
            tokens = sum(copy.decided.tokens for copy in copies)
            seconds = self.copies_ready_seconds(copies, moment)
            self._write(awaited, seconds, inflight_cell("load", tokens), version, moment)

    # What ends it ----------------------------------------------------------------------------

    def progressed(self, leader: RequestState, tokens: int, seconds: float, moment: Moment) -> None:
        """A leader has computed, or found, so many tokens of its prompt, as of an event time."""
        name = leader.arrived.request_id
        for follower in sorted(self._by_leader.get(name, ())):
            awaited = self._awaited[follower]
            if tokens >= awaited.tokens:
                self._end(awaited, seconds, moment)

    def copied(self, load_id: int, ready_seconds: float, moment: Moment) -> None:
        """A copy that followers wait for is usable."""
        for follower in sorted(self._by_copy.get(load_id, ())):
            awaited = self._awaited[follower]
            awaited.copies.discard(load_id)
            self._by_copy[load_id].discard(follower)
            if not awaited.copies:
                self._end(awaited, ready_seconds, moment)
        self._by_copy.pop(load_id, None)

    def planned(self, batch: BatchPlanned, moment: Moment) -> None:
        """A batch may hold a follower that computes itself what it could have waited for."""
        for member in batch.members:
            awaited = self._awaited.get(member.request_id)
            if awaited is not None and awaited.leader and member.context_tokens < awaited.tokens:
                self._drop(awaited, moment)

    def gone(self, request_id: str, moment: Moment) -> None:
        """A request ended: it brings nothing any more, and waits for nothing."""
        own = self._awaited.get(request_id)
        if own is not None:
            self._drop(own, moment)
        for follower in sorted(self._by_leader.get(request_id, ())):
            self._drop(self._awaited[follower], moment)

    def copy_lost(self, load_id: int, moment: Moment) -> None:
        """A copy ended unseen."""
        for follower in sorted(self._by_copy.get(load_id, ())):
            self._drop(self._awaited[follower], moment)

    # -----------------------------------------------------------------------------------------

    def _write(
        self, awaited: Awaited, seconds: float, cell: str, version: str, moment: Moment
    ) -> None:
        elapsed = max(0.0, moment[1] - awaited.starts_seconds)
        self._writer.write(
            Target.INFLIGHT_READY,
            awaited.follower,
            awaited.starts_seconds,
            elapsed + seconds,
            cell,
            version,
            moment,
        )

    def _watch(self, awaited: Awaited) -> bool:
        if len(self._awaited) >= MAX_AWAITED:
            self.unwatched += 1
            return False
        self._awaited[awaited.follower] = awaited
        if awaited.leader:
            self._by_leader.setdefault(awaited.leader, set()).add(awaited.follower)
        for load_id in awaited.copies:
            self._by_copy.setdefault(load_id, set()).add(awaited.follower)
        return True

    def _end(self, awaited: Awaited, seconds: float, moment: Moment) -> None:
        self._forget(awaited)
        actual_seconds = seconds - awaited.starts_seconds
        self._writer.pair(Target.INFLIGHT_READY, awaited.follower, actual_seconds, moment)

    def _drop(self, awaited: Awaited, moment: Moment) -> None:
        self._forget(awaited)
        self._writer.censor(Target.INFLIGHT_READY, awaited.follower, moment)

    def _forget(self, awaited: Awaited) -> None:
        del self._awaited[awaited.follower]
        _remove(self._by_leader, awaited.leader, awaited.follower)
        for load_id in awaited.copies:
            _remove(self._by_copy, load_id, awaited.follower)


def _remove(index: dict[Key, set[str]], key: Key, follower: str) -> None:
    members = index.get(key)
    if members is not None:
        members.discard(follower)
        if not members:
            del index[key]
