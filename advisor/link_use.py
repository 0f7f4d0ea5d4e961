"""How one rank's link into HBM spends its time: copying, or idle, and why. Pure.

A clock that each record moves on: the time since the one before belongs to the state that they
left. Where copies' starts come late, what they waited counts as waiting.
"""

from __future__ import annotations

from enum import StrEnum

from kvready.advisor.requests import Copy, RequestState
from kvready.collectors.records import Tier


class Idle(StrEnum):
    """Why nothing is copied into HBM; the first that holds."""

    NOT_STARTED = "not_started"  # a load is ordered and the mover has not begun
    FETCHING = "fetching"  # somebody waits for a load whose data is on its way into host memory
    NO_ROOM = "no_room"  # somebody waits for one, and the latest batch left no seat or blocks
    PASSED_OVER = "passed_over"  # somebody waits for one, and there was room
    NO_DEMAND = "no_demand"  # nobody who waits has anything to load


MAX_EARLY_STARTS = 1_024


class LinkUse:
    """Fed with one rank's records in ingest order; seconds of event time."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.untold_seconds = 0.0  # nobody tells when loads start, or all that happens
        self.idle_seconds: dict[Idle, float] = dict.fromkeys(Idle, 0.0)
        self._at: float | None = None
        self._tells_starts = False
        self._is_heard = True
        self._has_room = True
        self._wanting: set[str] = set()  # waiting, with a prefix below HBM and no load ordered
        self._loads: dict[int, bool] = {}  # open ones, and whether the mover has begun
        self._begun = 0
        # Starts that came before their orders: the two are on different sockets.
        self._early: dict[int, None] = {}
        self._fetches: set[int] = set()

    def describe(self, tells_starts: bool) -> None:
        """The engine said whether its mover reports when it begins."""
        self._tells_starts = tells_starts

    def pass_time(self, seconds: float) -> None:
        """Event time goes on; never back."""
        before = self._at
        if before is None or seconds <= before:
            self._at = seconds if before is None else before
            return
        self._at, passed = seconds, seconds - before
        if not self._is_heard:
            self.untold_seconds += passed
        elif self._begun:
            self.busy_seconds += passed
        elif self._loads and not self._tells_starts:
            self.untold_seconds += passed
        else:
            self.idle_seconds[self._reason()] += passed

    def tick(self, seconds: float, is_heard: bool) -> None:
        """A second passed, once anything was told. `is_heard`: from now on all is told of."""
        if self._at is not None:
            self.pass_time(seconds)
        self._is_heard = is_heard

    def arrived(self, state: RequestState) -> None:
        """A request appeared; it wants a load if its prefix is below HBM."""
        self.pass_time(state.arrived.arrived_seconds)
        if state.host_tokens:
            self._wanting.add(state.arrived.request_id)

    def settled(self, request_id: str) -> None:
        """It was admitted, or is gone: it waits for no load any more."""
        self._wanting.discard(request_id)

    def planned(self, seconds: float, has_room: bool) -> None:
        """A batch was chosen."""
        self.pass_time(seconds)
        self._has_room = has_room

    def ordered(self, copy: Copy) -> None:
        """A copy was ordered."""
        decided = copy.decided
        self.pass_time(decided.decided_seconds)
        if decided.destination is Tier.HBM:
            self._wanting.discard(decided.request_id)
            if self._loads.get(decided.load_id):
                self._begun -= 1  # its number was used again: the end of the one before was lost
            begun = decided.load_id in self._early
            self._early.pop(decided.load_id, None)
            self._loads[decided.load_id] = begun
            self._begun += begun
        elif not copy.is_backup:
            self._fetches.add(decided.load_id)

    def started(self, load_id: int, seconds: float) -> None:
        """The mover took up a copy."""
        self.pass_time(seconds)
        begun = self._loads.get(load_id)
        if begun is None:
            self._early[load_id] = None
            if len(self._early) > MAX_EARLY_STARTS:
                del self._early[next(iter(self._early))]
        elif not begun:
            self._loads[load_id] = True
            self._begun += 1

    def ended(self, load_id: int, seconds: float) -> None:
        """A copy is usable, or its end will not be seen."""
        self.pass_time(seconds)
        self._fetches.discard(load_id)
        self._early.pop(load_id, None)
        if self._loads.pop(load_id, False):
            self._begun -= 1

    def restart(self) -> None:
        """The engine restarted: nothing waits and nothing is ordered."""
        self._wanting.clear()
        self._loads.clear()
        self._fetches.clear()
        self._early.clear()
        self._begun = 0

    def _reason(self) -> Idle:
        if self._loads:
            return Idle.NOT_STARTED
        if not self._wanting:
            return Idle.NO_DEMAND
        if self._fetches:
            return Idle.FETCHING
        return Idle.PASSED_OVER if self._has_room else Idle.NO_ROOM
