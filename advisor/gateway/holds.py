"""Who brings a missing prefix, and who waits for it: the gateway's state machine. Pure.

A prompt is a chain of pieces; a key stands for a piece and all before it, so that equal keys mean
equal prefixes. Whoever is passed on with pieces that nobody is known to have brought *leads* until
its first token, or its end. Whoever shares enough of them is *held*, until the leader has brought
them, ends without, or a moment that was set when it came and never moves. Nobody is ever both, and
who was held and let go is not held again: no chain of waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

MAX_LEADERS = 4_096
MAX_LED_PIECES = 131_072  # of all leaders
MAX_HELD = 1_024
MAX_FOLLOWERS = 256  # of one leader
MAX_KNOWN_PIECES = 131_072  # the ones not used for longest are forgotten
KNOWN_SECONDS = 60.0  # a prefix that was brought so long ago may have been evicted


class Release(StrEnum):
    """Why a hold ended."""

    FIRST_TOKEN = "first_token"  # the leader's: what it shares is there
    BLOCKS_READY = "blocks_ready"  # the sidecar saw the blocks in HBM
    NOT_SHARED = "not_shared"  # by its tokens it shares too little
    DEADLINE = "deadline"
    LEADER_GONE = "leader_gone"  # it failed, or its client left
    FLAG_OFF = "flag_off"  # or the lease is over, or its group is no longer treated
    CLIENT_GONE = "client_gone"
    STOPPING = "stopping"


class Match(msgspec.Struct, frozen=True, gc=False):
    """Whom a request could wait for. Pieces from the start of its prompt."""

    leader: str
    shared: int  # that the leader brings, the known ones included
    known: int  # of its prompt, that were brought of late


class Let(msgspec.Struct, frozen=True, gc=False):
    """A request that is held no longer."""

    name: str
    why: Release


class _Leader(msgspec.Struct):
    pieces: Sequence[int]
    followers: dict[str, None]


class Holds:
    """Names are unique among requests that are under way. Seconds are one monotonic clock's."""

    def __init__(self) -> None:
        self._leaders: dict[str, _Leader] = {}
        self._held: dict[str, tuple[str, float]] = {}  # the leader, and until when
        self._led: dict[int, dict[str, None]] = {}  # leaders of each piece, the first one first
        self._led_pieces = 0
        self._known: OrderedDict[int, float] = OrderedDict()  # when each was brought last

    @property
    def held(self) -> int:
        """Requests that wait now."""
        return len(self._held)

    @property
    def leading(self) -> int:
        """Requests that bring something now."""
        return len(self._leaders)

    def until_seconds(self, name: str) -> float:
        """The latest end of a hold."""
        return self._held[name][1]

    def known_pieces(self, pieces: Sequence[int], now: float) -> int:
        """How many of the first pieces were brought of late."""
        oldest = now - KNOWN_SECONDS
        return _prefix(pieces, lambda key: self._known.get(key, oldest) > oldest)

    def match(self, pieces: Sequence[int], now: float) -> Match | None:
        """The leader that brings most of a prompt beyond what is known; None: nobody does."""
        known = self.known_pieces(pieces, now)
        shared = _prefix(pieces, self._led.__contains__)
        if shared <= known:
            return None
        return Match(next(iter(self._led[pieces[shared - 1]])), shared, known)

    def lead(self, name: str, pieces: Sequence[int]) -> bool:
        """A request is passed on; others may wait for its pieces. False: no room, nobody will."""
        self._must_be_new(name)
        if len(self._leaders) >= MAX_LEADERS or self._led_pieces + len(pieces) > MAX_LED_PIECES:
            return False
        self._leaders[name] = _Leader(pieces, {})
        self._led_pieces += len(pieces)
        for key in pieces:
            self._led.setdefault(key, {})[name] = None
        return True

    def hold(self, name: str, leader: str, until: float) -> bool:
        """A request waits for a leader. False: that one is gone by now, or there is no room."""
        self._must_be_new(name)
        leading = self._leaders.get(leader)
        if leading is None or len(self._held) >= MAX_HELD:
            return False
        if len(leading.followers) >= MAX_FOLLOWERS:
            return False
        leading.followers[name] = None
        self._held[name] = leader, until
        return True

    def first_token(self, name: str, now: float) -> list[Let]:
        """A request's prefill is over: what it led is known, and its followers go."""
        leading = self._leaders.get(name)
        if leading is None:
            return []
        # The deepest piece is forgotten first, so that what is known stays a prefix.
        for key in reversed(leading.pieces):
            self._known[key] = now
            self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN_PIECES:
            self._known.popitem(last=False)
        return self._stop_leading(name, Release.FIRST_TOKEN)

    def ended(self, name: str) -> list[Let]:
        """A request is over, whatever it was. Whom it leaves without a leader goes."""
        if name in self._held:
            self._let(name)
        return self._stop_leading(name, Release.LEADER_GONE)

    def let(self, names: Iterable[str], why: Release) -> list[Let]:
        """End the holds of these; who is not held is passed over."""
        return [Let(self._let(name), why) for name in list(names) if name in self._held]

    def let_all(self, why: Release) -> list[Let]:
        """End every hold."""
        return self.let(self._held, why)

    def expired(self, now: float) -> list[Let]:
        """End the holds whose time is over."""
        over = [name for name, (_, until) in self._held.items() if now >= until]
        return self.let(over, Release.DEADLINE)

    def forget_known(self) -> None:
        """Nothing is known to be there: the engine may have started anew."""
        self._known.clear()

    def _must_be_new(self, name: str) -> None:
        if name in self._leaders or name in self._held:
            raise ValueError(f"{name} is under way already")

    def _let(self, name: str) -> str:
        leader, _ = self._held.pop(name)
        del self._leaders[leader].followers[name]
        return name

    def _stop_leading(self, name: str, why: Release) -> list[Let]:
        leading = self._leaders.get(name)
        if leading is None:
            return []
        lets = self.let(leading.followers, why)
        del self._leaders[name]
        self._led_pieces -= len(leading.pieces)
        for key in set(leading.pieces):  # two keys of a chain are equal where hashes collide
            leaders = self._led[key]
            del leaders[name]
            if not leaders:
                del self._led[key]
        return lets


def _prefix(pieces: Sequence[int], has: Callable[[int], bool]) -> int:
    """How many of the first pieces have it, where whoever has one has all before it."""
    return bisect_left(pieces, True, key=lambda piece: not has(piece))
