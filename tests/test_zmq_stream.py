"""The KV-event tap over real sockets: replay, restarts, and which end binds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from kv_publisher import TAP, KvPublisher
from streams import captured_frames

from kvready.collectors.contract import Gathered
from kvready.collectors.endpoint import Endpoint, live_endpoint, replay_endpoint
from kvready.collectors.errors import TapError
from kvready.collectors.kv_events import BLIND_PARTIAL, BLIND_WITHOUT_REPLAY, KvEventTap
from kvready.collectors.records import BlocksStored, TapEvent, TapState

PATIENCE_SECONDS = 20.0


@pytest.fixture
def publisher(short_dir: Path) -> Iterator[KvPublisher]:
    made = KvPublisher(short_dir, can_replay=True)
    yield made
    made.end()


def poll_until(tap: KvEventTap, done: Callable[[], bool], also: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, tap.coverage()
        also()
        tap.poll(0.02)


def sequences(sink: Gathered) -> list[int]:
    """The numbers whose records came, each once, in the order they came."""
    return list(dict.fromkeys(record.sequence for record in sink.facts))  # type: ignore[union-attr]


def joined(publisher: KvPublisher, last: int) -> tuple[KvEventTap, Gathered]:
    """A tap that met the publisher and knows its history up to `last`."""
    tap = KvEventTap(TAP, publisher.endpoint, publisher.replay_endpoint, topic="kv")
    sink = Gathered()
    tap.start(sink)
    poll_until(
        tap,
        lambda: tap.coverage().state is TapState.LIVE,
        lambda: publisher.serve_replays(last),
    )
    return tap, sink


@pytest.mark.parametrize("with_topic", [True, False])
def test_a_late_joiner_learns_the_past_in_order_in_both_framings(
    publisher: KvPublisher, with_topic: bool
) -> None:
    publisher.topic_in_replies = with_topic
    tap, sink = joined(publisher, last=9)
    assert sequences(sink) == list(range(10))
    assert publisher.requests[0][1:] == [b"", bytes(8)]
    publisher.publish(10)
    poll_until(tap, lambda: 10 in sequences(sink), lambda: None)
    assert tap.coverage().gaps == 0
    tap.stop()


def test_a_gap_is_filled_by_a_replay_and_nothing_overtakes(publisher: KvPublisher) -> None:
    tap, sink = joined(publisher, last=2)
    publisher.publish(6)
    poll_until(tap, lambda: bool(sink.news(TapEvent.GAP)), lambda: None)
    assert tap.coverage().state is TapState.DEGRADED
    assert sequences(sink) == [0, 1, 2]
    poll_until(
        tap,
        lambda: tap.coverage().state is TapState.LIVE,
        lambda: publisher.serve_replays(6),
    )
    assert sequences(sink) == list(range(7))
    assert sink.news(TapEvent.HEALED)
    assert int.from_bytes(publisher.requests[-1][2], "big") == 2, "from the last one we know"
    tap.stop()


def test_a_replay_that_lost_its_middle_and_its_end_is_asked_again_from_there(
    publisher: KvPublisher,
) -> None:
    tap, sink = joined(publisher, last=0)
    publisher.publish(8)
    answered: list[int] = []

    def leaky() -> None:
        skip = 4 if not answered else None
        if publisher.serve_replays(8, with_end=bool(answered), skip=skip):
            answered.append(1)

    poll_until(tap, lambda: tap.coverage().state is TapState.LIVE and len(answered) > 1, leaky)
    assert sequences(sink) == list(range(9))
    assert int.from_bytes(publisher.requests[-1][2], "big") == 3
    tap.stop()


def test_an_engine_that_restarts_idle_is_found_out_without_a_message(
    publisher: KvPublisher,
) -> None:
    tap, sink = joined(publisher, last=4)
    publisher.restart()
    poll_until(
        tap,
        lambda: bool(sink.news(TapEvent.EPOCH)),
        lambda: publisher.serve_replays(-1),
    )
    assert sink.news(TapEvent.CLOSED)
    poll_until(
        tap,
        lambda: tap.coverage().state is TapState.LIVE,
        lambda: publisher.serve_replays(-1),
    )
    tap.stop()


def test_without_replay_coverage_says_what_stays_unknown(short_dir: Path) -> None:
    publisher = KvPublisher(short_dir)
    tap = KvEventTap(TAP, publisher.endpoint, topic="kv")
    sink = Gathered()
    tap.start(sink)
    number = iter(range(5, 10_000))
    poll_until(tap, lambda: bool(sink.facts), lambda: publisher.publish(next(number)))
    coverage = tap.coverage()
    assert BLIND_WITHOUT_REPLAY in coverage.blind_to
    assert BLIND_PARTIAL in coverage.blind_to
    assert coverage.dropped >= 5
    assert coverage.state is TapState.DEGRADED
    tap.stop()
    publisher.end()


def test_we_bind_where_the_engine_connects(free_port: int) -> None:
    address = f"tcp://127.0.0.1:{free_port}"
    tap, sink = KvEventTap(TAP, address), Gathered()
    tap.start(sink)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = context.socket(zmq.PUB)
    engine.connect(address)
    frames = captured_frames("vllm_kv_events")[:3]

    def publish() -> None:
        for message in frames:
            engine.send_multipart(message)

    poll_until(tap, lambda: bool(sink.facts), publish)
    assert isinstance(sink.facts[0], BlocksStored)
    other = KvEventTap("other", address)
    with pytest.raises(TapError, match="in use"):
        other.start(Gathered())
    other.stop()
    tap.stop()
    context.destroy(linger=0)


def test_a_real_engines_replay_as_captured_is_understood(short_dir: Path) -> None:
    replies = captured_frames("vllm_kv_replay_dealer")
    first = int.from_bytes(replies[0][-2], "big")
    path = f"ipc://{short_dir}/replay.sock"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    live, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    live.bind(f"ipc://{short_dir}/live.sock")
    router.bind(path)
    tap, sink = KvEventTap(TAP, f"ipc://{short_dir}/live.sock", path), Gathered()
    tap.start(sink)

    def answer() -> None:
        while router.poll(0):
            identity = router.recv_multipart()[0]
            for frames in replies:
                router.send_multipart([identity, *frames])

    poll_until(tap, lambda: bool(sink.facts), answer)
    numbers = sequences(sink)
    assert numbers == list(range(first, first + len(replies) - 1))
    assert tap.coverage().decode_errors == 0
    assert sink.news(TapEvent.DROPPED), "the capture begins late, as where a ring has passed"
    tap.stop()
    context.destroy(linger=0)


@pytest.mark.parametrize(
    ("address", "ours"),
    [
        ("ipc:///tmp/a.sock", Endpoint("ipc:///tmp/a.sock", we_bind=False)),
        ("tcp://*:5557", Endpoint("tcp://127.0.0.1:5557", we_bind=False)),
        ("tcp://[::]:5557", Endpoint("tcp://127.0.0.1:5557", we_bind=False)),
        ("tcp://127.0.0.1:5557", Endpoint("tcp://127.0.0.1:5557", we_bind=True)),
        ("tcp://10.0.0.7:5557", Endpoint("tcp://10.0.0.7:5557", we_bind=True)),
    ],
)
def test_our_end_is_the_one_that_vllm_leaves(address: str, ours: Endpoint) -> None:
    assert live_endpoint(address) == ours


def test_a_replay_socket_is_always_the_engines() -> None:
    assert replay_endpoint("tcp://127.0.0.1:5558") == Endpoint("tcp://127.0.0.1:5558", False)
    assert replay_endpoint("tcp://*:5558") == Endpoint("tcp://127.0.0.1:5558", False)


def test_an_engine_that_binds_a_plain_address_can_be_told() -> None:
    ours = live_endpoint("tcp://10.0.0.7:5557", engine_binds=True)
    assert ours == Endpoint("tcp://10.0.0.7:5557", we_bind=False)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://host:1", "use ipc"),
        ("inproc://cache", "use ipc"),
        ("host:5557", "use ipc"),
        ("ipc://" + "x" * 200, "shorter directory"),
        ("tcp://host", "no usable port"),
        ("tcp://*:0", "kv_event_sources"),
        ("tcp://0.0.0.0:5557", "vLLM connects"),
    ],
)
def test_an_address_that_can_never_deliver_is_refused_with_the_fix(
    address: str, words: str
) -> None:
    with pytest.raises(TapError, match=words):
        live_endpoint(address)


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    tap = KvEventTap(TAP, "tcp://192.0.2.1:5557")  # TEST-NET-1: no machine's address
    with pytest.raises(TapError, match="engine binds"):
        tap.start(Gathered())
    tap.stop()
