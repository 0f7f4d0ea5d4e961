"""From which step on what a flag says holds, on every rank the same. Pure.

Ranks that plan the same batch must decide alike, and no two of them hear a flag at the same moment.
So rank 0 alone reads flags and leases. At each step it says what it read, to hold from a named step
on: so many steps later as its word needs to reach the others. It waits for that step itself. A rank
that hears nothing for a step goes on with OFF, and so does one that hears too late: it says so in
`missed`, and whoever runs it must stop all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from kvready.advisor.hooks.lease import Switch

MAX_STEPS_AHEAD = 64

Switches = Mapping[str, Switch]  # by policy; what is absent is OFF
NOTHING_ON: Switches = {}


class Word(msgspec.Struct, frozen=True):
    """What rank 0 read, and the step from which it holds. Goes over any wire as it is."""

    step: int
    switches: dict[str, Switch]


class NamedStep:
    """One rank's. Rank 0 says and hears its own words; the others hear."""

    def __init__(self, steps_ahead: int = 0) -> None:
        """`steps_ahead`: 0 where nobody else has to hear; at most `MAX_STEPS_AHEAD`."""
        if not 0 <= steps_ahead <= MAX_STEPS_AHEAD:
            raise ValueError(f"{steps_ahead} steps ahead; choose 0 to {MAX_STEPS_AHEAD}")
        self.missed = 0  # words that came after their step, and steps without one
        self._steps_ahead = steps_ahead
        self._heard: OrderedDict[int, Switches] = OrderedDict()
        self._latest = -1  # the step that was asked for last

    def say(self, step: int, switches: Switches) -> Word:
        """Rank 0, at each step: what the flags say now."""
        word = Word(step + self._steps_ahead, dict(switches))
        self.hear(word)
        return word

    def hear(self, word: Word) -> None:
        """A word of rank 0."""
        if word.step <= self._latest:
            self.missed += 1
            return
        self._heard[word.step] = word.switches
        while len(self._heard) > MAX_STEPS_AHEAD + 1:
            self._heard.popitem(last=False)

    def at(self, step: int) -> Switches:
        """What holds at a step; steps are asked for in their order."""
        self._latest = step
        switches = self._heard.pop(step, None)
        if switches is not None:
            return switches
        if step >= self._steps_ahead:
            self.missed += 1
        return NOTHING_ON
