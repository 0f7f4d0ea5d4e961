"""A KV-event publisher with its replay socket, over real sockets, under a test's control."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import zmq
from streams import SmallEngine

from kvready.collectors.collector import Collector
from kvready.collectors.kv_events import KvEventTap

TAP = "engine"


class KvPublisher:
    """PUB, and ROUTER if asked for, framed as vLLM frames them. Also the contract kit's rig."""

    def __init__(self, folder: Path, *, can_replay: bool = False, topic: bytes = b"kv") -> None:
        self.endpoint = f"ipc://{folder}/live.sock"
        self.replay_endpoint = f"ipc://{folder}/replay.sock" if can_replay else None
        self.engine = SmallEngine(1)
        self._started_wall_seconds = self.engine.wall_seconds
        self.requests: list[list[bytes]] = []
        self.topic_in_replies = True
        self._topic = topic
        self._sent: dict[int, bytes] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._open()

    def _open(self) -> None:
        self._live = self._context.socket(zmq.PUB)
        self._live.bind(self.endpoint)
        self._router = None
        if self.replay_endpoint is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.bind(self.replay_endpoint)

    def close(self) -> None:
        self._live.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)

    def end(self) -> None:
        self.close()
        self._context.destroy(linger=0)

    # The rig

    def make(self) -> Collector:
        return KvEventTap(TAP, self.endpoint, self.replay_endpoint, topic=self._topic.decode())

    def publish(self, sequence: int) -> None:
        self.publish_frames([self._topic, sequence.to_bytes(8, "big"), self.payload(sequence)])

    def publish_frames(self, frames: Sequence[bytes]) -> None:
        self._live.send_multipart(list(frames))

    def restart(self) -> None:
        self.close()
        self.engine = SmallEngine(2, self.engine.wall_seconds + 60)
        self._started_wall_seconds = self.engine.wall_seconds
        self._sent.clear()
        self._open()

    # What tests of replay need besides

    def payload(self, sequence: int) -> bytes:
        """The message of this number: the same one however often it is sent."""
        if sequence not in self._sent:
            while not self._says_something(self.engine.step()):
                pass
            # Times rise with the numbers, whichever of them is sent first.
            wall = struct.pack(">d", self._started_wall_seconds + sequence * 1e-6)
            self._sent[sequence] = self.engine.published[-1].replace(
                self.engine.published[-1][2:10], wall, 1
            )
        return self._sent[sequence]

    def serve_replays(self, last: int, *, with_end: bool = True, skip: int | None = None) -> int:
        """Answer what was asked so far, up to number `last`; how many requests there were."""
        served = 0
        router = self._router
        while router is not None and router.poll(0):
            frames = router.recv_multipart()
            self.requests.append(frames)
            served += 1
            identity, delimiter, start = frames
            topic = [self._topic] if self.topic_in_replies else []
            for sequence in range(int.from_bytes(start, "big"), last + 1):
                if sequence != skip:
                    number = sequence.to_bytes(8, "big")
                    router.send_multipart(
                        [identity, delimiter, *topic, number, self.payload(sequence)]
                    )
            if with_end:
                ending = [b""] if self.topic_in_replies else []
                router.send_multipart([identity, delimiter, *ending, b"\xff" * 8, b""])
        return served

    def _says_something(self, payload: bytes) -> bool:
        return b"Block" in payload
