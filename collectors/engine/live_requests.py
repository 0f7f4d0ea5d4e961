"""Requests between arrival and end, as one scheduler handles them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from kvready.collectors.records import (
    AnyRecord,
    DeferReason,
    FirstToken,
    Outcome,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    Surface,
)

MAX_LIVE_REQUESTS = 65_536

_OUTCOMES = {
    "ABORT": Outcome.ABORTED,
    "FINISHED_ABORTED": Outcome.ABORTED,
    "ERROR": Outcome.FAILED,
    "FINISHED_ERROR": Outcome.FAILED,
}


@dataclass(slots=True)
class _Live:
    request: Any
    has_output: bool = False
    loaded_tokens: int = 0  # ordered since it last owned no blocks
    deferred: DeferReason | None = None


class LiveRequests:
    """Turns what happens to requests into records, each thing once."""

    def __init__(self, hash_block_tokens: int) -> None:
        self._hash_block_tokens = hash_block_tokens
        self._live: dict[str, _Live] = {}

    def arrived(self, request: Any, seconds: float) -> list[AnyRecord]:
        """A request entered the scheduler; its block hashes are sent now and never again."""
        request_id = request.request_id
        if request_id in self._live or len(self._live) >= MAX_LIVE_REQUESTS:
            return []
        self._live[request_id] = _Live(request)
        return [
            RequestArrived(
                request_id=request_id,
                surface=Surface.SCHEDULER,
                arrived_seconds=seconds,
                prompt_tokens=request.num_prompt_tokens,
                block_hashes=tuple(
                    [int.from_bytes(digest[-8:], "big") for digest in request.block_hashes]
                ),
                block_tokens=self._hash_block_tokens,
                output_token_limit=request.max_tokens,
            )
        ]

    def load_ordered(self, request_id: str, tokens: int) -> None:
        """A copy into HBM was ordered for a request."""
        live = self._live.get(request_id)
        if live is not None:
            live.loaded_tokens += tokens

    def preempted(self, request_ids: Iterable[str], seconds: float) -> list[AnyRecord]:
        """Running requests lost their blocks."""
        found: list[AnyRecord] = []
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is not None:
                live.loaded_tokens = 0
                found.append(RequestPreempted(request_id, seconds))
        return found

    def admitted(
        self, request_ids: Iterable[str], new_tokens: Mapping[str, int], seconds: float
    ) -> list[AnyRecord]:
        """Requests entered a batch, for the first time or again."""
        found: list[AnyRecord] = []
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is None:
                continue
            hbm, loaded = _tokens_by_source(live, new_tokens.get(request_id, 0))
            live.loaded_tokens = 0
            live.deferred = None
            found.append(
                RequestScheduled(
                    request_id=request_id,
                    scheduled_seconds=seconds,
                    hbm_tokens=hbm,
                    loaded_tokens=loaded,
                    resumed=live.request.num_preemptions > 0,
                )
            )
        return found

    def deferred(
        self,
        requests: Iterable[Any],
        held: Set[str],
        lookup_may_defer: bool,
        seconds: float,
    ) -> list[AnyRecord]:
        """Waiting requests that the scheduler passed over, where the reason is a new one.

        `held`: by a policy, in this pass. `lookup_may_defer`: a connector is there and nothing
        else can set a plain waiting request aside, so that it waits for a load of another one.
        """
        found: list[AnyRecord] = []
        for request in requests:
            live = self._live.get(request.request_id)
            if live is None:
                continue
            is_held = request.request_id in held
            reason = DeferReason.HOLD if is_held else _defer_reason(request, lookup_may_defer)
            if live.deferred is not reason:
                live.deferred = reason
                found.append(RequestDeferred(request.request_id, seconds, reason))
        return found

    def produced(self, outputs: Iterable[Any], seconds: float) -> list[AnyRecord]:
        """A step's outputs: first tokens and ends."""
        found: list[AnyRecord] = []
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            if not live.has_output and output.new_token_ids:
                live.has_output = True
                found.append(FirstToken(output.request_id, seconds))
            if output.finish_reason is not None:
                found += self._ended(live, output.finish_reason.name, seconds)
        return found

    def stopped(self, requests: Iterable[Any], seconds: float) -> list[AnyRecord]:
        """Requests that were ended from outside a step: aborts and errors."""
        found: list[AnyRecord] = []
        for request in requests:
            live = self._live.get(request.request_id)
            if live is not None:
                found += self._ended(live, request.status.name, seconds)
        return found

    def _ended(self, live: _Live, reason: str, seconds: float) -> list[AnyRecord]:
        request_id = live.request.request_id
        del self._live[request_id]
        return [
            RequestFinished(
                request_id=request_id,
                finished_seconds=seconds,
                outcome=_OUTCOMES.get(reason, Outcome.FINISHED),
                output_tokens=live.request.num_output_tokens,
            )
        ]


def _tokens_by_source(live: _Live, new_tokens: int) -> tuple[int, int]:
    """Tokens found in HBM and tokens loaded, at admission."""
    request = live.request
    stats = request.prefill_stats
    if stats is not None and stats.num_prompt_tokens and not request.num_preemptions:
        return stats.num_local_cached_tokens, stats.num_external_cached_tokens
    # The engine's own account covers first admissions only.
    context = request.num_computed_tokens - new_tokens
    loaded = min(live.loaded_tokens, context)
    return context - loaded, loaded


def _defer_reason(request: Any, lookup_may_defer: bool) -> DeferReason:
    status = request.status.name
    if status == "WAITING_FOR_REMOTE_KVS":
        return DeferReason.LOAD
    plain = status in ("WAITING", "PREEMPTED") and not request.num_stale_output_tokens
    return DeferReason.LOAD if plain and lookup_may_defer else DeferReason.OTHER
