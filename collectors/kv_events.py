"""The level-1 tap: which block is in which tier, from a vLLM engine's KV-event socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from kvready.collectors.collector import Coverage, Level, Sink, Stability
from kvready.collectors.lost_behind import LostBehind
from kvready.collectors.records import TapEvent, TapStatus
from kvready.collectors.sequence import SequenceGate
from kvready.collectors.tap_news import news_of
from kvready.collectors.vllm import KvEventDecoder
from kvready.collectors.zmq_stream import SequencedStream

BLIND_ALWAYS = (
    "prefix hits and request ids: no event carries them",
    "loads: a copy into HBM looks like any store there",
    "a reset of the host tier: vLLM sends no event for it",
    "messages dropped behind the last one received, until the next arrives",
)
BLIND_WITHOUT_REPLAY = "what was published before we came: no replay endpoint is set"
BLIND_PARTIAL = "blocks stored before messages that stayed lost: unknown, not absent"
BLIND_UNKNOWN_EVENTS = "event types or media newer than this version: counted and skipped"
BLIND_WINDOWED = "prefixes of sliding-window and recurrent groups: their blocks alone make none"


class KvEventTap:
    """One rank's KV events as records. The tap's name is the records' `publisher`."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        replay: str | None = None,
        *,
        rank: int = 0,
        topic: str = "",
        with_content_keys: bool = False,
        engine_binds: bool | None = None,
        asked_seconds: Iterable[float] = (),
        on_asked: Callable[[Iterable[float]], None] | None = None,
    ) -> None:
        self.name = name
        self.decoder = KvEventDecoder(name, rank=rank, with_content_keys=with_content_keys)
        self.gate = SequenceGate(
            name, rank, can_replay=replay is not None, asked_seconds=asked_seconds
        )
        # Addresses are judged when the tap starts, so that building a tap opens and fails nothing.
        self._address = (endpoint, replay, topic, engine_binds)
        # Told of every replay request, so that the next run of ours can count it as well.
        self._on_asked = on_asked
        self._last_asked = self._asked_last()
        self._stream: SequencedStream | None = None
        self._sink: Sink | None = None
        self._records = 0
        self._messages = 0
        self._last_received: float | None = None
        self._lost_behind = LostBehind()

    def start(self, sink: Sink) -> None:
        """Subscribe. Raises TapError for an endpoint that can never deliver."""
        if self._stream is not None:
            return
        endpoint, replay, topic, engine_binds = self._address
        stream = SequencedStream(
            self.gate, endpoint, replay, topic=topic, engine_binds=engine_binds
        )
        stream.open()
        self._stream = stream
        self._sink = sink

    def poll(self, budget_seconds: float) -> int:
        """Take what arrived, waiting at most the budget for something to arrive."""
        stream = self._stream
        if stream is None:
            return 0
        lost = self._lost_behind.take()
        if lost:
            self.gate.lost_behind(lost, time.monotonic())
        taken = stream.poll(budget_seconds, self._on_message, self._on_status, self._on_refused)
        if taken:
            self._messages += taken
            self._last_received = stream.last_received_seconds
        asked = self._asked_last()
        if asked != self._last_asked:
            self._last_asked = asked
            if self._on_asked is not None:
                self._on_asked(tuple(self.gate.asked_seconds))
        return taken

    def stop(self) -> None:
        """Unsubscribe. Safe twice, and before `start`. A stopped tap may start again."""
        if self._stream is None:
            return
        self._stream.close()
        self._stream = None
        self.gate.disconnected(time.monotonic())
        self._flush_news()
        self._sink = None

    def lost(self, count: int) -> None:
        """Records delivered here were lost further on: what they held must come again."""
        self._lost_behind.add(count)

    def coverage(self) -> Coverage:
        """What this tap can and cannot see, now."""
        blind = list(BLIND_ALWAYS)
        if self._address[1] is None:
            blind.append(BLIND_WITHOUT_REPLAY)
        if self.gate.partial:
            blind.append(BLIND_PARTIAL)
        if self.decoder.unknown_events:
            blind.append(BLIND_UNKNOWN_EVENTS)
        if self.decoder.windowed_events:
            blind.append(BLIND_WINDOWED)
        return Coverage(
            tap=self.name,
            level=Level.KV_EVENTS,
            state=self.gate.state,
            stability=Stability.BETA,
            records=self._records,
            messages=self._messages,
            gaps=self.gate.gaps,
            decode_errors=self.decoder.errors.total(),
            dropped=self.gate.given_up,
            last_received_seconds=self._last_received,
            blind_to=tuple(blind),
            refused=dict(self.decoder.errors),
            unknown=dict(self.decoder.unknown_events),
            quarantine=tuple(map(str, self.decoder.quarantine.copy())),
            keyless_blocks=self.decoder.keyless_blocks,
        )

    def _asked_last(self) -> float | None:
        return self.gate.asked_seconds[-1] if self.gate.asked_seconds else None

    def _on_message(self, sequence: int, payload: bytes, received_seconds: float) -> None:
        decoded = self.decoder.decode(sequence, payload)
        sink = self._sink
        if sink is not None:
            name = self.name
            for record in decoded.records:
                sink(record, received_seconds, name)
            self._records += len(decoded.records)
        if decoded.lost is not None:
            self._on_status(self.gate.lose(sequence, decoded.lost), received_seconds)

    def _on_status(self, status: TapStatus, received_seconds: float) -> None:
        if status.event is TapEvent.EPOCH:
            self.decoder.forget_chains()
        if self._sink is not None:
            self._sink(status, received_seconds, self.name)
            self._records += 1

    def _on_refused(self, reason: str, frames: list[bytes]) -> None:
        self.decoder.refuse(-1, reason, sum(map(len, frames)))
        status = news_of(self.gate, TapEvent.DECODE_ERROR, count=1, detail=reason)
        self._on_status(status, time.monotonic())

    def _flush_news(self) -> None:
        """Pass on the news that is left when nothing is delivered any more."""
        actions = self.gate.actions
        for _ in range(len(actions)):
            action = actions.popleft()
            if isinstance(action, TapStatus):
                self._on_status(action, time.monotonic())
            else:
                actions.append(action)
