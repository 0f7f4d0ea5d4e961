"""Which waiting requests an engine should pass over in this step, and in which order it scans.

Strata's deferral and vLLM's order of loads, by the code that plans in shadow. It follows the
engine's queue by looking at it at each pass, so that no event can be missed: whoever left waits no
more, whoever leads and was preempted or ended leads nobody. A pass takes in only so many new blocks
and looks at so many requests; the rest of a longer queue stands as it does in a stock engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kvready.advisor.hooks.held_requests import HeldRequests
from kvready.advisor.hooks.leaders import Leaders
from kvready.advisor.hooks.vllm_view import Chain, VllmView, computes, is_plain, prefix_group
from kvready.advisor.load_start_order import load_start_order
from kvready.advisor.strata import Admission as Admitted
from kvready.advisor.strata import Plan, Reason, Settings, Waiting, defer_delay_hits
from kvready.advisor.transient import TransientBlocks
from kvready.advisor.waiting_queue import Match, WaitingQueue

SCANNED_REQUESTS = 128  # of a longer queue, from its front
STANDS_PASSES = 3  # what of the caches no event tells may be so old
NEW_BLOCKS_PER_PASS = 2_048  # of newcomers, each of whom costs as much as its prompt is long

Treats = Callable[[int | None, int], bool]  # prefix group, awaited tokens
Moves = Callable[[int], bool]  # bytes to load


class Round(NamedTuple):
    """One pass."""

    held: frozenset[str]
    order: Sequence[str] | None  # of all that were looked at and are not held; None: as it is


class _Planned(NamedTuple):
    """A round, and how long it stands."""

    queue: Sequence[Any]
    asked: tuple[Treats | None, Moves | None]
    until_seconds: float
    passes_left: int
    round: Round


class QueuePlanner:
    """Made when a policy is switched on; nothing of it outlives that."""

    def __init__(self, view: VllmView, hold_seconds: float) -> None:
        self._leaders = Leaders()
        self.holds = HeldRequests(hold_seconds, self._leaders.speed)
        self._view = view
        self._settings = Settings(hold_seconds=hold_seconds)
        self._transient = TransientBlocks()
        self._queue = WaitingQueue(self._match, self._transient, view.block_tokens)
        self._matches: dict[int, tuple[Chain, Match]] = {}  # found in this pass, by first block
        self._waiting: dict[str, Any] = {}
        self._chains: dict[str, Chain] = {}
        self._groups: dict[str, int | None] = {}
        self._promised: dict[str, int] = {}  # from which block on
        self._plain: set[str] = set()  # once it waits for its turn alone, it does so until it runs
        self._planned: _Planned | None = None

    def begin(self, unfinished: Iterable[Any]) -> None:
        """Who computes already, when a policy comes on."""
        for request in unfinished:
            if computes(request) and request.num_computed_tokens < request.num_prompt_tokens:
                self._lead(request, self._view.chain(request))

    def round(self, now_seconds: float, treats: Treats | None, moves: Moves | None) -> Round:
        """Plan a pass. Whom dedup may hold, and which loads balance may start early; None: off.

        While the queue and its leaders stay as they were a round stands for a few passes.
        """
        queue = self._view.first(SCANNED_REQUESTS)
        changed = self._follow_leaders(now_seconds)
        planned = self._planned
        if (
            planned is not None
            and not changed
            and planned.passes_left
            and now_seconds < planned.until_seconds
            and planned.asked == (treats, moves)
            and planned.queue == queue
        ):
            self._planned = planned._replace(passes_left=planned.passes_left - 1)
            return planned.round
        found = self._plan(queue, now_seconds, treats, moves)
        is_known = len(self._waiting) == len(queue)
        self._planned = _Planned(
            queue,
            (treats, moves),
            now_seconds + self.holds.soonest_seconds,
            STANDS_PASSES if is_known else 0,
            found,
        )
        return found

    def _plan(
        self, queue: Sequence[Any], now_seconds: float, treats: Treats | None, moves: Moves | None
    ) -> Round:
        self._matches.clear()
        self.holds.begin()
        self._follow_queue(queue, now_seconds)
        known = [one.request_id for one in queue if one.request_id in self._waiting]
        waiting = self._queue.these(known, now_seconds)
        if self._look(waiting):
            waiting = self._queue.these(known, now_seconds)
        self._promise(waiting)
        candidates, held = waiting, frozenset[str]()
        if treats is not None:
            candidates, deferred = defer_delay_hits(self._treated(waiting, treats), self._settings)
            held = frozenset([one.request_id for one in deferred])
        before = frozenset[str]() if self._planned is None else self._planned.round.held
        if held - before:
            self._queue.settle(Plan((), tuple(held), (), 0, 0), now_seconds)
        return Round(held, moves and self._order(queue, candidates, held, moves))

    def limited(self, request: Any, moves: Moves) -> int | None:
        """How many tokens a request that arrives may load; None: all that it finds."""
        load_limit = self._leaders.load_limit
        if not load_limit.loading_tokens:
            return None
        match = self._view.match(self._view.chain(request))
        blocks = match.held_blocks - match.hbm_blocks
        if not moves(blocks * self._view.block_bytes):
            return None
        return load_limit.limit(blocks * self._view.block_tokens)

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
            if self._is_plain(one.request_id)
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
        name, tokens = one.request_id, one.awaited_tokens
        if not self._is_plain(name):
            return False
        if one.leader not in self._leaders:
            # One that waits too leads if it can run, and if its turn is first.
            place = places.get(one.leader)
            if place is None or place > places[name] or not self._is_plain(one.leader):
                return False
        return treats(self._groups[name], tokens) and self.holds.may_hold(
            name, tokens, one.held_seconds
        )

    def _is_plain(self, name: str) -> bool:
        if name not in self._plain:
            if not is_plain(self._waiting[name]):
                return False
            self._plain.add(name)
        return True

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
                self._end(name)
            chain = self._chains[name] = self._view.chain(request)
            room -= len(chain)
            self._waiting[name] = request
            self._groups[name] = prefix_group(request)
            self._queue.arrive(name, request.num_prompt_tokens, chain)
            if self._view.knows_all_tiers:
                self._promise(self._queue.these([name], now_seconds))

    def _settle(self, gone: Sequence[str], now_seconds: float) -> None:
        """Who of those that are left was passed by a later one."""
        admitted = [
            Admitted(name, Reason.FITS, 0, 0) for name in gone if computes(self._waiting[name])
        ]
        if admitted:
            self._queue.settle(Plan(tuple(admitted), (), (), 0, 0), now_seconds)

    def _leave(self, name: str) -> None:
        """It waits no longer: it computes, or it ended, or it is too far behind."""
        request = self._waiting.pop(name)
        chain = self._chains.pop(name)
        self._queue.leave(name)
        del self._groups[name]
        self._promised.pop(name, None)
        self._plain.discard(name)
        self.holds.forget(name)
        if computes(request):
            self._lead(request, chain)
        else:
            self._transient.abort(name)
            self._queue.follow(name)

    def _lead(self, request: Any, chain: Chain) -> None:
        """It brings what it has not computed yet, and what it finds is there."""
        name = request.request_id
        computed = self._leaders.add(request)
        self._transient.promise(chain, computed // self._view.block_tokens, name)
        self._transient.dispatch(name)

    def _follow_leaders(self, now_seconds: float) -> bool:
        """Whether anything came of it."""
        followed = self._leaders.follow(now_seconds, self._view.unfinished)
        for name in followed.ended:
            self._transient.abort(name)
            self._queue.follow(name)
        for name in followed.done:
            self._transient.complete(name)
            self._queue.follow(name)
        return followed.is_near or bool(followed.ended or followed.done)

    def _end(self, name: str) -> None:
        """It waits again, and leads nobody until it runs again."""
        self._leaders.remove(name)
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
            if (known is None or start < known) and self._is_plain(name):
                self._promised[name] = start
                self._transient.promise(self._chains[name], start, name)
                has_grown |= known is not None
        if has_grown:
            self._queue.follow("")  # who had nobody to wait for may have somebody now

    def _look(self, waiting: Sequence[Waiting]) -> bool:
        """Whether matches are to be renewed: of whom the last block went, or the next one came.

        Of a prefix the tail is evicted first, so that its last block vouches for those before it.
        Whoever waits for one that computes is not looked at before that one is near: the blocks of
        what runs are not evicted, and more of them than before would change nothing.
        """
        in_hbm, is_held = self._view.in_hbm, self._view.is_held
        chains, size = self._chains, self._view.block_tokens
        leaders, threshold = self._leaders, self._settings.delay_tokens
        came: dict[int, None] = {}
        lost: dict[int, Chain] = {}  # by the block that is gone: what was found up to it
        for one in waiting:
            missing = one.awaited_tokens - threshold
            if missing > 0 and leaders.is_far(one.leader, one.context_tokens + missing):
                continue
            chain = chains[one.request_id]
            end = one.context_tokens // size
            hbm_end = end - len(one.load_hashes)
            if hbm_end and in_hbm(chain[hbm_end - 1]) is None:
                lost.setdefault(chain[hbm_end - 1], chain[:hbm_end])
            elif end > hbm_end:
                if not is_held(chain[end - 1]):
                    lost.setdefault(chain[end - 1], chain[:end])
                if in_hbm(chain[hbm_end]) is not None:
                    came[chain[hbm_end]] = None
            if end < len(chain) and is_held(chain[end]):
                came[chain[end]] = None
        if lost:
            self._queue.removed([chain[self._found(chain)] for chain in lost.values()])
        if came:
            self._queue.stored(came)
        return bool(lost or came)

    def _match(self, chain: Chain) -> Match:
        """Followers of one leader look for the same blocks, and a block names all before it."""
        known = self._matches.get(chain[0])
        if known is not None:
            like, match = known
            end = match.held_blocks
            if end < min(len(chain), len(like)) and chain[end] == like[end]:
                return match
        match = self._view.match(chain)
        self._matches[chain[0]] = chain, match
        return match

    def _found(self, chain: Chain) -> int:
        """Where the first block lies that went, of a chain whose last one did."""
        match = self._view.match(chain)
        return min(match.hbm_blocks, len(chain) - 1)
