"""Sends records out of an engine's process without ever costing it more than the sending.

A ZeroMQ PUB socket in a folder that is made for the engine's user alone; one that is there already
is used as it is, with a warning where others may enter it. One message is three
frames: b"kvready", a sequence number (8 bytes, big-endian, from 0 for each process), and a msgpack
array of records. The sequence advances for messages that had to be dropped too, so that every
subscriber sees the gap; the next message that goes out says how many records were lost.

One variable switches all of it: `KVREADY_OBSERVER`, a folder for the sockets. Unset, empty or
`off`, nothing is opened.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import zmq

from kvready.collectors.records import AnyRecord, TapEvent, TapState, TapStatus

logger = logging.getLogger(__name__)

OBSERVER_VARIABLE = "KVREADY_OBSERVER"
OFF = "off"
TOPIC = b"kvready"
SEND_QUEUE_MESSAGES = 4096  # held for a slow subscriber before messages are dropped
MAX_SOCKET_PATH_BYTES = 100  # the system's own limit is 107; ZeroMQ adds to it while binding
CLOSE_LINGER_MILLISECONDS = 100
OTHERS = 0o077  # permissions of all but the owner


def observer_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the observer's sockets go; None: observing is off."""
    value = (os.environ if environment is None else environment).get(OBSERVER_VARIABLE, "")
    return None if value in ("", OFF) else Path(value)


def socket_path(folder: Path, role: str, rank: int, worker: int = 0) -> Path:
    """The socket of one role (`scheduler` or `mover`), data-parallel rank, and worker in it."""
    return folder / f"observer-{role}-{rank}{f'-{worker}' if worker else ''}.sock"


class RecordPublisher:
    """Publishes records. Never blocks, never raises: what cannot be sent is counted.

    Opens in the process that publishes, at the latest with its first records; a fork starts anew.
    """

    def __init__(self, folder: Path, role: str, rank: int = 0, worker: int = 0) -> None:
        self._path = socket_path(folder, role, rank, worker)
        self._tap = f"observer-{role}"
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()  # two copy threads share a mover's socket
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._process: int | None = None  # that opened, or failed to open, the socket
        self._sequence = 0
        self._unreported = 0  # records lost since the last message that went out
        self._first_missing: int | None = None  # message lost since then, if any
        self.failures = 0  # of any kind but a full queue
        self.dropped_records = 0

    def open(self) -> None:
        """Open the socket ahead of the first records, so that a waiting subscriber gets them."""
        with self._lock:
            try:
                self._open_once()
            except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
                self.count_failure(error)

    def publish(self, records: Sequence[AnyRecord]) -> None:
        """Send records as one message, or count them as dropped."""
        if not records:
            return
        with self._lock:
            try:
                self._open_once()
                self._send(records)
            except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
                self._drop(len(records))
                self.count_failure(error)

    def lose(self, records: int) -> None:
        """Count records that could not be made; the next message says so."""
        with self._lock:
            self._unreported += records
            self.dropped_records += records

    def count_failure(self, error: Exception) -> None:
        """Count a failure of the observer's own; the first is logged."""
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "kvready observer: %s: %s; the engine goes on, records are dropped and counted",
                type(error).__name__,
                error,
            )

    def close(self) -> None:
        """Say goodbye and close the socket. Safe twice, and before the first record."""
        with self._lock:
            if self._process != os.getpid():
                return
            self._process = None
            if self._socket is None or self._context is None:
                return
            try:
                self._send([self._status(TapEvent.CLOSED, TapState.CLOSED)])
                self._socket.close(linger=CLOSE_LINGER_MILLISECONDS)
                self._context.term()
            except zmq.ZMQError as error:
                self.count_failure(error)
            self._socket = self._context = None

    def _open_once(self) -> None:
        """Bind in this process. A failure is not tried again: it would cost every step."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._socket = self._context = None
        self._sequence = 0
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _warn_of_access(self._path.parent)
        if len(os.fsencode(self._path)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"{self._path} is too long for a socket; set {OBSERVER_VARIABLE} to a folder "
                f"with a shorter name"
            )
        remove_stale(self._path)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES)
        # Without it a full queue would lose messages unseen by us; so the send fails instead.
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket.setsockopt(zmq.LINGER, CLOSE_LINGER_MILLISECONDS)
        self._socket.bind(f"ipc://{self._path}")

    def _send(self, records: Sequence[AnyRecord]) -> None:
        if self._socket is None:
            self._drop(len(records))
            return
        if self._unreported:
            records = [self._status(TapEvent.DROPPED, TapState.DEGRADED), *records]
        frames = (TOPIC, self._sequence.to_bytes(8, "big"), self._encoder.encode(records))
        try:
            self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=True)
        except zmq.Again:
            self._drop(len(records) - (1 if self._unreported else 0))
        else:
            self._unreported = 0
            self._first_missing = None
            self._sequence += 1

    def _drop(self, records: int) -> None:
        if self._first_missing is None:
            self._first_missing = self._sequence
        self._unreported += records
        self.dropped_records += records
        self._sequence += 1

    def _status(self, event: TapEvent, state: TapState) -> TapStatus:
        first = self._first_missing
        return TapStatus(
            tap=self._tap,
            rank=self._rank,
            event=event,
            state=state,
            count=self._unreported,
            first_missing=first,
            last_missing=None if first is None else self._sequence - 1,
        )


@lru_cache(maxsize=16)  # several sockets share a folder: it is said once
def _warn_of_access(folder: Path) -> None:
    """Say that others may enter a folder: they could read, or replace, what is published."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & OTHERS:
        logger.warning(
            "kvready observer: others may enter %s (mode %03o), where request ids and block hashes "
            "are published; close it with: chmod 700 %s",
            folder,
            mode,
            folder,
        )


def remove_stale(path: Path) -> None:
    """Remove a dead process's socket; refuse to take a living one's place."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.1)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise FileExistsError(
        f"another engine publishes on {path}; give each engine its own {OBSERVER_VARIABLE} folder"
    )
