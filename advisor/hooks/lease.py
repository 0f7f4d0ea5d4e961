"""How long what the sidecar said holds: a lease from the moment of asking. Pure.

Seconds are the hook's monotonic clock. What is not certain is OFF: no answer within the lease, an
answer that cannot be, a sidecar that started anew and has not said all again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from kvready.advisor.flags import Split

MAX_LEASE_SECONDS = 2.0  # whatever is offered
POLL_SECONDS = 0.5


class Switch(msgspec.Struct, frozen=True):
    """What one policy may do: nothing, everything, or what it draws by prefix group."""

    is_on: bool = False
    split: Split | None = None
    outside: frozenset[str] = frozenset()  # cells whose predictions are persistently bad

    def treats(self, prefix_group: int | None, cell: str = "") -> bool:
        """Whether it may act on requests that begin with this block; None: on all of them.

        `cell`: of the prediction that would be acted on, as `shape_cells.told_cell` names it.
        """
        if cell in self.outside:
            return False
        if self.is_on or self.split is None or prefix_group is None:
            return self.is_on
        return self.split.treats(prefix_group)


OFF = Switch()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a sidecar said. `switches` None: what it said before holds on."""

    boot_id: str
    revision: int
    lease_seconds: float
    switches: Mapping[str, Switch] | None


class Held(msgspec.Struct, frozen=True):
    """What holds, and for how long. One object, swapped whole: reading it takes no lock."""

    switches: Mapping[str, Switch]
    since_seconds: float
    until_seconds: float

    def switch(self, policy: str, now_seconds: float) -> Switch:
        """OFF once the lease is over, and before it began."""
        if not self.since_seconds <= now_seconds < self.until_seconds:
            return OFF
        return self.switches.get(policy, OFF)


NOTHING = Held(MappingProxyType({}), math.inf, -math.inf)


class Lease:
    """Takes answers in whatever order they come; `held` is what holds."""

    def __init__(self) -> None:
        self.held = NOTHING
        self.ignored = 0  # answers older than one that was taken
        self._boot_id = ""
        self._revision = -1
        self._asked_seconds = -math.inf  # when what was taken last had been asked

    @property
    def is_known(self) -> bool:
        """Whether an answer that only says `as before` would say anything."""
        return self.held is not NOTHING

    def heard(self, asked_seconds: float, answer: Answer) -> bool:
        """Take an answer to what was asked at a moment; False where it cannot be."""
        if asked_seconds < self._asked_seconds:
            self.ignored += 1
            return True
        if not _is_possible(answer):
            return self.refused()
        if answer.boot_id != self._boot_id:
            if answer.switches is None:
                return self.refused()  # what held came from a sidecar that is gone
        elif answer.revision < self._revision:
            self.ignored += 1
            return True
        elif not self._agrees(answer):
            return self.refused()
        switches = self.held.switches if answer.switches is None else answer.switches
        self._boot_id, self._revision = answer.boot_id, answer.revision
        self._asked_seconds = asked_seconds
        until_seconds = asked_seconds + min(answer.lease_seconds, MAX_LEASE_SECONDS)
        self.held = Held(switches, asked_seconds, until_seconds)
        return True

    def refused(self) -> bool:
        """What came was no answer, or a contradiction: OFF until all is said again."""
        self.held = NOTHING
        return False

    def _agrees(self, answer: Answer) -> bool:
        """Whether one sidecar can have said this after what it said before."""
        if answer.switches is None:
            return self.is_known and answer.revision == self._revision
        is_same = answer.revision == self._revision and self.is_known
        return not is_same or answer.switches == self.held.switches


def _is_possible(answer: Answer) -> bool:
    lasts = answer.lease_seconds
    return bool(answer.boot_id) and answer.revision >= 0 and math.isfinite(lasts) and lasts > 0.0
