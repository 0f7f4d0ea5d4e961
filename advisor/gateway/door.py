"""Whom the gateway holds, and until when: what the flags, the costs and the holds say together.

When in doubt a request goes on at once. A hold ends at what it would have taken to compute what it
waits for, and at the cap whatever that is: at worst, then, a request loses as long as it could have
won.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from kvready.advisor.gateway.costs import Costs
from kvready.advisor.gateway.counts import Counts, Passed
from kvready.advisor.gateway.holds import Holds, Let, Match, Release
from kvready.advisor.gateway.prompts import Prompt
from kvready.advisor.gateway.told import Teller
from kvready.advisor.ledger import Target
from kvready.advisor.policies import Policy
from kvready.advisor.shape_cells import inflight_cell, told_cell
from kvready.advisor.strata import PAPER

MIN_HOLD_SECONDS = 0.005  # what takes less to compute is not worth the trouble
SWEEP_SECONDS = 0.05  # between two looks at whether those who are held still may be


class Flags(Protocol):
    """What `FlagClient` says, now."""

    def is_on(self, policy: Policy) -> bool:
        """Whether it may act on all requests."""

    def is_split(self, policy: Policy) -> bool:
        """Whether it may act on some."""

    def treats(self, policy: Policy, prefix_group: int | None, cell: str = "") -> bool:
        """Whether it may act on those of a group."""


class Guest(msgspec.Struct):
    """A request that is held or leads, until its first token."""

    name: str  # here
    called: str  # by its engine's reports
    prompt: Prompt
    body: bytes
    arrived_seconds: float
    cell: str = ""  # of the prediction that it is held by
    leader: str = ""
    woken: asyncio.Future[Release] | None = None  # while it is held
    tokens: list[int] | None = None  # of its prompt, once the engine's tokenizer told them


class Door:
    """`enter` returns when a request may go on. The event loop's thread only."""

    def __init__(
        self,
        flags: Flags,
        counts: Counts,
        teller: Teller,
        cap_seconds: float = PAPER.hold_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holds = Holds()
        self.costs = Costs()
        self.guests: dict[str, Guest] = {}  # those held, and those who lead
        self._flags = flags
        self._counts = counts
        self._teller = teller
        self._cap_seconds = cap_seconds
        self._clock = clock
        self._is_open = True

    @property
    def is_acting(self) -> bool:
        """Whether dedup may act on anybody now."""
        return self._flags.is_on(Policy.DEDUP) or self._flags.is_split(Policy.DEDUP)

    async def enter(self, guest: Guest) -> None:
        """Wait where it helps. Afterwards `first_token` and `left` are to be called."""
        decided = self._decide(guest)
        if isinstance(decided, Passed):
            self._counts.passed[decided] += 1
            return
        await self._wait(guest, decided)
        self._lead(guest)

    def first_token(self, name: str) -> None:
        """A request's first token came: what it led is there."""
        self.guests.pop(name, None)
        self.wake(self.holds.first_token(name, self._clock()))

    def left(self, name: str) -> None:
        """A request is over, or will not bring anything. Safe twice."""
        self.guests.pop(name, None)
        self.wake(self.holds.ended(name))

    def wake(self, lets: Iterable[Let]) -> None:
        """Let those go who are held no longer."""
        for let in lets:
            guest = self.guests.get(let.name)
            if guest is not None and guest.woken is not None and not guest.woken.done():
                guest.woken.set_result(let.why)

    def close(self) -> None:
        """Let everybody go, and hold nobody from here on."""
        self._is_open = False
        self.wake(self.holds.let_all(Release.STOPPING))

    def sweep(self) -> None:
        """Let those go who may be held no longer. To be called every SWEEP_SECONDS."""
        if not self.holds.held:
            return
        self.wake(self.holds.expired(self._clock()))
        untreated = [
            guest.name
            for guest in self.guests.values()
            if guest.woken is not None
            and not self._flags.treats(Policy.DEDUP, guest.prompt.group, guest.cell)
        ]
        self.wake(self.holds.let(untreated, Release.FLAG_OFF))

    def _decide(self, guest: Guest) -> Passed | Match:
        now, prompt = self._clock(), guest.prompt
        if not self._is_open:
            return Passed.CLOSED
        if not self._flags.treats(Policy.DEDUP, prompt.group):
            return Passed.UNTREATED if self.is_acting else Passed.FLAG_OFF
        match = self.holds.match(prompt.pieces, now)
        if match is None:
            return self._passed(guest, Passed.FIRST)
        missing_tokens = (match.shared - match.known) * prompt.piece_tokens
        if missing_tokens <= PAPER.delay_tokens:
            return self._passed(guest, Passed.KNOWN if match.known else Passed.FIRST)
        guest.cell = told_cell(Target.INFLIGHT_READY, inflight_cell("batch", missing_tokens))
        if not self._flags.treats(Policy.DEDUP, prompt.group, guest.cell):
            return self._passed(guest, Passed.EXCLUDED)
        seconds = self.costs.seconds(missing_tokens, now)
        if seconds is None:
            return self._passed(guest, Passed.NO_PREDICTION)
        if seconds < MIN_HOLD_SECONDS:
            return self._passed(guest, Passed.NO_BENEFIT)
        until = guest.arrived_seconds + min(seconds, self._cap_seconds)
        if not self.holds.hold(guest.name, match.leader, until):
            return self._passed(guest, Passed.MAP_FULL)
        guest.leader = match.leader
        return match

    def _passed(self, guest: Guest, why: Passed) -> Passed:
        self._lead(guest)
        return why

    def _lead(self, guest: Guest) -> None:
        prompt = guest.prompt
        known = self.holds.known_pieces(prompt.pieces, self._clock())
        missing_tokens = (len(prompt.pieces) - known) * prompt.piece_tokens
        if missing_tokens > PAPER.delay_tokens and self.holds.lead(guest.name, prompt.pieces):
            self.guests[guest.name] = guest

    async def _wait(self, guest: Guest, match: Match) -> None:
        name, began = guest.name, self._clock()
        self._teller.held(guest.called, began)
        woken = guest.woken = asyncio.get_running_loop().create_future()
        self.guests[name] = guest
        why = Release.CLIENT_GONE
        try:
            async with asyncio.timeout(max(self.holds.until_seconds(name) - began, 0.0)):
                why = await woken
        except TimeoutError:
            why = Release.DEADLINE
        finally:
            guest.woken = None
            self.guests.pop(name, None)
            self.holds.let([name], why)
            self._counts.released[why] += 1
            self._counts.held(self._clock() - began)
            if why is Release.CLIENT_GONE:
                self._teller.left(guest.called, self._clock())
