"""Carries out dedup and balance in one vLLM scheduler, pass by pass, while the sidecar says so.

Before a pass those that are held leave the engine's queue, and the rest may be put in another
order; after it all that are left stand in their old places. So nothing of a hold outlives its pass:
what the flags no longer say at the next one no longer happens, and whoever aborts or preempts finds
the queue as a stock engine keeps it.

Whatever goes wrong in here is counted, said once, and ends with stock passes: for the rest of the
process's life, or until the flags have been off and come on again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvready.advisor.hooks.compatibility import SCHEDULER_HOOK, VLLM, Support, support
from kvready.advisor.hooks.lease import OFF, Held, Switch
from kvready.advisor.hooks.named_step import NamedStep
from kvready.advisor.hooks.queue_planner import Moves, QueuePlanner, Round, Treats
from kvready.advisor.hooks.vllm_view import LOAD_LIMIT, VllmView
from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.advisor.shape_cells import inflight_cell, load_cell, told_cell
from kvready.collectors.names import Tier

# vLLM shows its own loggers; others, in some versions, nowhere.
logger = logging.getLogger("vllm.kvready")

POLICIES = (Policy.DEDUP, Policy.BALANCE)
NOBODY: frozenset[str] = frozenset()
MAX_KNOWN = 4_096  # answers that are kept while the flags stay as they are


class _Stood(NamedTuple):
    """A queue as it stood before a pass that changed it."""

    queue: Any
    everybody: list[Any]
    held: list[Any]
    left: list[Any]  # in the pass


class VllmHook:
    """One scheduler's. `before_pass`, the engine's own pass, `after_pass`; raises nothing."""

    def __init__(
        self,
        scheduler: Any,
        version: str,
        flags: Callable[[], Held],
        hold_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`flags`: what the sidecar said last; read at each pass, so it may not wait."""
        self.held: frozenset[str] = NOBODY  # in this pass; the observer tells of them
        self.failures = 0
        self.passes = 0
        self.refusals: dict[Policy, str] = {}
        self.planner: QueuePlanner | None = None  # while a policy is on
        self._scheduler = scheduler
        self._flags = flags
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._steps = NamedStep()
        self._switches = OFF, OFF
        self._round: Round | None = None  # that was arranged last, and how
        self._is_marked = False  # those that it holds
        self._arrangement: _Stood | None = None
        self._questions: tuple[Treats | None, Moves | None] = None, None
        self._has_failed = False
        self._stood: _Stood | None = None
        self._view: VllmView | None = None
        try:
            self._examine(version)
        except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
            self._fail(error)
            self.refusals = dict.fromkeys(POLICIES, "the scheduler could not be read")

    def arriving(self, request: Any) -> None:
        """A request is about to be handed to the scheduler, and to its connector."""
        try:
            self._limit_load(request)
        except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
            self._fail(error)

    def before_pass(self) -> None:
        """Take out who is held, and put the rest in order."""
        try:
            self._before_pass()
        except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
            self._fail(error)
            stood, self._stood = self._stood, None
            if stood is not None:
                _return_missing(stood.queue, stood.everybody)

    def after_pass(self) -> None:
        """Put everybody back."""
        stood, self._stood = self._stood, None
        if stood is None:
            return
        try:
            self._restore(stood)
            self._mark(stood.held)
        except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
            self._fail(error)
            _return_missing(stood.queue, stood.held)

    def _examine(self, version: str) -> None:
        """What this engine, with this configuration, can be asked for."""
        for policy in POLICIES:
            row = support(VLLM, version, SCHEDULER_HOOK, policy)
            if row.support is Support.REFUSES:
                self.refusals[policy] = row.says
        if len(self.refusals) < len(POLICIES):
            self._view = VllmView(self._scheduler)
            self.refusals = self._view.refusals() | self.refusals
        for policy, reason in self.refusals.items():
            logger.warning("kvready hook: %s stays out: %s", policy, reason)

    def _before_pass(self) -> None:
        step, self.passes = self.passes, self.passes + 1
        now_seconds = self._clock()
        heard = self._flags()
        read = {policy.value: heard.switch(policy, now_seconds) for policy in POLICIES}
        self._steps.say(step, read)
        switches = self._steps.at(step)
        dedup, balance = (self._switch(switches, policy) for policy in POLICIES)
        if dedup is OFF and balance is OFF:
            self._rest(switches)
        elif not self._has_failed:
            self._act(now_seconds, dedup, balance)

    def _switch(self, switches: Mapping[str, Switch], policy: Policy) -> Switch:
        switch = switches.get(policy, OFF)
        acts = policy not in self.refusals and (switch.is_on or switch.split is not None)
        return switch if acts else OFF

    def _rest(self, switches: Mapping[str, Switch]) -> None:
        """Nothing is on."""
        if self.planner is not None:
            logger.info("kvready hook: off from step %d on", self.passes - 1)
            self.planner = None
        self._release()
        if not any(switch.is_on or switch.split is not None for switch in switches.values()):
            self._has_failed = False

    def _act(self, now_seconds: float, dedup: Switch, balance: Switch) -> None:
        assert self._view is not None, "a policy that is not refused has a view"
        if self.planner is None:
            logger.info("kvready hook: on from step %d on", self.passes - 1)
            self.planner = QueuePlanner(self._view, self._hold_seconds)
            self.planner.begin(self._scheduler.requests.values())
        round_ = self.planner.round(now_seconds, *self._asked(dedup, balance))
        if round_ is not self._round:
            self._release()
            self._round = round_
        if round_.held or round_.order is not None:
            self._stood = self._arranged(round_)
            self.held = round_.held
            self._take_out(self._stood)

    def _asked(self, dedup: Switch, balance: Switch) -> tuple[Treats | None, Moves | None]:
        """Whom they let the planner treat; the same questions while the flags stay as they are."""
        if self._switches[0] is not dedup or self._switches[1] is not balance:
            self._switches = dedup, balance
            treats = None if dedup is OFF else _treats(dedup)
            self._questions = treats, _moves(balance) if balance.is_on else None
        return self._questions

    def _limit_load(self, request: Any) -> None:
        """Where the link is so busy that computing again is sooner; a client's own limit stands."""
        if self.planner is None:
            return
        balance = self._flags().switch(Policy.BALANCE, self._clock())
        told = request.kv_transfer_params
        if Policy.BALANCE in self.refusals or not balance.is_on or told:
            return
        limit = self.planner.limited(request, _moves(balance))
        if limit is not None:
            request.kv_transfer_params = {LOAD_LIMIT: limit}

    def _arranged(self, round_: Round) -> _Stood:
        """The queue as it stands, and what of it goes into the pass, in its order."""
        queue, requests = self._scheduler.waiting, self._scheduler.requests
        known = self._arrangement
        if not _keeps_order(queue):
            held = [requests[name] for name in round_.held]
            return _Stood(queue, held, held, [])
        everybody = list(queue)
        if known is not None and known.queue is queue and known.everybody == everybody:
            return known
        held = [requests[name] for name in round_.held]
        left = [request for request in everybody if request.request_id not in round_.held]
        if round_.order is not None:
            order = {name: place for place, name in enumerate(round_.order)}
            left.sort(key=lambda request: order.get(request.request_id, len(order)))
        self._arrangement = _Stood(queue, everybody, held, left)
        return self._arrangement

    def _take_out(self, stood: _Stood) -> None:
        if _keeps_order(stood.queue):
            _refill(stood.queue, stood.left)
        else:
            stood.queue.remove_requests(stood.held)

    def _restore(self, stood: _Stood) -> None:
        """All in the places where they stood; whom the pass put there goes first."""
        queue = stood.queue
        if not _keeps_order(queue):
            for request in stood.held:
                queue.add_request(request)
            return
        left = list(queue)
        if left == stood.left:
            _refill(queue, stood.everybody)
            return
        places = {one.request_id: place for place, one in enumerate(stood.everybody)}
        left += stood.held
        left.sort(key=lambda request: places.get(request.request_id, -1))
        _refill(queue, left)

    def _mark(self, held: Sequence[Any]) -> None:
        """The engine's own account of who was passed over."""
        deferred = getattr(self._scheduler, "deferred_waiting", None)
        if deferred is not None and not self._is_marked:
            deferred.update(held)
            self._is_marked = True

    def _release(self) -> None:
        """Who was held in the pass before is passed over no longer."""
        held, self.held = self.held, NOBODY
        self._round = self._arrangement = None
        self._is_marked = False
        deferred = getattr(self._scheduler, "deferred_waiting", None)
        if held and deferred:
            requests = self._scheduler.requests
            deferred.difference_update([requests[name] for name in held if name in requests])

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self._has_failed = True
        self.planner = None
        self.held = NOBODY
        self._round = self._arrangement = None
        self._is_marked = False
        if self.failures == 1:
            logger.warning(
                "kvready hook: %s: %s; the engine goes on without policies until the flags have "
                "been off and come on again; further failures are counted only",
                type(error).__name__,
                error,
                exc_info=error,
            )


def _treats(switch: Switch) -> Treats:
    """Asked at each round for each request, worked out once."""
    known: dict[tuple[int | None, int], bool] = {}

    def treats(group: int | None, awaited_tokens: int) -> bool:
        key = group, awaited_tokens.bit_length()  # cells are powers of two of tokens
        found = known.get(key)
        if found is None:
            if len(known) >= MAX_KNOWN:
                known.clear()
            cell = told_cell(Target.INFLIGHT_READY, inflight_cell("batch", awaited_tokens))
            found = known[key] = switch.treats(group, cell)
        return found

    return treats


def _moves(switch: Switch) -> Moves:
    def moves(load_bytes: int) -> bool:
        return switch.treats(None, told_cell(Target.LOAD, load_cell(Tier.HOST, load_bytes)))

    return moves


def _keeps_order(queue: Any) -> bool:
    """A queue; else a heap, that orders by itself."""
    return hasattr(queue, "extend")


def _refill(queue: Any, requests: Sequence[Any]) -> None:
    """These and no others, in this order; if it cannot be done, all of them in some order."""
    try:
        queue.clear()
        queue.extend(requests)
    except BaseException:
        _return_missing(queue, requests)
        raise


def _return_missing(queue: Any, held: Sequence[Any]) -> None:
    """Who was taken out is in the queue again, whatever else is."""
    present = {request.request_id for request in queue}
    for request in held:
        if request.request_id not in present:
            queue.add_request(request)
