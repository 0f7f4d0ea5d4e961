"""The level-3 tap: records that an observer inside the engine publishes on ipc sockets.

One folder holds a socket per role and data-parallel rank (`observer-scheduler-0.sock`,
`observer-mover-1.sock`), one more for each further worker of a rank (`observer-mover-1-2.sock`).
The name of the socket tells the rank; each record gets it here.
Sockets may appear after we do, and an engine that restarts makes them anew under the same names.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import zmq
from msgspec import structs
from zmq.utils.monitor import recv_monitor_message

from kvready.collectors.collector import Coverage, Level, Sink, Stability
from kvready.collectors.endpoint import MAX_IPC_PATH_BYTES
from kvready.collectors.errors import TapError
from kvready.collectors.lost_behind import LostBehind
from kvready.collectors.message_order import MessageOrder, Taken
from kvready.collectors.record_batch import RecordBatchDecoder
from kvready.collectors.records import Observed, TapEvent, TapState, TapStatus
from kvready.collectors.surfaces import FRONTEND_SOCKET, GATEWAY_SOCKET, SCHEDULER_SOCKET
from kvready.collectors.tap_news import news_of

TOPIC = b"kvready"
SOCKET_PATTERN = "observer-*.sock"
LONGEST_SOCKET_NAME = "observer-mover-0000-0000.sock"
RANK_IN_NAME = re.compile(r"observer-[a-z]+-(\d+)(?:-\d+)?")
SEQUENCE_BYTES = 8
MAX_SOCKETS = 64
MAX_MESSAGES_PER_POLL = 4_096
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_QUEUED_MESSAGES = 65_536  # per socket; beyond it ZeroMQ drops and the sequence shows it
LOOK_EVERY_SECONDS = 0.2  # for sockets that appeared or went away
BLIND_TO = ("what was under way when we joined", "copies that no observed mover makes")
BLIND_TO_NEWER = "record kinds newer than this version: counted and skipped"


def _is_gateway(path: Path) -> bool:
    return path.stem.startswith(GATEWAY_SOCKET)


class _Source:
    """One socket and the order of its messages."""

    def __init__(self, context: zmq.Context[Any], path: Path, tap: str) -> None:
        named = RANK_IN_NAME.fullmatch(path.stem)
        self.order = MessageOrder(tap, int(named[1]) if named else 0)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_MESSAGES)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.subscribe(TOPIC)
        self.socket.connect(f"ipc://{path}")

    def publisher_left(self) -> bool:
        """Whether the connection broke since last asked."""
        left = False
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            left = True
        return left

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class ObserverTap:
    """All observer sockets of one engine's folder. Records pass through unchanged."""

    def __init__(self, name: str, folder: str | Path) -> None:
        self.name = name
        self.decoder = RecordBatchDecoder()
        self._folder = Path(folder)
        self._sources: dict[Path, _Source] = {}
        self._context: zmq.Context[Any] | None = None
        self._poller = zmq.Poller()
        self._sink: Sink | None = None
        self._looked_seconds = float("-inf")
        self._records = 0
        self._messages = 0
        self._refused = 0
        self._past_gaps = 0  # of sockets that are no more
        self._past_lost = 0
        self._lost_behind = LostBehind()
        self._last_received: float | None = None
        self._saw_frontend = self._saw_scheduler = False

    def start(self, sink: Sink) -> None:
        """Watch the folder, which may come later. Raises TapError where no socket could be."""
        if self._context is not None:
            return
        longest = self._folder.absolute() / LONGEST_SOCKET_NAME
        if len(str(longest).encode()) > MAX_IPC_PATH_BYTES:
            raise TapError(
                f"{self._folder}: socket paths in it exceed {MAX_IPC_PATH_BYTES} bytes; "
                "observe through a folder with a shorter name"
            )
        if self._folder.exists() and not self._folder.is_dir():
            raise TapError(f"{self._folder} is a file; name the folder given to the observer")
        self._context = zmq.Context(io_threads=1)
        self._sink = sink
        self._looked_seconds = float("-inf")

    def poll(self, budget_seconds: float) -> int:
        """Take what arrived on any socket, waiting at most the budget for something to arrive."""
        if self._context is None:
            return 0
        deadline = time.monotonic() + budget_seconds
        self._look_for_sockets()
        taken = self._take_all(deadline)
        while not taken and (wait := deadline - time.monotonic()) > 0:
            wait = min(wait, LOOK_EVERY_SECONDS)
            if self._sources:
                self._poller.poll(int(wait * 1_000))
            else:
                time.sleep(wait)  # a poller without sockets would not wait
            self._look_for_sockets()
            taken = self._take_all(deadline)
        now = time.monotonic()
        lost = self._lost_behind.take()
        for source in self._sources.values():
            if lost:
                source.order.lost_behind(lost, now)
            if source.publisher_left():
                source.order.gone()
            source.order.tick(now)
            self._tell(source.order, now)
        return taken

    def stop(self) -> None:
        """Close every socket. Safe twice, and before `start`. A stopped tap may start again."""
        if self._context is None:
            return
        for path in list(self._sources):
            self._close(path)
        self._context.destroy(linger=0)
        self._context = None
        self._sink = None

    def lost(self, count: int) -> None:
        """Records delivered here were lost further on; of which stream, nobody knows."""
        self._lost_behind.add(count)

    def coverage(self) -> Coverage:
        """What this tap can and cannot see, now."""
        orders = [source.order for source in self._sources.values()]
        states = {order.state for order in orders}
        state = TapState.LIVE if TapState.LIVE in states else TapState.CLOSED
        if TapState.DEGRADED in states:
            state = TapState.DEGRADED
        return Coverage(
            tap=self.name,
            level=self._level,
            state=state,
            stability=Stability.BETA,
            records=self._records,
            messages=self._messages,
            gaps=self._past_gaps + sum(order.gaps for order in orders),
            decode_errors=self._refused + self.decoder.errors.total(),
            dropped=self._past_lost + sum(order.lost for order in orders),
            last_received_seconds=self._last_received,
            blind_to=(*BLIND_TO, BLIND_TO_NEWER) if self.decoder.unknown_kinds else BLIND_TO,
            refused=dict(self.decoder.errors),
            unknown=dict(self.decoder.unknown_kinds),
        )

    @property
    def _level(self) -> Level:
        """What API servers alone tell is known only once a request has ended."""
        reported_only = self._saw_frontend and not self._saw_scheduler
        return Level.REQUESTS if reported_only else Level.OBSERVER

    def _look_for_sockets(self) -> None:
        now = time.monotonic()
        if self._context is None or now - self._looked_seconds < LOOK_EVERY_SECONDS:
            return
        self._looked_seconds = now
        try:
            found = set(self._folder.glob(SOCKET_PATTERN))
        except OSError:
            return  # not there, or not ours to read, yet: no data, which coverage shows
        for path in self._sources.keys() - found:
            self._close(path)
        for path in sorted(found - self._sources.keys()):
            if len(self._sources) >= MAX_SOCKETS:
                break
            tap = f"{self.name}-{path.stem.removeprefix('observer-')}"
            source = _Source(self._context, path, tap)
            self._sources[path] = source
            if path.stem.startswith(FRONTEND_SOCKET) or _is_gateway(path):
                self._saw_frontend = True
            elif path.stem.startswith(SCHEDULER_SOCKET):
                self._saw_scheduler = True
            self._poller.register(source.socket, zmq.POLLIN)

    def _close(self, path: Path) -> None:
        source = self._sources.pop(path)
        self._poller.unregister(source.socket)
        source.close()
        source.order.gone()
        self._tell(source.order, time.monotonic())
        self._past_gaps += source.order.gaps
        self._past_lost += source.order.lost

    def _take_all(self, deadline: float) -> int:
        # What a gateway tells of a request comes before what its engine does.
        ordered = sorted(self._sources.items(), key=lambda item: not _is_gateway(item[0]))
        return sum(self._take(source, deadline) for _, source in ordered)

    def _take(self, source: _Source, deadline: float) -> int:
        taken = 0
        try:
            while taken < MAX_MESSAGES_PER_POLL:
                frames = source.socket.recv_multipart(zmq.NOBLOCK)
                now = time.monotonic()
                taken += 1
                self._messages += 1
                self._last_received = now
                self._message(source.order, frames, now)
                if now >= deadline:
                    break
        except zmq.Again:
            pass  # all taken
        return taken

    def _message(self, order: MessageOrder, frames: list[bytes], now: float) -> None:
        if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
            self._refused += 1
            reason = f"{len(frames)} frames instead of topic, sequence (8 bytes) and records"
            self._deliver(_decode_error(order, reason), now)
            return
        taken = order.take(int.from_bytes(frames[1]), frames[2], now)
        self._tell(order, now)
        if taken is Taken.DUPLICATE:
            return
        records, problem = self.decoder.decode(frames[2])
        rank = order.rank
        for record in records:
            if isinstance(record, TapStatus):
                order.hear(record, now)  # it does not know what its stream is called here
                self._tell(order, now)
                continue
            if rank and isinstance(record, Observed):
                record = structs.replace(record, rank=rank)
            self._deliver(record, now)
        if problem is not None:
            self._deliver(_decode_error(order, problem), now)

    def _tell(self, order: MessageOrder, now: float) -> None:
        for status in order.news:
            self._deliver(status, now)
        order.news.clear()

    def _deliver(self, record: Any, now: float) -> None:
        if self._sink is not None:
            self._sink(record, now, self.name)
            self._records += 1


def _decode_error(order: MessageOrder, reason: str) -> TapStatus:
    return news_of(order, TapEvent.DECODE_ERROR, count=1, detail=reason)
