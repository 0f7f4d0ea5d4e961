"""A scripted engine: KV events on real sockets, replayed on request, framed as vLLM does."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

import msgspec
import zmq

END_OF_REPLAY = b"\xff" * 8
POLL_MILLISECONDS = 20
BLOCK_TOKENS = 32
KEPT_MESSAGES = 10_000  # as many as vLLM keeps for replay


class Publisher:
    """Publishes on real sockets from a thread of its own; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.events = f"ipc://{folder}/events"
        self.replay = f"ipc://{folder}/replay"
        self.replay_requests: list[tuple[bytes, ...]] = []
        self.sequence = 0
        self._kept: dict[int, bytes] = {}
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Publisher:
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        self._pub.bind(self.events)
        self._router.bind(self.replay)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._pub.close()
        self._router.close()
        self._context.term()

    def store(self, *hashes: int, parent: int | None = None, medium: str = "GPU") -> None:
        """One message with one stored chain."""
        self.send(
            {
                "type": "BlockStored",
                "block_hashes": list(hashes),
                "parent_block_hash": parent,
                "token_ids": [7] * (BLOCK_TOKENS * len(hashes)),
                "block_size": BLOCK_TOKENS,
                "lora_id": None,
                "medium": medium,
                "lora_name": None,
            }
        )

    def send(self, *events: object) -> None:
        """One message with these events."""
        self.send_payload(msgspec.msgpack.encode([time.time(), list(events), 0]))

    def send_payload(self, payload: bytes, *, lost: bool = False) -> None:
        """One message as it is; `lost` keeps it for replay only."""
        with self._lock:
            self._kept[self.sequence] = payload
            if not lost:
                self._pub.send_multipart([b"", self.sequence.to_bytes(8), payload])
            self._kept.pop(self.sequence - KEPT_MESSAGES, None)
            self.sequence += 1

    def _answer(self) -> None:
        while not self._over.is_set():
            if not self._router.poll(POLL_MILLISECONDS):
                continue
            identity, *request = self._router.recv_multipart()
            self.replay_requests.append(tuple(request))
            start = int.from_bytes(request[-1])
            with self._lock:
                kept = sorted(item for item in self._kept.items() if item[0] >= start)
            for sequence, payload in kept:
                self._router.send_multipart([identity, b"", b"", sequence.to_bytes(8), payload])
            self._router.send_multipart([identity, b"", b"", END_OF_REPLAY, b""])
