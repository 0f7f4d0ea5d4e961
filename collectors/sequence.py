"""Order out of a lossy stream: what may be delivered, what must be asked for again.

Pure: numbered messages, replies and the time go in; deliveries, requests and news come out. The
sockets are elsewhere (`zmq_stream`), so that every loss can be rehearsed.

Messages are delivered in the engine's order only. While one is missing, later ones are held back
(bounded) instead of passed on at once: a removal that came live and the store before it that came
by replay would otherwise end in the wrong order and call a block ready that is gone. Held back,
what the consumer knows is old but was true together; the state says `degraded` meanwhile.

A message that stays missing is given up: `DROPPED` tells the consumer to forget every block learnt
before it, since its removal may have been in what was lost, and delivery goes on behind the hole;
behind the last one where there are several, since what lies between would be forgotten at once.
Blocks that the engine still holds from before are then unknown, not absent, until it restarts.

An engine that restarts breaks its connection; `disconnected` must hear of it. Its numbers alone do
not always show it, and where the replay ring has passed nothing else does.

A `mark` tells equal messages from a new engine's message under an old number: for KV events the
message's first 10 bytes, which hold its publishing time and compare in time order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kvready.collectors.gate_actions import Action, Ask, Deliver, ReplayRound
from kvready.collectors.records import TapEvent, TapState, TapStatus
from kvready.collectors.tap_news import news_of

MAX_HELD_MESSAGES = 16_384
MAX_HELD_BYTES = 256 * 2**20
KEPT_MARKS = 32_768  # must exceed MAX_HELD_MESSAGES, so that the anchor's mark is never overwritten
ROUND_APART_SECONDS = 2.0
ROUND_SILENCE_SECONDS = 2.0
MAX_ROUNDS_PER_HOUR = 12
ROUND_MEMORY_SECONDS = 3_600.0
PASSED_ROUNDS = 2  # replays that begin above what was asked, before it counts as gone
TRUSTED_ROUND_MESSAGES = 500  # vLLM's ROUTER drops silently past 1,000 queued: then look again
LIVE = 0  # source of a message: a live connection, or the number of a replay
LATE_STREAK = 8  # stale numbers in a row, none fresh between: a restart under a clock set back


class SequenceGate:
    """The order of one publisher's messages. Feed it; then empty `actions`."""

    def __init__(
        self,
        tap: str,
        rank: int = 0,
        *,
        can_replay: bool,
        marks_in_time_order: bool = True,
        asked_seconds: Iterable[float] = (),
    ) -> None:
        self.tap = tap
        self.rank = rank
        self.expected = 0
        self.epoch = 0
        self.partial = False  # something was given up since the engine started
        self.gaps = 0
        self.duplicates = 0
        self.given_up = 0  # messages never seen
        self.actions: deque[Action] = deque()
        self.asked_seconds: deque[float] = deque(asked_seconds, maxlen=MAX_ROUNDS_PER_HOUR)
        self._can_replay = can_replay
        self._ordered = marks_in_time_order
        self._connected = False
        self._steady = True  # nothing missing, nothing doubted
        self._doubted = False  # the engine may have restarted: its last message must match ours
        self._behind = False  # there may be history that no live message has pointed to
        self._owed = False  # there is such history for certain, and we hold none of it
        self._anchored = False  # something was delivered in this epoch
        self._top = -1  # highest sequence held or delivered out of the steady path
        self._held: dict[int, tuple[bytes, float, int]] = {}  # payload, receive time, source
        self._held_bytes = 0
        self._marks: list[bytes] = [b""] * KEPT_MARKS
        self._round: ReplayRound | None = None
        self._passed = 0
        self._late = 0
        self._rounds = 0
        self._last_source = LIVE  # of the message delivered last

    @property
    def state(self) -> TapState:
        """How far the delivered messages can be trusted now."""
        if not self._connected:
            return TapState.CLOSED
        return TapState.LIVE if self._steady and not self.partial else TapState.DEGRADED

    @property
    def highest(self) -> int:
        """The highest sequence seen in this epoch, -1 before any."""
        return max(self._top, self.expected - 1)

    def connected(self, now: float) -> None:
        """The publisher answers. What it published before can be asked for."""
        if self._connected:
            return
        self._connected = True
        if self._anchored and not self._can_replay:
            self._restart("the connection was lost, and no replay can show the engine is the same")
        if self._can_replay and (self._doubted or not self._anchored):
            self._behind = True
            self._steady = False
        self._report(TapEvent.CONNECTED)
        if self._behind:
            self._ask(now)

    def disconnected(self, now: float) -> None:
        """The publisher is gone or cut off. It may come back as another incarnation."""
        if not self._connected:
            return
        self._connected = False
        self._round = None
        self._report(TapEvent.CLOSED)
        # What was held back may stem from an incarnation that is no more; a replay brings it again.
        self._held.clear()
        self._held_bytes = 0
        self._top = -1
        self._owed = False
        if self._anchored and self._can_replay:
            self._doubted = True
            self._steady = False

    def live(self, sequence: int, payload: bytes, mark: bytes, now: float) -> bool:
        """Take one live message. True: deliver it at once; else see `actions`."""
        if sequence == self.expected and self._steady and self._connected:
            self._marks[sequence % KEPT_MARKS] = mark
            self.expected = sequence + 1
            self._anchored = True
            self._late = 0
            return True
        self.connected(now)
        self._irregular(sequence, payload, mark, now)
        return False

    def reply(self, sequence: int, payload: bytes, mark: bytes, now: float) -> None:
        """Take one replayed message."""
        replay = self._round
        if replay is None:
            return
        replay.heard_seconds = now
        replay.messages += 1
        if replay.first is None:
            replay.first = sequence
            if self._doubted and sequence == replay.start:
                self._doubted = False
                self._last_source = self._rounds  # the same message: what follows follows it
                if mark != self._marks[sequence % KEPT_MARKS]:
                    self._restart("another message is replayed under a known number", whole=False)
        if sequence < self.expected or sequence in self._held:
            return
        if self._steady and sequence > self.expected:
            return  # nothing is missing: what lies between comes live
        self._hold(sequence, payload, mark, now, self._rounds)
        self._drain()

    def replay_ended(self, now: float) -> None:
        """The replay said it was complete, which it may not be."""
        replay = self._round
        if replay is None:
            return
        if replay.first is None and self._anchored and not self._held:
            # The engine we knew would at least repeat the last message it sent.
            self._restart("the engine does not remember its last message", whole=replay.start == 0)
        elif replay.first is None and self._owed and not self._held:
            self._give_up("the engine's replay buffer does not hold what it has published")
        elif replay.messages <= TRUSTED_ROUND_MESSAGES:
            self._behind = False
        self._end_round(replay, now, ended=True)

    def tick(self, now: float) -> None:
        """Let time pass: silent replays end, open holes are asked for again or given up."""
        replay = self._round
        if replay is not None and now - replay.heard_seconds >= ROUND_SILENCE_SECONDS:
            self._end_round(replay, now, ended=False)
        if not self._steady and self._round is None and self._connected:
            self._ask(now)

    def lose(self, sequence: int, reason: str) -> TapStatus:
        """A delivered message could not be read whole: what it removed is not known.

        The news is for now, ahead of all that waits in `actions`.
        """
        self.partial = True
        return news_of(self, TapEvent.DECODE_ERROR, sequence, sequence, reason)

    def lost_behind(self, count: int, now: float) -> None:
        """What was delivered did not all arrive: everything is asked for again, or is in doubt."""
        detail = f"{count} records lost on the way to ingestion"
        if not self._can_replay:
            self.partial = True
            self._report(TapEvent.DROPPED, detail=detail, count=count)
            return
        self._top = self.highest
        self._owed = self._top >= 0
        self.expected = 0
        self.epoch += 1
        self._anchored = self._doubted = self._steady = self.partial = False
        self._behind = True
        self._round = None
        self._passed = 0
        self._report(TapEvent.EPOCH, detail=detail)
        if self._connected:
            self._ask(now)

    def _irregular(self, sequence: int, payload: bytes, mark: bytes, now: float) -> None:
        highest = self.highest
        if sequence <= highest:
            if self._marks[sequence % KEPT_MARKS] == mark:
                self.duplicates += 1
                return
            newest = self._marks[highest % KEPT_MARKS]
            stale = self._ordered and mark <= newest
            if stale and sequence >= self.expected and sequence not in self._held:
                self._late = 0
                self._hold(sequence, payload, mark, now)
                self._drain()
                return
            if stale and self._late < LATE_STREAK:
                self._late += 1
                self.duplicates += 1
                return
            self._restart(f"sequence went back from {highest} to {sequence}")
            self._round = None
            highest = -1
        self._late = 0
        self._behind = False  # this message shows how far the history reaches
        gap = sequence > highest + 1
        self._hold(sequence, payload, mark, now)
        if gap:
            self.gaps += 1
            self._steady = False
            self._report(TapEvent.GAP, highest + 1, sequence - 1)
            if not self._can_replay:
                self._give_up("no replay endpoint")
                return
        self._drain()
        if not self._steady and self._round is None:
            self._ask(now)

    def _hold(
        self, sequence: int, payload: bytes, mark: bytes, now: float, source: int = LIVE
    ) -> None:
        self._held[sequence] = (payload, now, source)
        self._held_bytes += len(payload)
        self._marks[sequence % KEPT_MARKS] = mark
        self._top = max(self._top, sequence)
        if len(self._held) > MAX_HELD_MESSAGES or self._held_bytes > MAX_HELD_BYTES:
            self._drain()
            if len(self._held) > MAX_HELD_MESSAGES or self._held_bytes > MAX_HELD_BYTES:
                self._give_up("more messages held back than fit")

    def _drain(self) -> None:
        """Deliver what is in order by now, and heal when nothing is missing."""
        if self._doubted:
            return
        self._deliver_run()
        if self._held or self._behind or self.expected <= self._top:
            return
        if not self._steady:
            self._steady = True
            self._last_source = LIVE  # as what comes next does
            self._passed = 0
            self._report(TapEvent.HEALED)

    def _deliver_run(self, *, behind_a_hole: bool = False) -> None:
        while (entry := self._held.pop(self.expected, None)) is not None:
            payload, received, source = entry
            if not behind_a_hole and self._from_before(self.expected, source):
                self._restart("a message held back is older than the one before it", whole=False)
                self._owed = True
                return
            behind_a_hole = False
            self._last_source = source
            self._held_bytes -= len(payload)
            self.actions.append(Deliver(self.expected, payload, received))
            self.expected += 1
            self._anchored = True

    def _from_before(self, sequence: int, source: int) -> bool:
        """Whether a message was published before its predecessor: by an earlier incarnation.

        Two messages of one replay are of one engine, whose clock was set back between them.
        """
        if source == self._last_source != LIVE:
            return False
        mark = self._marks[sequence % KEPT_MARKS]
        return self._ordered and self._anchored and mark < self._marks[(sequence - 1) % KEPT_MARKS]

    def _ask(self, now: float) -> None:
        """Request from the last message delivered, to see that it is still the same engine."""
        asked = self.asked_seconds
        while asked and now - asked[0] >= ROUND_MEMORY_SECONDS:
            asked.popleft()
        if asked and now - asked[-1] < ROUND_APART_SECONDS:
            return
        if len(asked) >= MAX_ROUNDS_PER_HOUR:
            self._give_up(f"{MAX_ROUNDS_PER_HOUR} replay rounds in the last hour")
            return
        asked.append(now)
        start = self.expected - 1 if self._anchored else self.expected
        if self._anchored:
            self._doubted = True
            self._steady = False
        self._round = ReplayRound(start, now)
        self._rounds += 1
        self.actions.append(Ask(start))

    def _end_round(self, replay: ReplayRound, now: float, *, ended: bool) -> None:
        self._round = None
        if not self._steady:
            self._drain()
        if self._steady:
            return
        begins_after = ended if replay.first is None else replay.first > replay.start
        self._passed = self._passed + 1 if begins_after else 0
        if self._passed >= PASSED_ROUNDS and (self._held or self._doubted):
            self._give_up("the engine's replay buffer begins after it", below=replay.first)

    def _give_up(self, reason: str, *, below: int | None = None) -> None:
        """Go on behind what is missing; the consumer forgets all that it learnt before.

        With `below`, what is missing from that number on may still come.
        """
        self._doubted = False
        self._passed = 0
        self.partial = True
        if below is None:
            self._behind = False
        start, passed_over = self._behind_holes(below)
        missing = max(0, start - self.expected) - passed_over
        self.given_up += missing
        first, last = (self.expected, start - 1) if missing else (None, None)
        self._report(TapEvent.DROPPED, first, last, reason, missing)
        self.expected = start
        self._deliver_run(behind_a_hole=True)
        self._steady = not self._held and not self._behind

    def _behind_holes(self, below: int | None) -> tuple[int, int]:
        """Where delivery goes on, and how many held messages before it are let go."""
        start = self.highest + 1
        held = sorted(self._held)
        for place, sequence in enumerate(held):
            if place and sequence == held[place - 1] + 1:
                continue
            if place and below is not None and held[place - 1] + 1 >= below:
                break
            start = sequence
        passed_over = [sequence for sequence in held if sequence < start]
        for sequence in passed_over:
            self._held_bytes -= len(self._held.pop(sequence)[0])
        return start, len(passed_over)

    def _restart(self, detail: str, *, whole: bool = True) -> None:
        """Another incarnation speaks: nothing known of the old one holds.

        Not `whole`: it has published messages already that we do not have.
        """
        self._held.clear()
        self._held_bytes = 0
        self.epoch += 1
        self.expected = 0
        self._top = -1
        self._marks = [b""] * KEPT_MARKS
        self._anchored = False
        self._doubted = False
        self._behind = not whole and self._can_replay
        self._owed = False
        self._steady = not self._behind
        self.partial = not whole and not self._can_replay
        self._passed = 0
        self._late = 0
        self._report(TapEvent.EPOCH, detail=detail)

    def _report(
        self,
        event: TapEvent,
        first_missing: int | None = None,
        last_missing: int | None = None,
        detail: str = "",
        count: int | None = None,
    ) -> None:
        self.actions.append(news_of(self, event, first_missing, last_missing, detail, count))
