"""The observer's sockets: several, coming and going, with records that a newer observer may add."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observer_publisher import TAP, TOPIC, ObserverPublisher, load_started
from streams import captured_frames

from kvready.advisor.pipeline import Pipeline
from kvready.collectors import message_order
from kvready.collectors.collector import Level
from kvready.collectors.contract import Gathered
from kvready.collectors.engine.publisher import RecordPublisher
from kvready.collectors.errors import TapError
from kvready.collectors.message_order import FORGIVEN_AFTER_SECONDS, MessageOrder, Taken
from kvready.collectors.observer_tap import LOOK_EVERY_SECONDS, ObserverTap
from kvready.collectors.record_batch import MAX_NAMES, RecordBatchDecoder
from kvready.collectors.records import (
    AnyRecord,
    CountersScraped,
    Ingested,
    LoadStarted,
    Outcome,
    RequestFinished,
    TapEvent,
    TapState,
    TapStatus,
)

PATIENCE_SECONDS = 20.0


@pytest.fixture
def tap(short_dir: Path) -> Iterator[ObserverTap]:
    made = ObserverTap(TAP, short_dir)
    yield made
    made.stop()


def poll_until(tap: ObserverTap, done: Callable[[], bool], also: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, tap.coverage()
        also()
        tap.poll(0.02)


def test_sockets_that_appear_later_are_found_and_kept_apart(
    tap: ObserverTap, short_dir: Path
) -> None:
    sink = Gathered()
    tap.start(sink)
    tap.poll(0)
    scheduler = ObserverPublisher(short_dir, "scheduler-0")
    mover = ObserverPublisher(short_dir, "mover-1")
    number = iter(range(10_000))

    def publish() -> None:
        scheduler.publish(sequence := next(number))
        mover.publish(sequence)

    poll_until(tap, lambda: len(sink.news(TapEvent.CONNECTED)) == 2, publish)
    met = {(status.tap, status.rank) for status in sink.news(TapEvent.CONNECTED)}
    assert met == {(f"{TAP}-scheduler-0", 0), (f"{TAP}-mover-1", 1)}
    assert not sink.news(TapEvent.GAP), "what was said before we came is no gap"
    scheduler.end()
    mover.end()


def test_a_socket_whose_file_is_gone_is_closed_and_its_engine_said_to_be_gone(
    tap: ObserverTap, short_dir: Path
) -> None:
    sink = Gathered()
    tap.start(sink)
    publisher = ObserverPublisher(short_dir)
    number = iter(range(10_000))
    poll_until(tap, lambda: bool(sink.facts), lambda: publisher.publish(next(number)))
    publisher.end()
    poll_until(tap, lambda: bool(sink.news(TapEvent.CLOSED)), lambda: None)
    assert tap.coverage().state is TapState.CLOSED


def test_a_newer_observers_records_are_skipped_counted_and_no_loss(
    tap: ObserverTap, short_dir: Path
) -> None:
    sink = Gathered()
    tap.start(sink)
    publisher = ObserverPublisher(short_dir)
    newer = msgspec.to_builtins(load_started(1)) | {"lane": 4}
    payload = msgspec.msgpack.encode([{"kind": "batch_replanned", "step": 1}, newer])
    number = iter(range(10_000))

    def publish() -> None:
        publisher.publish_frames([TOPIC, next(number).to_bytes(8, "big"), payload])

    poll_until(tap, lambda: bool(sink.facts), publish)
    assert sink.facts[0] == load_started(1)
    coverage = tap.coverage()
    assert coverage.decode_errors == 0
    assert any("newer" in line for line in coverage.blind_to)
    publisher.end()


def test_a_real_observers_messages_are_read_whole() -> None:
    decoder = RecordBatchDecoder()
    kinds: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for _, _, payload in captured_frames("engine_observer"):
        records, problem = decoder.decode(payload)
        assert problem is None
        kinds.update(record.__struct_config__.tag for record in records)  # type: ignore[misc]
        wanted.update(raw["kind"] for raw in msgspec.msgpack.decode(payload))
    assert kinds == wanted
    assert {"batch_planned", "load_finished", "request_arrived"} <= kinds.keys()
    assert not decoder.unknown_kinds


def test_one_malformed_record_spoils_no_other() -> None:
    good = msgspec.to_builtins(load_started(7))
    payload = msgspec.msgpack.encode([good, {"kind": "load_started"}, 5, good])
    decoder = RecordBatchDecoder()
    records, problem = decoder.decode(payload)
    assert records == [load_started(7)] * 2
    assert problem is not None
    assert decoder.errors.total() == 2


@given(payload=st.binary(max_size=100))
def test_no_bytes_make_it_raise(payload: bytes) -> None:
    RecordBatchDecoder().decode(payload)


def test_names_that_strangers_choose_are_bounded() -> None:
    decoder = RecordBatchDecoder()
    for number in range(500):
        decoder.decode(msgspec.msgpack.encode([{"kind": f"kind{number}"}]))
    assert len(decoder.unknown_kinds) <= MAX_NAMES + 1


def test_a_folder_whose_sockets_could_never_be_is_refused(short_dir: Path) -> None:
    deep = ObserverTap(TAP, short_dir / ("d" * 100))
    with pytest.raises(TapError, match="shorter name"):
        deep.start(Gathered())
    file = short_dir / "file"
    file.touch()
    with pytest.raises(TapError, match="is a file"):
        ObserverTap(TAP, file).start(Gathered())


def test_a_folder_that_is_not_there_yet_is_no_failure(short_dir: Path) -> None:
    tap, sink = ObserverTap(TAP, short_dir / "later"), Gathered()
    tap.start(sink)
    assert tap.poll(0) == 0
    (short_dir / "later").mkdir()
    publisher = ObserverPublisher(short_dir / "later")
    number = iter(range(10_000))
    poll_until(tap, lambda: bool(sink.facts), lambda: publisher.publish(next(number)))
    assert isinstance(sink.facts[0], LoadStarted)
    tap.stop()
    publisher.end()


def test_a_gap_taints_for_a_while_and_a_restart_is_a_new_epoch() -> None:
    order = MessageOrder(TAP)
    for sequence in (4, 5, 8):
        assert order.take(sequence, bytes([sequence]), 10.0) is Taken.DELIVER
    assert [status.event for status in order.news] == [TapEvent.CONNECTED, TapEvent.GAP]
    assert (order.news[1].first_missing, order.news[1].last_missing, order.lost) == (6, 7, 2)
    assert order.state is TapState.DEGRADED
    order.tick(10.0 + FORGIVEN_AFTER_SECONDS)
    assert order.news[-1].event is TapEvent.HEALED
    assert order.take(8, bytes([8]), 80.0) is Taken.DUPLICATE
    order.take(2, b"new", 81.0)
    assert [status.event for status in order.news[-2:]] == [TapEvent.EPOCH, TapEvent.GAP]
    assert order.epoch == 1
    order.gone()
    order.gone()
    assert [status.event for status in order.news[-2:]] == [TapEvent.GAP, TapEvent.CLOSED]
    order.take(3, b"would have been next", 82.0)
    assert order.epoch == 2


def test_api_servers_alone_tell_less_than_an_observer_inside(short_dir: Path) -> None:
    frontend = ObserverPublisher(short_dir, "frontend-0")
    tap = ObserverTap("observer", short_dir)
    tap.start(Gathered())
    try:
        assert tap.coverage().level is Level.OBSERVER  # nothing seen yet: what it is there for
        tap.poll(0.0)
        assert tap.coverage().level is Level.REQUESTS
        mover = ObserverPublisher(short_dir, "mover-0")  # it knows of copies, not of requests
        time.sleep(2 * LOOK_EVERY_SECONDS)
        tap.poll(0.0)
        assert tap.coverage().level is Level.REQUESTS
        inside = ObserverPublisher(short_dir, "scheduler-0")
        time.sleep(2 * LOOK_EVERY_SECONDS)
        tap.poll(0.0)
        assert tap.coverage().level is Level.OBSERVER
        inside.end()
        mover.end()
    finally:
        tap.stop()
        frontend.end()


def test_an_engine_that_restarts_cleanly_leaves_nothing_degraded(
    tap: ObserverTap, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a publisher says of itself is told under its stream's name, and so undone with it."""
    # The first messages of a life may come before we are there: a gap, forgiven sooner here.
    monkeypatch.setattr(message_order, "FORGIVEN_AFTER_SECONDS", 0.1)
    pipeline, sink = Pipeline(), Gathered()

    def take(record: AnyRecord, received_seconds: float, name: str) -> None:
        sink(record, received_seconds, name)
        pipeline.ingest(Ingested(len(sink.records), received_seconds, name, record))

    live = TapStatus("kv-events", 0, TapEvent.CONNECTED, TapState.LIVE)
    take(live, 0.0, "kv-events")
    tap.start(take)
    for life in (1, 2, 3):
        publisher = RecordPublisher(short_dir, "scheduler")
        publisher.open()
        poll_until(
            tap,
            lambda: pipeline.tap_states.get(f"{TAP}-scheduler-0") is TapState.LIVE,
            lambda publisher=publisher: publisher.publish([load_started(1)]),
        )
        assert not pipeline.degraded, (life, pipeline.tap_states)
        publisher.close()
        poll_until(tap, lambda: pipeline.degraded, lambda: None)
    assert set(pipeline.tap_states) == {"kv-events", f"{TAP}-scheduler-0"}
    assert len(sink.news(TapEvent.CLOSED)) == 3
    assert len(sink.news(TapEvent.EPOCH)) == 2


def test_records_that_a_publisher_lost_taint_its_own_stream_for_a_while(
    tap: ObserverTap, short_dir: Path
) -> None:
    sink = Gathered()
    tap.start(sink)
    publisher = RecordPublisher(short_dir, "mover", rank=1)
    publisher.open()
    poll_until(tap, lambda: bool(sink.facts), lambda: publisher.publish([load_started(1)]))
    publisher.lose(7)
    publisher.publish([load_started(2)])
    poll_until(tap, lambda: bool(sink.news(TapEvent.DROPPED)), lambda: None)
    [dropped] = sink.news(TapEvent.DROPPED)
    assert (dropped.tap, dropped.rank, dropped.count) == (f"{TAP}-mover-1", 1, 7)
    assert dropped.state is tap.coverage().state is TapState.DEGRADED
    publisher.close()


def test_records_lost_behind_the_tap_taint_every_stream_that_speaks() -> None:
    orders = MessageOrder(TAP), MessageOrder(TAP)
    orders[0].take(0, b"", 1.0)
    for order in orders:
        order.news.clear()
        order.lost_behind(3, 2.0)
    assert [(one.event, one.count, one.state) for one in orders[0].news] == [
        (TapEvent.DROPPED, 3, TapState.DEGRADED)
    ]
    assert orders[1].news == []
    orders[0].tick(2.0 + FORGIVEN_AFTER_SECONDS)
    assert orders[0].state is TapState.LIVE


@given(number=st.sampled_from([float("nan"), float("inf"), float("-inf")]), single=st.booleans())
def test_a_number_that_is_not_finite_spoils_its_record_and_no_other(
    number: float, single: bool
) -> None:
    """JSON has no such number: a recording that held one could not be read beyond it."""
    good = msgspec.to_builtins(load_started(7))
    tag, wire = (b"\xca", ">f") if single else (b"\xcb", ">d")
    mark = msgspec.msgpack.encode(7.0)
    payload = msgspec.msgpack.encode([good, good | {"started_seconds": 7.0}, good])
    first, second, third = payload.split(mark, 2)[0], *payload.split(mark, 2)[1:]
    payload = first + mark + second + tag + struct.pack(wire, number) + third
    decoder = RecordBatchDecoder()
    records, problem = decoder.decode(payload)
    assert records == [load_started(7)] * 2
    assert problem == "malformed load_started: a number that is not finite"
    scrape = CountersScraped(1.0, values={"x": number})
    assert decoder.decode(msgspec.msgpack.encode([scrape]))[0] == []


@given(name=st.binary(max_size=12))
def test_text_that_looks_like_such_a_number_spoils_nothing(name: bytes) -> None:
    record = load_started(1)
    finished = RequestFinished((b"\xcb\x7f\xf0" + name).decode("latin-1"), 1.0, Outcome.FINISHED)
    sent = [record, finished]
    assert RecordBatchDecoder().decode(msgspec.msgpack.encode(sent)) == (sent, None)
