"""An observer's sockets as an engine makes them, under a test's control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from kvready.collectors.collector import Collector
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import AnyRecord, LoadStarted, Tier

TAP = "observer"
TOPIC = b"kvready"


def load_started(number: int) -> LoadStarted:
    return LoadStarted(number, Tier.HOST, Tier.HBM, float(number))


class ObserverPublisher:
    """One PUB socket in a folder. Also the contract kit's rig."""

    def __init__(self, folder: Path, name: str = "scheduler-0") -> None:
        self._folder = folder
        self._path = folder / f"observer-{name}.sock"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.open()

    def open(self) -> None:
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind(f"ipc://{self._path}")

    def close(self) -> None:
        self._socket.close(linger=0)
        self._path.unlink(missing_ok=True)

    def end(self) -> None:
        self.close()
        self._context.destroy(linger=0)

    def make(self) -> Collector:
        return ObserverTap(TAP, self._folder)

    def publish(self, sequence: int) -> None:
        self.publish_records(sequence, [load_started(sequence)])

    def publish_records(self, sequence: int, records: Sequence[AnyRecord]) -> None:
        payload = msgspec.msgpack.encode(list(records))
        self.publish_frames([TOPIC, sequence.to_bytes(8, "big"), payload])

    def publish_frames(self, frames: Sequence[bytes]) -> None:
        self._socket.send_multipart(list(frames))

    def restart(self) -> None:
        self.close()
        self.open()
