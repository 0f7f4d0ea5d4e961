"""The publisher costs its engine nothing but the sending, whatever is at the other end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from kvready.collectors.engine import publisher as module
from kvready.collectors.engine.publisher import RecordPublisher, observer_folder, socket_path
from kvready.collectors.records import (
    AnyRecord,
    LoadStarted,
    RequestPreempted,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)

JOIN_SECONDS = 0.3  # from a handshake until the publisher knows what is subscribed to
WAIT_SECONDS = 30.0  # for what must come, however busy the machine is
DECODER = msgspec.msgpack.Decoder(list[AnyRecord])


def record(number: int) -> LoadStarted:
    return LoadStarted(number, Tier.HOST, Tier.HBM, float(number))


class Subscriber:
    """Reads one role's socket."""

    def __init__(self, folder: Path, queue_messages: int = 0) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, queue_messages)
        self.socket.subscribe(b"")
        monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.socket.connect(f"ipc://{socket_path(folder, 'scheduler', 0)}")
        assert monitor.poll(WAIT_SECONDS * 1000)
        monitor.close(0)
        self.socket.disable_monitor()
        time.sleep(JOIN_SECONDS)

    def messages(self) -> list[tuple[int, list[AnyRecord]]]:
        """All that arrives until nothing more does for a while."""
        found: list[tuple[int, list[AnyRecord]]] = []
        while self.socket.poll((JOIN_SECONDS if found else WAIT_SECONDS) * 1000):
            topic, sequence, payload = self.socket.recv_multipart()
            assert topic == b"kvready"
            found.append((int.from_bytes(sequence, "big"), DECODER.decode(payload)))
        return found

    def close(self) -> None:
        self._context.destroy()


@pytest.fixture
def publisher(run_folder: Path) -> Iterator[RecordPublisher]:
    publisher = RecordPublisher(run_folder / "observer", "scheduler")
    yield publisher
    publisher.close()


@pytest.fixture
def folder(run_folder: Path) -> Path:
    return run_folder / "observer"


@pytest.mark.parametrize("value", [None, "", "off"])
def test_observing_is_off_unless_a_folder_is_named(value: str | None) -> None:
    environment = {} if value is None else {"KVREADY_OBSERVER": value}
    assert observer_folder(environment) is None
    assert observer_folder({"KVREADY_OBSERVER": "/run/kv"}) == Path("/run/kv")


def test_messages_are_numbered_from_zero_and_carry_tagged_records(
    publisher: RecordPublisher, folder: Path
) -> None:
    publisher.open()
    subscriber = Subscriber(folder)
    publisher.publish([record(1), RequestPreempted("r", 2.0)])
    publisher.publish([])
    publisher.publish([record(3)])
    assert subscriber.messages() == [
        (0, [record(1), RequestPreempted("r", 2.0)]),
        (1, [record(3)]),
    ]
    subscriber.close()
    assert publisher.failures == publisher.dropped_records == 0


def test_only_the_engines_user_may_enter_the_folder(
    publisher: RecordPublisher, folder: Path
) -> None:
    publisher.open()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("mode", "warnings"), [(0o777, 1), (0o755, 1), (0o700, 0)])
def test_a_folder_that_others_may_enter_is_used_and_warned_of_once(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    publishers = [RecordPublisher(folder, role) for role in ("scheduler", "mover")]
    for publisher in publishers:
        publisher.open()
        assert publisher.failures == 0
        publisher.close()
    said = [line for line in caplog.messages if f"chmod 700 {folder}" in line]
    assert len(said) == warnings
    assert stat.S_IMODE(folder.stat().st_mode) == mode, "the operator's folder is left as it is"


def test_nothing_is_opened_before_it_is_asked_for(folder: Path) -> None:
    RecordPublisher(folder, "scheduler").close()
    assert not folder.exists()


def test_a_stalled_subscriber_costs_records_that_are_counted_and_told(
    publisher: RecordPublisher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_QUEUE_MESSAGES", 8)
    publisher.open()
    subscriber = Subscriber(folder, queue_messages=8)
    padding = [RequestPreempted("x" * 20_000, 0.0)]  # fills the kernel's buffers soon
    sent = 0
    while not publisher.dropped_records and sent < 10_000:
        publisher.publish(padding)
        sent += 1
    publisher.publish(padding)
    lost = publisher.dropped_records
    assert lost >= 1
    assert publisher.failures == 0

    received = subscriber.messages()
    sequences = [sequence for sequence, _ in received]
    publisher.publish([record(1)])
    ((last, records),) = subscriber.messages()
    status = records[0]
    assert isinstance(status, TapStatus)
    assert (status.event, status.state) == (TapEvent.DROPPED, TapState.DEGRADED)
    assert status.count == lost
    missing = set(range(last)) - set(sequences)
    assert status.first_missing == min(missing)
    assert status.last_missing == max(missing)
    assert records[1:] == [record(1)]
    subscriber.close()


def test_records_that_could_not_be_made_are_told_without_a_gap(
    publisher: RecordPublisher, folder: Path
) -> None:
    publisher.open()
    subscriber = Subscriber(folder)
    publisher.publish([record(1)])
    publisher.lose(2)
    publisher.publish([record(2)])
    (_, first), (sequence, second) = subscriber.messages()
    assert first == [record(1)]
    assert sequence == 1
    status = second[0]
    assert isinstance(status, TapStatus)
    assert (status.count, status.first_missing, status.last_missing) == (2, None, None)
    subscriber.close()


def test_a_killed_engines_socket_is_replaced(folder: Path) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from kvready.collectors.engine.publisher import RecordPublisher\n"
        "publisher = RecordPublisher(pathlib.Path(sys.argv[1]), 'scheduler')\n"
        "publisher.open()\n"
        "print('open', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "open\n"

        # While it lives, nobody takes its place.
        intruder = RecordPublisher(folder, "scheduler")
        intruder.publish([record(1)])
        assert (intruder.failures, intruder.dropped_records) == (1, 1)

        process.send_signal(signal.SIGKILL)
        process.wait()
        intruder.close()
    assert socket_path(folder, "scheduler", 0).exists()

    successor = RecordPublisher(folder, "scheduler")
    successor.open()
    subscriber = Subscriber(folder)
    successor.publish([record(2)])
    assert subscriber.messages() == [(0, [record(2)])]
    assert successor.failures == 0
    subscriber.close()
    successor.close()


def test_a_folder_that_cannot_be_had_costs_records_and_nothing_else(run_folder: Path) -> None:
    (run_folder / "file").touch()
    publisher = RecordPublisher(run_folder / "file" / "observer", "scheduler")
    for number in range(3):
        publisher.publish([record(number)])
    assert publisher.dropped_records == 3
    assert publisher.failures == 1  # tried once
    publisher.close()


def test_a_name_too_long_for_a_socket_is_refused_with_the_variable_to_change(
    run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RecordPublisher(run_folder / ("x" * 120), "scheduler").open()
    assert "KVREADY_OBSERVER" in caplog.text


def test_a_fork_does_not_write_to_its_parents_socket(
    publisher: RecordPublisher, folder: Path
) -> None:
    publisher.open()
    subscriber = Subscriber(folder)
    child = os.fork()
    if child == 0:
        publisher.publish([record(99)])
        os._exit(0 if publisher.dropped_records == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publisher.publish([record(1)])
    assert subscriber.messages() == [(0, [record(1)])]
    subscriber.close()


def test_threads_share_one_numbering(publisher: RecordPublisher, folder: Path) -> None:
    publisher.open()
    subscriber = Subscriber(folder)
    threads = [
        threading.Thread(target=lambda: [publisher.publish([record(n)]) for n in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sequence for sequence, _ in subscriber.messages()] == list(range(800))
    subscriber.close()


def test_closing_says_so_and_is_safe_twice(publisher: RecordPublisher, folder: Path) -> None:
    publisher.open()
    subscriber = Subscriber(folder)
    publisher.close()
    publisher.close()
    ((_, (status,)),) = subscriber.messages()
    assert isinstance(status, TapStatus)
    assert (status.event, status.state) == (TapEvent.CLOSED, TapState.CLOSED)
    subscriber.close()


def test_a_publisher_without_subscribers_sends_into_the_void(publisher: RecordPublisher) -> None:
    for number in range(10_000):
        publisher.publish([record(number)])
    assert publisher.failures == publisher.dropped_records == 0


def test_a_socket_that_nobody_listens_on_is_removed(folder: Path) -> None:
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(folder, "scheduler", 0)))
    publisher = RecordPublisher(folder, "scheduler")
    publisher.open()
    assert publisher.failures == 0
    publisher.close()
