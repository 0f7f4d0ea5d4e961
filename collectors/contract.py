"""What every collector promises, as checks that a test of any collector can run.

A test supplies a `Rig`: the tap and a publisher under its control. Each check builds its own tap,
and raises `ContractBroken` with the promise that was not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kvready.collectors.collector import Collector, Coverage
from kvready.collectors.errors import TapError
from kvready.collectors.records import AnyRecord, TapEvent, TapState, TapStatus

PATIENCE_SECONDS = 10.0  # before something that should come is taken to have been lost
POLL_SECONDS = 0.05


class ContractBroken(AssertionError):
    """A collector did not keep a promise."""


class Rig(Protocol):
    """A tap with its publisher."""

    def make(self) -> Collector:
        """A tap, not started, aimed at the publisher."""
        ...

    def publish(self, sequence: int) -> None:
        """Send one well-formed message under this number, holding at least one record."""
        ...

    def publish_frames(self, frames: Sequence[bytes]) -> None:
        """Send frames as they are."""
        ...

    def restart(self) -> None:
        """Close the publisher's sockets and open them anew, as an engine that restarts does."""
        ...


class Gathered:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self.received_seconds: list[float] = []
        self.taps: set[str] = set()

    def __call__(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        self.records.append(record)
        self.received_seconds.append(received_seconds)
        self.taps.add(tap)

    @property
    def facts(self) -> list[AnyRecord]:
        """What the engine did, without the tap's own news."""
        return [record for record in self.records if not isinstance(record, TapStatus)]

    def news(self, event: TapEvent) -> list[TapStatus]:
        """The tap's news of one kind."""
        return [
            record
            for record in self.records
            if isinstance(record, TapStatus) and record.event is event
        ]


def check_lifecycle(make: Callable[[], Collector]) -> None:
    """Stops before start and twice; starts without a publisher, and again after a stop."""
    tap = make()
    _must(bool(tap.name), "a tap has a name")
    tap.stop()
    _must(tap.poll(0) == 0, "polling before start takes nothing")
    _unused(tap.coverage())
    began = time.monotonic()
    tap.start(Gathered())
    _must(time.monotonic() - began < PATIENCE_SECONDS, "start does not wait for a publisher")
    tap.stop()
    tap.stop()
    _must(tap.poll(0) == 0, "polling after stop takes nothing")
    _must(tap.coverage().state is TapState.CLOSED, "a stopped tap says that it is closed")
    tap.start(Gathered())
    tap.stop()


def check_no_data_is_not_failure(make: Callable[[], Collector]) -> None:
    """Silence is no error: nothing is taken, nothing raised, and nothing received is claimed."""
    tap, sink = make(), Gathered()
    tap.start(sink)
    try:
        began = time.monotonic()
        for _ in range(3):
            _must(tap.poll(POLL_SECONDS) == 0, "no data means no messages")
        _must(
            time.monotonic() - began < PATIENCE_SECONDS, "a poll stays near its budget in silence"
        )
        _unused(tap.coverage())
        _must(not sink.facts, "no data means no records")
    finally:
        tap.stop()


def check_delivery(rig: Rig, messages: int = 20) -> None:
    """Takes what is sent, in order, received at rising times under the tap's name."""
    tap, sink = _started(rig)
    try:
        rig.publish(0)
        _gather(tap, lambda: bool(sink.facts), "the first message's records")
        before = len(sink.facts)
        for sequence in range(1, messages):
            rig.publish(sequence)
        _gather(tap, lambda: tap.coverage().messages >= messages, "every message")
        coverage = tap.coverage()
        _must(len(sink.facts) >= before + messages - 1, "every message's records are delivered")
        _must(coverage.records == len(sink.records), "coverage counts the records delivered")
        _must(coverage.last_received_seconds is not None, "coverage says when it last received")
        _must(sink.received_seconds == sorted(sink.received_seconds), "receive times never go back")
        _must(sink.taps == {tap.name}, "records carry the tap's name")
        _must(not sink.news(TapEvent.GAP), "no gap where nothing is missing")
        _must(bool(coverage.blind_to), "a tap says what it cannot see")
    finally:
        tap.stop()


def check_garbage(rig: Rig, garbage: Sequence[Sequence[bytes]]) -> None:
    """Counts what it cannot read, says so, raises nothing, and goes on afterwards."""
    tap, sink = _started(rig)
    try:
        rig.publish(0)
        _gather(tap, lambda: bool(sink.facts), "a message before the garbage")
        for frames in garbage:
            rig.publish_frames(frames)
        _gather(tap, lambda: tap.coverage().messages >= 1 + len(garbage), "the garbage to be taken")
        _must(tap.coverage().decode_errors > 0, "what cannot be read is counted")
        _must(bool(sink.news(TapEvent.DECODE_ERROR)), "what cannot be read is told")
        before = len(sink.facts)
        for sequence in range(1_000_000, 1_000_003):
            rig.publish(sequence)
        _gather(tap, lambda: len(sink.facts) > before, "records after the garbage")
    finally:
        tap.stop()


def check_loss(rig: Rig) -> None:
    """A missing message is told with its number, and what follows is not lost with it."""
    tap, sink = _started(rig)
    try:
        rig.publish(0)
        _gather(tap, lambda: bool(sink.facts), "the first message")
        before = len(sink.facts)
        rig.publish(3)
        _gather(tap, lambda: bool(sink.news(TapEvent.GAP)), "news of the gap")
        gap = sink.news(TapEvent.GAP)[0]
        _must((gap.first_missing, gap.last_missing) == (1, 2), "a gap names what is missing")
        _must(tap.coverage().gaps == 1, "coverage counts gaps")
        _gather(tap, lambda: len(sink.facts) > before, "the message behind the gap")
        _must(tap.coverage().state is TapState.DEGRADED, "what stays missing degrades the tap")
    finally:
        tap.stop()


def check_duplicate(rig: Rig) -> None:
    """The same message twice counts once, and is no restart."""
    tap, sink = _started(rig)
    try:
        rig.publish(0)
        rig.publish(1)
        _gather(tap, lambda: tap.coverage().messages >= 2, "two messages")
        before = len(sink.facts)
        rig.publish(1)
        _gather(tap, lambda: tap.coverage().messages >= 3, "the duplicate")
        _must(len(sink.facts) == before, "a duplicate delivers nothing")
        _must(not sink.news(TapEvent.EPOCH), "a duplicate is no restart")
    finally:
        tap.stop()


def check_restart(rig: Rig) -> None:
    """An engine that starts anew is told as a new epoch before anything it says."""
    tap, sink = _started(rig)
    try:
        for sequence in range(5):
            rig.publish(sequence)
        _gather(tap, lambda: tap.coverage().messages >= 5, "five messages")
        before = len(sink.records)
        rig.restart()
        _publish_until(
            rig,
            tap,
            lambda: bool(sink.news(TapEvent.EPOCH)) and any(map(_is_fact, sink.records[before:])),
            "news of the epoch and a first new record",
        )
        after = sink.records[before:]
        first_fact = next(place for place, one in enumerate(after) if _is_fact(one))
        told = [one for one in after[:first_fact] if isinstance(one, TapStatus)]
        _must(
            any(one.event in (TapEvent.EPOCH, TapEvent.DROPPED) for one in told),
            "the restart is told before the new incarnation's first record",
        )
    finally:
        tap.stop()


def check_impossible_endpoints(impossible: Sequence[Callable[[], Collector]]) -> None:
    """An endpoint that can never deliver is refused at start, with words to act on."""
    for make in impossible:
        tap = make()
        try:
            tap.start(Gathered())
        except TapError as error:
            _must(len(str(error)) > 20, "the error says what to do")
        else:
            raise ContractBroken("an endpoint that can never deliver is refused at start")
        finally:
            tap.stop()


def _started(rig: Rig) -> tuple[Collector, Gathered]:
    """A tap that a publisher's messages reach: PUB drops what it sends before it has met us."""
    tap, sink = rig.make(), Gathered()
    tap.start(sink)
    for _ in range(10):
        tap.poll(POLL_SECONDS)
    return tap, sink


def _gather(tap: Collector, until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until():
        if time.monotonic() > deadline:
            raise ContractBroken(f"waited in vain for {what}; coverage: {tap.coverage()}")
        tap.poll(POLL_SECONDS)


def _publish_until(rig: Rig, tap: Collector, until: Callable[[], bool], what: str) -> None:
    """Publish from number 0 again and again: the first ones come before the tap is back."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    sequence = 0
    while not until():
        if time.monotonic() > deadline:
            raise ContractBroken(f"waited in vain for {what}; coverage: {tap.coverage()}")
        rig.publish(sequence)
        sequence += 1
        tap.poll(POLL_SECONDS)


def _is_fact(record: AnyRecord) -> bool:
    return not isinstance(record, TapStatus)


def _unused(coverage: Coverage) -> None:
    _must(coverage.last_received_seconds is None, "nothing received is claimed before anything is")
    _must(coverage.messages == 0, "no messages are claimed before any came")
    _must(coverage.decode_errors == 0, "no errors are claimed before anything came")


def _must(kept: bool, promise: str) -> None:
    if not kept:
        raise ContractBroken(promise)
