"""The order of a stream that cannot be asked to repeat: gaps and restarts are told, not healed."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b

from msgspec import structs

from kvready.collectors.records import TapEvent, TapState, TapStatus
from kvready.collectors.tap_news import news_of

FORGIVEN_AFTER_SECONDS = 60.0  # by then the requests whose records were lost have mostly ended


class Taken(Enum):
    """What to do with a message."""

    DELIVER = "deliver"
    DUPLICATE = "duplicate"


class MessageOrder:
    """One publisher's sequence. After each call, `news` holds what there is to tell."""

    def __init__(self, tap: str, rank: int = 0) -> None:
        self.tap = tap
        self.rank = rank
        self.epoch = 0
        self.gaps = 0
        self.lost = 0  # messages
        self.duplicates = 0
        self.news: list[TapStatus] = []
        self.state = TapState.CLOSED
        self._expected: int | None = None  # None: no message of this incarnation yet
        self._last_digest = b""
        self._met = False
        self._degraded_until = 0.0

    def take(self, sequence: int, payload: bytes, now: float) -> Taken:
        """Place one message."""
        digest = blake2b(payload, digest_size=8).digest()
        expected = self._expected
        if expected is None:
            self._first(sequence, now)
        elif sequence > expected:
            self._gap(expected, sequence - 1, now)
        elif sequence < expected:
            if sequence == expected - 1 and digest == self._last_digest:
                self.duplicates += 1
                return Taken.DUPLICATE
            self._first(sequence, now, f"sequence went back from {expected - 1} to {sequence}")
        self._expected = sequence + 1
        self._last_digest = digest
        return Taken.DELIVER

    def gone(self) -> None:
        """The publisher closed its socket: whatever speaks next is another incarnation."""
        if self.state is TapState.CLOSED:
            return
        self.state = TapState.CLOSED
        self._expected = None
        self._tell(TapEvent.CLOSED)

    def hear(self, status: TapStatus, now: float) -> None:
        """Take what the publisher says of itself: told as this stream's, in the state it is in."""
        if status.event is TapEvent.CLOSED:
            self.gone()
            return
        if status.event is TapEvent.DROPPED:
            self._taint(now)
        self.news.append(
            structs.replace(
                status, tap=self.tap, rank=self.rank, state=self.state, epoch=self.epoch
            )
        )

    def lost_behind(self, count: int, now: float) -> None:
        """Records that were taken from here got lost before they were ingested."""
        if self.state is TapState.CLOSED:
            return
        self._taint(now)
        self.news.append(
            news_of(self, TapEvent.DROPPED, count=count, detail="lost on the way to ingestion")
        )

    def tick(self, now: float) -> None:
        """Let time pass: a gap long ago no longer taints what comes now."""
        if self.state is TapState.DEGRADED and now >= self._degraded_until:
            self.state = TapState.LIVE
            self._tell(TapEvent.HEALED, detail=f"whole for {FORGIVEN_AFTER_SECONDS:.0f} s")

    def _first(self, sequence: int, now: float, detail: str = "") -> None:
        self.state = TapState.LIVE
        if self._met:
            self.epoch += 1
            self._tell(TapEvent.EPOCH, detail=detail)
            if sequence > 0:
                self._gap(0, sequence - 1, now)
            return
        self._met = True
        self._tell(TapEvent.CONNECTED, detail=f"joined at message {sequence}" if sequence else "")

    def _gap(self, first: int, last: int, now: float) -> None:
        self.gaps += 1
        self.lost += last - first + 1
        self._taint(now)
        self._tell(TapEvent.GAP, first, last)

    def _taint(self, now: float) -> None:
        self.state = TapState.DEGRADED
        self._degraded_until = now + FORGIVEN_AFTER_SECONDS

    def _tell(
        self,
        event: TapEvent,
        first_missing: int | None = None,
        last_missing: int | None = None,
        detail: str = "",
    ) -> None:
        self.news.append(news_of(self, event, first_missing, last_missing, detail))
