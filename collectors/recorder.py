"""The recorder: gives each record its place in ingest order, and time a record of its own.

Everything downstream consumes what leaves here, single-threaded. A `Tick` each second makes
silence and stalls part of the order, so that a replay sees them too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from kvready.collectors.records import (
    AnyRecord,
    CountersScraped,
    Ingested,
    KeepingChanged,
    KillSwitched,
    PoliciesRestored,
    PolicyCommanded,
    ReadinessAsked,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
)

TICK_SECONDS = 1.0
LOSS_FORGIVEN_AFTER_SECONDS = 60.0  # as a gap that a tap saw itself
MAX_TICKS_AT_ONCE = 5  # a process that slept longer skips ticks rather than write a burst
RECORDER_TAP = "recorder"
API_TAP = "api"

ControlRecord = PolicyCommanded | KillSwitched | KeepingChanged | PoliciesRestored

logger = logging.getLogger(__name__)


class Writer(Protocol):
    """What keeps records. `write` and `flush` raise OSError when the disk refuses."""

    written_bytes: int

    def write(self, item: Ingested) -> bool: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class RecordingState:
    """What became of the recording, counted."""

    def __init__(self) -> None:
        self.active = False
        self.records = 0
        self.written_bytes = 0
        self.failures = 0
        self.problem = ""


class Recorder:
    """Stamps, keeps and forwards records; calls must come from one thread.

    `taps` are the taps that ought to speak, each with what to check when it does not.
    A disk that refuses ends the recording, is counted and named in `recording.problem`; records
    are forwarded all the same.
    """

    def __init__(
        self,
        forward: Callable[[Ingested], None],
        writer: Writer | None = None,
        taps: Mapping[str, str] | None = None,
        silence_seconds: float = 30.0,
        started_seconds: float = 0.0,
    ) -> None:
        self.ingested = 0
        self.kinds: dict[str, int] = {}
        self.recording = RecordingState()
        self.recording.active = writer is not None
        self.refused: dict[str, str] = {}  # what each tap last could not read, and why
        self.on_end: Callable[[], None] = lambda: None  # called when the recording ends early
        self._forward = forward
        self._writer = writer
        self._silence_seconds = silence_seconds
        self._next_tick_seconds = started_seconds
        self._spoke: set[str] = set()  # since the last tick
        # How long a tap said nothing while another spoke; None until its first record.
        self._quiet_seconds: dict[str, float | None] = dict.fromkeys(taps or {})
        self._said_of_itself: dict[str, TapState] = {}  # of those taps only
        self._lossy_until: dict[str, float] = {}
        self._advice = dict(taps or {})
        self._started_seconds = started_seconds
        self._silent: set[str] = set()

    def take(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        """Give one record its number, keep it, forward it."""
        if isinstance(record, TapStatus):
            if record.event is TapEvent.DECODE_ERROR and record.detail:
                self.refused[tap] = record.detail
            if record.tap in self._quiet_seconds:
                self._said_of_itself[record.tap] = record.state
        elif not isinstance(record, Tick):
            # A scrape is answered by an idle engine too: it makes no other tap's silence strange.
            if not isinstance(record, CountersScraped):
                self._spoke.add(tap)
            self._quiet_seconds[tap] = 0.0
            if tap in self._silent:
                self._silent.remove(tap)
                news = _status(tap, TapEvent.HEALED, self._state_of(tap))
                self._stamp(news, received_seconds, tap)
        self._stamp(record, received_seconds, tap)

    def asked(self, question: ReadinessAsked, now_seconds: float) -> None:
        """Give a question its place in ingest order; it says nothing of any tap."""
        self._stamp(question, now_seconds, API_TAP)

    def said(self, control: ControlRecord, now_seconds: float) -> None:
        """Give what was said to policies its place in ingest order; it says nothing of any tap."""
        self._stamp(control, now_seconds, API_TAP)

    def dropped(self, tap: str, count: int, now_seconds: float) -> None:
        """Say that a full queue cost records, so that replays know it too; it taints for a while.

        What it means for the tap's own streams the tap says itself: tell it as well.
        """
        self._lossy_until[tap] = now_seconds + LOSS_FORGIVEN_AFTER_SECONDS
        status = TapStatus(
            tap=tap,
            rank=0,
            event=TapEvent.DROPPED,
            state=TapState.DEGRADED,
            count=count,
            detail="records came faster than they were ingested",
        )
        self._stamp(status, now_seconds, tap)

    def advance(self, now_seconds: float, now_wall_seconds: float) -> None:
        """Write the tick that is due, and say which taps fell silent."""
        if now_seconds < self._next_tick_seconds:
            return
        self._next_tick_seconds += TICK_SECONDS
        if now_seconds - self._next_tick_seconds > MAX_TICKS_AT_ONCE * TICK_SECONDS:
            self._next_tick_seconds = now_seconds + TICK_SECONDS
        self._stamp(
            Tick(tick_seconds=now_seconds, tick_wall_seconds=now_wall_seconds),
            now_seconds,
            RECORDER_TAP,
        )
        self._look_for_silence(now_seconds)
        self._forgive(now_seconds)
        self._keep_safe()

    def close(self) -> None:
        """Flush and close the recording. Safe twice."""
        writer, self._writer = self._writer, None
        self.recording.active = False
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._refused(error)
            self.recording.written_bytes = writer.written_bytes

    @property
    def next_tick_seconds(self) -> float:
        """When `advance` has something to do."""
        return self._next_tick_seconds

    @property
    def spoke(self) -> bool:
        """Whether any tap told anything of the engine, beside news of itself."""
        return any(quiet_seconds is not None for quiet_seconds in self._quiet_seconds.values())

    def silent_taps(self) -> dict[str, str]:
        """What is known of each silent tap."""
        return {
            tap: "has said nothing so far" if self._quiet_seconds[tap] is None else "went silent"
            for tap in sorted(self._silent)
        }

    def _state_of(self, tap: str) -> TapState:
        return (
            TapState.DEGRADED
            if tap in self._lossy_until
            else self._said_of_itself.get(tap, TapState.LIVE)
        )

    def _forgive(self, now_seconds: float) -> None:
        """A loss long ago no longer taints what comes now."""
        for tap in [tap for tap, until in self._lossy_until.items() if now_seconds >= until]:
            del self._lossy_until[tap]
            if tap not in self._silent:  # else it heals when it speaks
                detail = f"nothing lost for {LOSS_FORGIVEN_AFTER_SECONDS:.0f} s"
                news = _status(tap, TapEvent.HEALED, self._state_of(tap), detail)
                self._stamp(news, now_seconds, tap)

    def _look_for_silence(self, now_seconds: float) -> None:
        """A tap is silent that never spoke in time, or said nothing for long while another spoke.

        Seconds in which all are quiet do not count: an idle or restarting engine is no tap's fault.
        """
        for tap, quiet_seconds in self._quiet_seconds.items():
            if quiet_seconds is None:
                silent = now_seconds - self._started_seconds >= self._silence_seconds
                what = "nothing has arrived"
                if tap in self.refused:
                    what = f"nothing could be read of what arrived ({self.refused[tap]})"
            else:
                if self._spoke - {tap} and tap not in self._spoke:
                    quiet_seconds = self._quiet_seconds[tap] = quiet_seconds + TICK_SECONDS
                silent = quiet_seconds >= self._silence_seconds
                what = "it said nothing while other taps spoke"
            if silent and tap not in self._silent:
                self._silent.add(tap)
                self._tell_silence(tap, what, now_seconds)
        self._spoke.clear()

    def _tell_silence(self, tap: str, what: str, now_seconds: float) -> None:
        detail = f"{what} for {self._silence_seconds:g} s"
        if self._advice.get(tap) and not (tap in self.refused and self._quiet_seconds[tap] is None):
            detail += f"; check {self._advice[tap]}"
        logger.warning("tap %s: %s", tap, detail)
        self._stamp(_status(tap, TapEvent.SILENT, TapState.SILENT, detail), now_seconds, tap)

    def _stamp(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        item = Ingested(
            ingest=self.ingested, received_seconds=received_seconds, tap=tap, record=record
        )
        self.ingested += 1
        kind = str(record.__struct_config__.tag)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self._writer is not None:
            self._keep(self._writer, item)
        self._forward(item)

    def _keep(self, writer: Writer, item: Ingested) -> None:
        try:
            if writer.write(item):
                self.recording.records += 1
                return
        except OSError as error:
            self._refused(error)
            return
        self.recording.problem = "the recording reached its size limit; start a new one"
        self._end()

    def _keep_safe(self) -> None:
        if self._writer is not None:
            try:
                self._writer.flush()
                self.recording.written_bytes = self._writer.written_bytes
            except OSError as error:
                self._refused(error)

    def _refused(self, error: OSError) -> None:
        self.recording.problem = (
            f"recording stopped: {error.strerror or error}; free some space and restart"
        )
        self._end()

    def _end(self) -> None:
        self.recording.failures += 1
        self.recording.active = False
        logger.warning("%s", self.recording.problem)
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError:
                # The disk that refused a write refuses the last flush too; it is counted above.
                self.recording.failures += 1
        self.on_end()


def _status(tap: str, event: TapEvent, state: TapState, detail: str = "") -> TapStatus:
    return TapStatus(tap=tap, rank=0, event=event, state=state, detail=detail)
