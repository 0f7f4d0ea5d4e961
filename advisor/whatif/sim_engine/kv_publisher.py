"""The KV-event sockets: PUB for what happens, ROUTER for what was missed, a bounded ring between.

A thread of its own owns both sockets, as in vLLM: it answers replays between two messages, and an
engine whose queue is full waits for it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zmq

from kvready.collectors.engine.publisher import remove_stale
from kvready.collectors.errors import TapError

IPC = "ipc://"
RING_MESSAGES = 10_000
SEND_QUEUE_MESSAGES = 100_000
MAX_QUEUED_MESSAGES = 10_000
ANSWER_QUEUE_MESSAGES = 1_000  # beyond it the ROUTER drops, as vLLM's does
IDLE_SECONDS = 0.02
STOP_SECONDS = 5.0
END_OF_REPLAY = b"\xff" * 8
SEQUENCE_BYTES = 8
REPLAY_FRAMES = 3  # identity, delimiter, first wanted number

Message = tuple[int, bytes, bool]


class KvPublisher:
    """One incarnation's events, numbered from 0, on two ipc sockets."""

    def __init__(self, endpoint: str, replay_endpoint: str, ring: int = RING_MESSAGES) -> None:
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.sequence = -1  # of the last message
        self.replays = 0
        self.refused = 0  # requests for a replay that were none
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=ring)
        self._queue: queue.Queue[Message] = queue.Queue(MAX_QUEUED_MESSAGES)
        self._stopping = threading.Event()
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._open()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, payload: bytes, lost: bool = False) -> int:
        """Number and send one message; `lost`: only a replay shows it. Waits while full."""
        self.sequence += 1
        while not self._stopping.is_set():
            try:
                self._queue.put((self.sequence, payload, lost), timeout=IDLE_SECONDS)
                break
            except queue.Full:
                continue
        return self.sequence

    @property
    def queued(self) -> int:
        """Messages that a replay asked for now would not hold yet."""
        return self._queue.qsize()

    def close(self) -> None:
        """Send what is queued and close. Safe twice."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        for endpoint in (self.endpoint, self.replay_endpoint):
            Path(endpoint.removeprefix(IPC)).unlink(missing_ok=True)

    def _open(self) -> None:
        for socket, high_water in (
            (self._pub, SEND_QUEUE_MESSAGES),
            (self._router, ANSWER_QUEUE_MESSAGES),
        ):
            socket.setsockopt(zmq.SNDHWM, high_water)
            socket.setsockopt(zmq.LINGER, 0)
        for socket, endpoint in ((self._pub, self.endpoint), (self._router, self.replay_endpoint)):
            try:
                remove_stale(Path(endpoint.removeprefix(IPC)))
                socket.bind(endpoint)
            except (OSError, zmq.ZMQError) as error:
                self._context.destroy(linger=0)
                raise TapError(
                    f"cannot bind {endpoint}: {error}; end the engine that holds it, or name "
                    "another folder"
                ) from None

    def _run(self) -> None:
        while True:
            self._answer()
            try:
                sequence, payload, lost = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if self._stopping.is_set():
                    break
                continue
            self._ring.append((sequence, payload))
            if not lost:
                self._pub.send_multipart((b"", sequence.to_bytes(SEQUENCE_BYTES), payload))
        self._context.destroy(linger=0)

    def _answer(self) -> None:
        while self._router.poll(0):
            frames = self._router.recv_multipart()
            if len(frames) != REPLAY_FRAMES or len(frames[2]) != SEQUENCE_BYTES:
                self.refused += 1
                continue
            self.replays += 1
            self._router_send(frames[0], int.from_bytes(frames[2]))

    def _router_send(self, asker: bytes, first: int) -> None:
        for sequence, payload in self._from(first):
            self._router.send_multipart(
                (asker, b"", b"", sequence.to_bytes(SEQUENCE_BYTES), payload)
            )
        self._router.send_multipart((asker, b"", b"", END_OF_REPLAY, b""))

    def _from(self, first: int) -> Iterable[tuple[int, bytes]]:
        return (kept for kept in self._ring if kept[0] >= first)
