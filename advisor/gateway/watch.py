"""Looks after those who are held, beside the door: costs, tokens, and blocks that are there.

Text finds whom a request could wait for. Where the engine has a tokenizer its tokens then tell
whether enough is shared, and where the sidecar keeps content keys it tells when the blocks are in
HBM. All of it happens while the request is held, so that none of it makes anybody wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from kvready.advisor.gateway.counts import Asked, Counts
from kvready.advisor.gateway.door import SWEEP_SECONDS, Door, Guest
from kvready.advisor.gateway.headers import Headers
from kvready.advisor.gateway.holds import Release
from kvready.advisor.gateway.questions import (
    common_tokens,
    cost_question,
    costs_in,
    residency_question,
    resident_tokens_in,
    tokenize_question,
    tokens_in,
)
from kvready.advisor.gateway.upstream import Upstream
from kvready.advisor.strata import PAPER
from kvready.collectors.errors import UpstreamError

READINESS = "/v1/readiness"
TOKENIZE = "/tokenize"
COSTS_EVERY_SECONDS = 5.0
WATCH_EVERY_SECONDS = 0.1
ASK_SECONDS = 1.0
REFUSED_SECONDS = 60.0  # before who refused a question is asked it again
MAX_WATCHED = 32  # held requests whose blocks are asked for at once
MAX_WATCHED_TOKENS = 65_536  # of all of those


class Watch:
    """Runs beside the gateway until cancelled."""

    def __init__(
        self,
        door: Door,
        counts: Counts,
        engine: Upstream,
        sidecar: Upstream,
        token: bytes = b"",
        has_tokenizer: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`token`: that the sidecar wants; `has_tokenizer`: whether the engine's is to be asked."""
        self._door = door
        self._counts = counts
        self._engine = engine
        self._sidecar = sidecar
        self._headers: Headers = [(b"authorization", b"Bearer " + token)] if token else []
        self._clock = clock
        self._tokenize_from = 0.0 if has_tokenizer else float("inf")
        self._residency_from = 0.0

    async def run(self) -> None:
        """All of it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(COSTS_EVERY_SECONDS, self.ask_costs))
            group.create_task(self._every(WATCH_EVERY_SECONDS, self.look))
            group.create_task(self._sweep())

    async def ask_costs(self) -> None:
        """What the sidecar says that computing takes. Without an answer the last one ages."""
        try:
            answer = await self._ask_sidecar(cost_question())
            self._door.costs.told(costs_in(answer), self._clock())
        except (UpstreamError, msgspec.MsgspecError):
            return  # seen as `no_prediction` once what was said is too old

    async def look(self) -> None:
        """At those who are held: by their tokens, and by their blocks."""
        held = [guest for guest in self._door.guests.values() if guest.woken is not None]
        known: list[tuple[Guest, list[int]]] = []
        room = MAX_WATCHED_TOKENS
        for guest in held[:MAX_WATCHED]:
            shared = await self._shared(guest)
            if shared is not None and len(shared) <= room:
                known.append((guest, shared))
                room -= len(shared)
        if not known or self._clock() < self._residency_from:
            return
        try:
            answer = await self._ask_sidecar(residency_question([shared for _, shared in known]))
            resident = resident_tokens_in(answer)
        except (UpstreamError, msgspec.MsgspecError):
            self._residency_from = self._clock() + REFUSED_SECONDS
            return
        ready = [
            guest.name
            for (guest, shared), tokens in zip(known, resident, strict=False)
            if len(shared) - tokens <= PAPER.delay_tokens
        ]
        self._door.wake(self._door.holds.let(ready, Release.BLOCKS_READY))

    async def _shared(self, guest: Guest) -> list[int] | None:
        """The tokens that a request shares with its leader; None: not known, or too few."""
        leader = self._door.guests.get(guest.leader)
        if leader is None:
            return None
        for one in (guest, leader):
            if one.tokens is None and self._clock() >= self._tokenize_from:
                one.tokens = await self._tokenized(one)
        if guest.tokens is None or leader.tokens is None:
            return None
        shared = common_tokens(guest.tokens, leader.tokens)
        if shared <= PAPER.delay_tokens:
            self._door.wake(self._door.holds.let([guest.name], Release.NOT_SHARED))
            return None
        return guest.tokens[:shared]

    async def _tokenized(self, guest: Guest) -> list[int] | None:
        try:
            question = tokenize_question(guest.body)
            if isinstance(question, list):
                return question
            answer = await self._engine.ask(TOKENIZE, question, [], ASK_SECONDS)
            tokens = tokens_in(answer)
        except (UpstreamError, msgspec.MsgspecError) as error:
            is_refused = isinstance(error, UpstreamError) and error.status < 500
            self._counts.tokenized[Asked.REFUSED if is_refused else Asked.FAILED] += 1
            self._tokenize_from = self._clock() + REFUSED_SECONDS
            return None
        self._counts.tokenized[Asked.ANSWERED] += 1
        return tokens

    async def _ask_sidecar(self, question: bytes) -> bytes:
        return await self._sidecar.ask(READINESS, question, self._headers, ASK_SECONDS)

    async def _every(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            await do()
            await asyncio.sleep(seconds)

    async def _sweep(self) -> None:
        while True:
            self._door.sweep()
            await asyncio.sleep(SWEEP_SECONDS)
