"""Strata's batches (OSDI 2026): which waiting requests run together, which wait, and why.

Pure: the same code plans in shadow, decides in an engine's hook and drives the simulator. Tokens,
seconds. Where the paper is silent the choice is ours, named in `Settings`, and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from kvready.advisor.shared_loads import NOTHING_SHARED, Parting, SharedLoads

UNBOUNDED = 1 << 62
MAX_FILL_STEPS = 16  # decode steps put before one prefill


class LoadBudget(StrEnum):
    """What keeps a batch from loading more than its compute hides."""

    RATIO = "ratio"  # tokens loaded per token computed, as the paper
    TIME = "time"  # predicted load seconds against predicted compute seconds
    ADAPTIVE = "adaptive"  # `AdaptiveRatio`: a ratio that follows the stalls that were seen


class Settings(msgspec.Struct, frozen=True):
    """The paper's thresholds, and ours where it is silent."""

    dedup: bool = True
    balance: bool = True
    decode_fill: bool = False  # off by default: it can hurt
    delay_tokens: int = 100  # paper: beyond so many awaited tokens a request is deferred
    load_ratio: float = 100.0  # paper: tokens loaded per token computed, of a batch
    budget: LoadBudget = LoadBudget.RATIO
    bundle_tokens: int = 1  # ours: a shared load of so many makes a bundle hit
    hold_seconds: float = 30.0  # ours: who was passed over for so long goes before all others


PAPER = Settings()
ENGINE_ALONE = Settings(dedup=False, balance=False)  # first come, first served


class Waiting(msgspec.Struct):
    """A queued request with its match, which cache events keep current."""

    request_id: str
    compute_tokens: int  # of its prompt, neither resident nor to be loaded; at least 1
    load_tokens: int = 0  # to be brought into HBM
    load_hashes: Sequence[int] = ()  # the blocks of those, chained hashes in order
    awaited_tokens: int = 0  # beyond its match, what an earlier request brings
    leader: str = ""  # that request; empty: nobody
    held_seconds: float = 0.0  # since it was first deferred, or passed by a later one
    context_tokens: int = 0  # resident or loaded before what it computes
    blocks_needed: int = 0  # of HBM, that its admission takes


class BatchLimits(msgspec.Struct, frozen=True):
    """What is left of an engine's bounds for prefills in this batch; None: does not bind."""

    batch_tokens: int | None = None
    batch_requests: int | None = None
    free_blocks: int | None = None
    request_tokens: int | None = None  # of one request in one batch: chunked prefill
    block_tokens: int = 1


class Reason(StrEnum):
    """Why a request is in the intended batch."""

    HEAD = "head"  # of the queue: always taken, nobody starves
    FITS = "fits"  # its load is hidden by the batch's compute
    BUNDLE = "bundle"  # it shares a load with a member
    LEFTOVER = "leftover"  # deprioritised, taken all the same since the batch was not full


class Admission(msgspec.Struct, frozen=True):
    """One request's part in the batch."""

    request_id: str
    reason: Reason
    new_tokens: int
    load_tokens: int  # without what a member before it loads too


class Plan(msgspec.Struct, frozen=True):
    """One round's decisions."""

    admitted: tuple[Admission, ...]
    deferred: tuple[str, ...]  # wait for a leader; first in the next round's queue
    deprioritised: tuple[str, ...]  # left out: the batch would be loading-bound; keep their order
    load_tokens: int  # shared loads once
    compute_tokens: int


class Costs(Protocol):
    """Predicted seconds, for a budget of time and for decode fill."""

    def load_seconds(self, tokens: int) -> float:
        """To bring so many tokens into HBM, by one batch."""

    def batch_seconds(self) -> float:
        """What a batch costs whatever is in it."""

    def compute_seconds(self, new_tokens: int, context_tokens: int) -> float:
        """What one request's prefill adds to its batch."""


def intended_batch(
    queue: Sequence[Waiting],
    limits: BatchLimits,
    settings: Settings = PAPER,
    costs: Costs | None = None,
) -> Plan:
    """The prefills that Strata would run next, of a queue in its order."""
    if settings.balance and settings.budget is LoadBudget.TIME and costs is None:
        raise TypeError("a budget of time needs costs: pass them, or choose LoadBudget.RATIO")
    batch = _Forming(limits, settings, costs)
    queue, deferred = defer_delay_hits(queue, settings)
    batch.form(queue)
    return Plan(
        admitted=tuple(batch.admitted),
        deferred=tuple(waiting.request_id for waiting in deferred),
        deprioritised=tuple(waiting.request_id for waiting in batch.left_out),
        load_tokens=batch.load_tokens,
        compute_tokens=batch.compute_tokens,
    )


def fill_steps(load_seconds: float, compute_seconds: float, decode_step_seconds: float) -> int:
    """Decode steps to run while a batch loads, before its compute; 0 where none would be hidden.

    As many as end before the load leaves less than the compute still hides: a step more would
    delay the prefill, which then costs more than the step saves.
    """
    stall_seconds = load_seconds - compute_seconds
    if decode_step_seconds <= 0.0 or stall_seconds < decode_step_seconds:
        return 0
    return min(int(stall_seconds / decode_step_seconds), MAX_FILL_STEPS)


def defer_delay_hits(
    queue: Sequence[Waiting], settings: Settings
) -> tuple[list[Waiting], list[Waiting]]:
    """Those that may run, and those that wait for what an earlier request brings.

    Whoever was held too long goes first, longest held first: else those put in front of the queue
    round after round could keep it from its head for ever.
    """
    overdue: list[Waiting] = []
    candidates: list[Waiting] = []
    deferred: list[Waiting] = []
    for waiting in queue:
        if waiting.held_seconds >= settings.hold_seconds:
            overdue.append(waiting)
        elif settings.dedup and waiting.awaited_tokens > settings.delay_tokens:
            deferred.append(waiting)
        else:
            candidates.append(waiting)
    overdue.sort(key=lambda waiting: -waiting.held_seconds)
    return overdue + candidates, deferred


class _Forming:
    """A batch as it is formed: the paper's Algorithm 1."""

    def __init__(self, limits: BatchLimits, settings: Settings, costs: Costs | None) -> None:
        self.admitted: list[Admission] = []
        self.left_out: list[Waiting] = []
        self.load_tokens = 0
        self.compute_tokens = 0
        self._compute_seconds = costs.batch_seconds() if costs is not None else 0.0
        self._costs = costs
        self._settings = settings
        self._tokens_left = _bound(limits.batch_tokens)
        self._seats_left = _bound(limits.batch_requests)
        self._blocks_left = _bound(limits.free_blocks)
        self._most_tokens = min(_bound(limits.request_tokens), self._tokens_left)  # of one more
        self._block_tokens = limits.block_tokens
        self._loads = SharedLoads()
        self._sharers: dict[int, list[Waiting]] = {}  # by the first block that they load
        self._decided: set[str] = set()  # no longer in Q

    def form(self, queue: Sequence[Waiting]) -> None:
        """BatchFormation(Q)."""
        for waiting in queue:
            if waiting.load_hashes:
                self._sharers.setdefault(waiting.load_hashes[0], []).append(waiting)
        deprioritised: list[Waiting] = []
        for waiting in queue:
            if waiting.request_id in self._decided:
                continue
            parting = self._parting(waiting)
            if not self._has_room(waiting, parting):
                break
            if self._is_guarded(waiting):
                self._add(waiting, parting, Reason.HEAD)
            elif self._is_loading_bound_with(waiting, parting):
                self._decided.add(waiting.request_id)
                deprioritised.append(waiting)
                continue
            else:
                self._add(waiting, parting, Reason.FITS)
            self._add_bundle_hits(waiting)
        self._fill(deprioritised)

    def _is_guarded(self, waiting: Waiting) -> bool:
        """The head of the queue is always taken; so is whoever was passed over for too long."""
        return not self.admitted or waiting.held_seconds >= self._settings.hold_seconds

    def _add_bundle_hits(self, member: Waiting) -> None:
        """AddBundleHit(Q, B), of those that share this member's load."""
        if not self._settings.balance or not self._has_sharers(member):
            return
        for waiting in self._sharers[member.load_hashes[0]]:
            if waiting.request_id in self._decided:
                continue
            parting = self._parting(waiting)
            if parting.shared_blocks * self._block_tokens < self._settings.bundle_tokens:
                continue
            if self._has_room(waiting, parting):
                self._add(waiting, parting, Reason.BUNDLE)

    def _fill(self, deprioritised: Sequence[Waiting]) -> None:
        """Work conserving: leftovers fill the batch, in their order."""
        for place, waiting in enumerate(deprioritised):
            parting = self._parting(waiting)
            if not self._has_room(waiting, parting):
                self.left_out.extend(deprioritised[place:])
                return
            self._add(waiting, parting, Reason.LEFTOVER)

    def _has_sharers(self, waiting: Waiting) -> bool:
        """Whether another of the queue would load some of the same."""
        hashes = waiting.load_hashes
        return bool(hashes) and len(self._sharers[hashes[0]]) > 1

    def _parting(self, waiting: Waiting) -> Parting:
        """How much of its load the batch brings already."""
        if self._has_sharers(waiting):
            return self._loads.parting(waiting.load_hashes)
        return NOTHING_SHARED

    def _has_room(self, waiting: Waiting, parting: Parting) -> bool:
        """Not full(B): nobody overtakes one whose blocks do not fit."""
        return (
            self._tokens_left > 0
            and self._seats_left > 0
            and waiting.blocks_needed - parting.shared_blocks <= self._blocks_left
        )

    def _add(self, waiting: Waiting, parting: Parting, reason: Reason) -> None:
        if self._has_sharers(waiting):
            self._loads.add(waiting.load_hashes, parting)
        load_tokens = self._load_tokens(waiting, parting)
        new_tokens = self._new_tokens(waiting)
        self.admitted.append(Admission(waiting.request_id, reason, new_tokens, load_tokens))
        self._decided.add(waiting.request_id)
        self.load_tokens += load_tokens
        self.compute_tokens += new_tokens
        self._tokens_left -= new_tokens
        if self._tokens_left < self._most_tokens:
            self._most_tokens = self._tokens_left
        self._seats_left -= 1
        self._blocks_left -= max(0, waiting.blocks_needed - parting.shared_blocks)
        if self._costs is not None:
            context_tokens = waiting.context_tokens
            self._compute_seconds += self._costs.compute_seconds(new_tokens, context_tokens)

    def _new_tokens(self, waiting: Waiting) -> int:
        """Of its prompt, in this batch: a chunk where the whole does not fit."""
        most = self._most_tokens
        return waiting.compute_tokens if waiting.compute_tokens < most else most

    def _load_tokens(self, waiting: Waiting, parting: Parting) -> int:
        """Of its load, what no member before it brings."""
        return max(0, waiting.load_tokens - parting.shared_blocks * self._block_tokens)

    def _is_loading_bound_with(self, waiting: Waiting, parting: Parting) -> bool:
        """Whether the batch with this one would load more than its compute hides."""
        settings = self._settings
        if not settings.balance:
            return False
        load_tokens = self.load_tokens + self._load_tokens(waiting, parting)
        new_tokens = self._new_tokens(waiting)
        if settings.budget is LoadBudget.TIME and self._costs is not None:
            context_tokens = waiting.context_tokens
            added_seconds = self._costs.compute_seconds(new_tokens, context_tokens)
            return self._costs.load_seconds(load_tokens) > self._compute_seconds + added_seconds
        return load_tokens > settings.load_ratio * (self.compute_tokens + new_tokens)


def _bound(limit: int | None) -> int:
    return UNBOUNDED if limit is None else limit
