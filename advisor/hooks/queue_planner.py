"""Which waiting requests an engine should pass over in this step, and in which order it scans.

Strata's deferral and vLLM's order of loads, by the code that plans in shadow. It follows the
engine's queue by looking at it at each pass, so that no event can be missed: whoever left waits no
more, whoever leads and was preempted or ended leads nobody. A pass takes in only so many new blocks
and looks at so many requests; the rest of a longer queue stands as it does in a stock engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from kvready.advisor.hooks.held_requests import HeldRequests, LeaderSpeed
from kvready.advisor.hooks.vllm_view import Chain, VllmView, computes, is_plain, prefix_group
from kvready.advisor.load_start_order import load_start_order
from kvready.advisor.strata import Admission as Admitted
from kvready.advisor.strata import Plan, Reason, Settings, Waiting, defer_delay_hits
from kvready.advisor.transient import TransientBlocks
from kvready.advisor.waiting_queue import WaitingQueue

SCANNED_REQUESTS = 128  # of a longer queue, from its front
NEW_BLOCKS_PER_PASS = 2_048  # of newcomers, each of whom costs as much as its prompt is long

Treats = Callable[[int | None, int], bool]  # prefix group, awaited tokens
Moves = Callable[[int], bool]  # bytes to load


class Round(NamedTuple):
    """One pass."""

    held: frozenset[str]
    order: Sequence[str] | None  # of all that were looked at and are not held; None: as it is


NOTHING = Round(frozenset(), None)


class _Leader:
    """One that computes what others may wait for."""

    __slots__ = ("computed", "request")

    def __init__(self, request: Any) -> None:
        self.request: Any = request
        self.computed = int(request.num_computed_tokens)


class QueuePlanner:
    """Made when a policy is switched on; nothing of it outlives that."""

    def __init__(self, view: VllmView, hold_seconds: float) -> None:
        self.speed = LeaderSpeed()
        self.holds = HeldRequests(hold_seconds, self.speed)
        self._view = view
        self._settings = Settings(hold_seconds=hold_seconds)
        self._transient = TransientBlocks()
        self._queue = WaitingQueue(view.match, self._transient, view.block_tokens)
        self._waiting: dict[str, Any] = {}
        self._chains: dict[str, Chain] = {}
        self._promised: dict[str, int] = {}  # from which block on
        self._leaders: dict[str, _Leader] = {}
        self._held: frozenset[str] = frozenset()
        self._now_seconds: float | None = None  # of the pass before

    def begin(self, unfinished: Iterable[Any]) -> None:
        """Who computes already, when a policy comes on."""
        for request in unfinished:
            if computes(request) and request.num_computed_tokens < request.num_prompt_tokens:
                self._lead(request, self._view.chain(request))

    def round(self, now_seconds: float, treats: Treats | None, moves: Moves | None) -> Round:
        """Plan a pass. Whom dedup may hold, and which loads balance may start early; None: off."""
        view = self._view
        queue = list(islice(view.queue, SCANNED_REQUESTS))
        self._follow_queue(queue, now_seconds)
        self._follow_leaders(now_seconds)
        self._look(now_seconds)
        known = [one.request_id for one in queue if one.request_id in self._waiting]
        waiting = self._queue.these(known, now_seconds)
        self._promise(waiting)
        candidates, held = waiting, frozenset[str]()
        if treats is not None:
            candidates, deferred = defer_delay_hits(self._treated(waiting, treats), self._settings)
            held = frozenset([one.request_id for one in deferred])
        if held - self._held:
            self._queue.settle(Plan((), tuple(held), (), 0, 0), now_seconds)
        self._held, self._now_seconds = held, now_seconds
        return Round(held, moves and self._order(queue, candidates, held, moves))

    def _order(
        self,
        queue: Sequence[Any],
        candidates: Sequence[Waiting],
        held: frozenset[str],
        moves: Moves,
    ) -> Sequence[str] | None:
        """Whoever owes its user tokens goes first; who is not known yet stays behind the others."""
        block_bytes = self._view.block_bytes
        ordered = [
            one
            if not one.load_tokens or moves(len(one.load_hashes) * block_bytes)
            else msgspec.structs.replace(one, load_tokens=0)
            for one in candidates
            if is_plain(self._waiting[one.request_id])
        ]
        planned = load_start_order(ordered, self._view.limits(), self._settings)
        planned_names = [one.request_id for one in planned]
        stands = [one.request_id for one in queue if one.request_id not in held]
        others = set(stands).difference(planned_names)
        order = [name for name in stands if name in others and name in self._waiting]
        order += planned_names
        order += [name for name in stands if name not in self._waiting]
        return None if order == stands else order

    def _treated(self, waiting: Sequence[Waiting], treats: Treats) -> list[Waiting]:
        """Who may not be held waits for nobody."""
        threshold = self._settings.delay_tokens
        places = {one.request_id: place for place, one in enumerate(waiting)}
        return [
            one
            if one.awaited_tokens <= threshold or self._may_hold(one, places, treats)
            else msgspec.structs.replace(one, awaited_tokens=0)
            for one in waiting
        ]

    def _may_hold(self, one: Waiting, places: Mapping[str, int], treats: Treats) -> bool:
        request = self._waiting[one.request_id]
        if not is_plain(request):
            return False
        if one.leader not in self._leaders:
            # One that waits too leads if it can run, and if its turn is first.
            leader = self._waiting.get(one.leader)
            if leader is None or not is_plain(leader):
                return False
            if places[one.leader] > places[one.request_id]:
                return False
        return treats(prefix_group(request), one.awaited_tokens) and self.holds.may_hold(
            one.request_id, one.awaited_tokens, one.held_seconds
        )

    def _follow_queue(self, queue: Sequence[Any], now_seconds: float) -> None:
        present = {one.request_id for one in queue}
        gone = [name for name in self._waiting if name not in present]
        self._settle(gone, now_seconds)
        for name in gone:
            self._leave(name)
        room = NEW_BLOCKS_PER_PASS
        for request in queue:
            name = request.request_id
            if name in self._waiting or room <= 0:
                continue
            if name in self._leaders:
                self._end(name)  # preempted: it leads nobody until it runs again
            chain = self._chains[name] = self._view.chain(request)
            room -= len(chain)
            self._waiting[name] = request
            self._queue.arrive(name, request.num_prompt_tokens, chain)
            if self._view.knows_all_tiers and is_plain(request):
                self._promise(self._queue.these([name], now_seconds))

    def _settle(self, gone: Sequence[str], now_seconds: float) -> None:
        """Since when somebody is held, or was passed by a later one."""
        admitted = [
            Admitted(name, Reason.FITS, 0, 0) for name in gone if computes(self._waiting[name])
        ]
        if admitted or self._held:
            deferred = tuple(self._held)
            self._queue.settle(Plan(tuple(admitted), deferred, (), 0, 0), now_seconds)

    def _leave(self, name: str) -> None:
        """It waits no longer: it computes, or it ended, or it is too far behind."""
        request = self._waiting.pop(name)
        chain = self._chains.pop(name)
        self._queue.leave(name)
        self._promised.pop(name, None)
        self.holds.forget(name)
        if computes(request):
            self._lead(request, chain)
        else:
            self._transient.abort(name)
            self._queue.follow(name)

    def _lead(self, request: Any, chain: Chain) -> None:
        """It brings what it has not computed yet, and what it finds is there."""
        name = request.request_id
        leader = self._leaders[name] = _Leader(request)
        if request.num_preemptions == 0:
            start = leader.computed // self._view.block_tokens
            self._transient.promise(chain, start, name)
            self._transient.dispatch(name)

    def _follow_leaders(self, now_seconds: float) -> None:
        before = self._now_seconds
        for name, leader in list(self._leaders.items()):
            request: Any = leader.request
            if self._view.request(name) is not request or not computes(request):
                self._end(name)
                continue
            computed = int(request.num_computed_tokens)
            if before is not None and request.status.name == "RUNNING":
                self.speed.saw(computed - leader.computed, now_seconds - before)
            leader.computed = computed
            if computed >= request.num_prompt_tokens and request.status.name == "RUNNING":
                del self._leaders[name]
                self._transient.complete(name)
                self._queue.follow(name)

    def _end(self, name: str) -> None:
        """It brings nothing any more: aborted, preempted or done."""
        del self._leaders[name]
        self._transient.abort(name)
        self._queue.follow(name)

    def _promise(self, waiting: Sequence[Waiting]) -> None:
        """What a request finds can shrink while it waits: then it will compute more."""
        if not self._view.knows_all_tiers:
            return
        has_grown = False
        for one in waiting:
            name = one.request_id
            start = one.context_tokens // self._view.block_tokens
            known = self._promised.get(name)
            if (known is None or start < known) and is_plain(self._waiting[name]):
                self._promised[name] = start
                self._transient.promise(self._chains[name], start, name)
                has_grown |= known is not None
        if has_grown:
            self._queue.follow("")  # who had nobody to wait for may have somebody now

    def _look(self, now_seconds: float) -> None:
        """Renew the matches of those whose last block went, or whose next one came.

        Of a prefix the tail is evicted first, so that its last block vouches for those before it.
        """
        view, size = self._view, self._view.block_tokens
        came: dict[int, None] = {}
        lost: dict[int, Chain] = {}  # by the block that is gone: what was found up to it
        for one in self._queue.these(self._waiting, now_seconds):
            chain = self._chains[one.request_id]
            held = one.context_tokens // size
            in_hbm = held - len(one.load_hashes)
            if in_hbm and not view.is_in_hbm(chain[in_hbm - 1]):
                lost.setdefault(chain[in_hbm - 1], chain[:in_hbm])
            elif held > in_hbm and not view.is_held(chain[held - 1]):
                lost.setdefault(chain[held - 1], chain[:held])
            if held > in_hbm and view.is_in_hbm(chain[in_hbm]):
                came[chain[in_hbm]] = None
            if held < len(chain) and view.is_held(chain[held]):
                came[chain[held]] = None
        if lost:
            self._queue.removed([chain[self._found(chain)] for chain in lost.values()])
        self._queue.stored(came)

    def _found(self, chain: Chain) -> int:
        """Where the first block lies that went, of a chain whose last one did."""
        match = self._view.match(chain)
        return min(match.hbm_blocks, len(chain) - 1)
