"""A sequence-checked ZMQ subscription with replay: the sockets around `sequence.SequenceGate`.

Single-threaded: everything happens inside `poll`. Frames are [topic, sequence, payload]; replies
come with or without the topic, so the last two frames count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvready.collectors.endpoint import live_endpoint, replay_endpoint
from kvready.collectors.errors import TapError
from kvready.collectors.gate_actions import Ask, Deliver
from kvready.collectors.host_names import unresolvable
from kvready.collectors.records import TapStatus
from kvready.collectors.sequence import SequenceGate

CONNECTION_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
END_OF_REPLAY = b"\xff" * 8
SEQUENCE_BYTES = 8
MAX_MESSAGES_PER_POLL = 4_096  # then whoever polls gets a turn
MAX_MESSAGE_BYTES = 64 * 2**20  # a larger one closes its connection instead of filling memory
KEEPALIVE_IDLE_SECONDS = 10
KEEPALIVE_APART_SECONDS = 5
KEEPALIVE_PROBES = 3
UNLIMITED = 0  # receive high-water mark: what the kernel cannot hold waits here, nothing is dropped
MARK_BYTES = 10  # array header, float header, publishing time: equal for copies, in time order

OnMessage = Callable[[int, bytes, float], None]
OnStatus = Callable[[TapStatus, float], None]
OnRefused = Callable[[str, list[bytes]], None]


class SequencedStream:
    """One publisher's messages in order. Hands them, its news and what it refuses to callbacks."""

    def __init__(
        self,
        gate: SequenceGate,
        endpoint: str,
        replay: str | None = None,
        *,
        topic: str = "",
        engine_binds: bool | None = None,
    ) -> None:
        self.gate = gate
        self.messages = 0
        self.last_received_seconds: float | None = None
        self._endpoint = live_endpoint(endpoint, engine_binds=engine_binds)
        self._replay_endpoint = None if replay is None else replay_endpoint(replay)
        self._topic = topic.encode()
        self._context: zmq.Context[Any] | None = None
        self._live: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()

    def open(self) -> None:
        """Open the live socket. Raises TapError where the address can never deliver."""
        if self._live is not None:
            return
        for endpoint in (self._endpoint, self._replay_endpoint):
            if endpoint is not None and not endpoint.we_bind and unresolvable(endpoint.address):
                raise TapError(_unresolved(endpoint.address))  # ZeroMQ would try for ever
        self._context = zmq.Context(io_threads=1)
        live = self._socket(zmq.SUB)
        self._live = live
        self._monitor = live.get_monitor_socket(CONNECTION_EVENTS)
        live.subscribe(self._topic)
        address = self._endpoint.address
        try:
            if self._endpoint.we_bind:
                live.bind(address)
            else:
                live.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise TapError(_opening_failed(address, self._endpoint.we_bind, error)) from error
        self._poller.register(live, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def close(self) -> None:
        """Close all sockets. Safe twice, and before `open`."""
        self._close_dealer()
        if self._live is not None:
            self._live.disable_monitor()
            self._live.close(linger=0)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        if self._context is not None:
            self._context.destroy(linger=0)
        self._poller = zmq.Poller()
        self._context = self._live = self._monitor = None

    def poll(
        self,
        budget_seconds: float,
        on_message: OnMessage,
        on_status: OnStatus,
        on_refused: OnRefused,
    ) -> int:
        """Wait at most the budget for something, then take what is there."""
        live = self._live
        if live is None:
            return 0
        deadline = time.monotonic() + budget_seconds
        taken = self._take_live(live, deadline, on_message, on_status, on_refused)
        if not taken:
            self._poller.poll(int(max(0.0, deadline - time.monotonic()) * 1_000))
            taken = self._take_live(live, deadline, on_message, on_status, on_refused)
        # Before the replies: those of an engine come after the news that the one before it left.
        self._take_connection_news()
        self._take_replies(deadline, on_message, on_status, on_refused)
        self.gate.tick(time.monotonic())
        self._perform(on_message, on_status)
        return taken

    def _take_live(
        self,
        live: zmq.Socket[bytes],
        deadline: float,
        on_message: OnMessage,
        on_status: OnStatus,
        on_refused: OnRefused,
    ) -> int:
        gate = self.gate
        accept = gate.live
        receive = live.recv_multipart
        clock = time.monotonic
        taken = 0
        now = None
        try:
            while taken < MAX_MESSAGES_PER_POLL:
                frames = receive(zmq.NOBLOCK)
                now = clock()
                taken += 1
                if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
                    on_refused(_refusal(frames), frames)
                else:
                    payload = frames[2]
                    sequence = int.from_bytes(frames[1])
                    if accept(sequence, payload, payload[:MARK_BYTES], now):
                        on_message(sequence, payload, now)
                    else:
                        self._perform(on_message, on_status)
                if now >= deadline:
                    break
        except zmq.Again:
            pass  # all taken
        if now is not None:
            self.messages += taken
            self.last_received_seconds = now
        return taken

    def _take_replies(
        self, deadline: float, on_message: OnMessage, on_status: OnStatus, on_refused: OnRefused
    ) -> None:
        for _ in range(MAX_MESSAGES_PER_POLL):
            dealer = self._dealer
            if dealer is None:
                return
            try:
                frames = dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            now = time.monotonic()
            if len(frames) < 2 or len(frames[-2]) != SEQUENCE_BYTES:
                on_refused(_refusal(frames), frames)
            elif frames[-2] == END_OF_REPLAY:
                self._close_dealer()
                self.gate.replay_ended(now)
            else:
                payload = frames[-1]
                mark = payload[:MARK_BYTES]
                self.gate.reply(int.from_bytes(frames[-2]), payload, mark, now)
            self._perform(on_message, on_status)
            if now >= deadline:
                return

    def _take_connection_news(self) -> None:
        """Learn that the publisher came or went; a socket reconnects without telling."""
        monitor = self._monitor
        while monitor is not None and monitor.poll(0):
            event = recv_monitor_message(monitor)["event"]
            now = time.monotonic()
            if event == zmq.EVENT_DISCONNECTED:
                self._close_dealer()
                self.gate.disconnected(now)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.gate.connected(now)

    def _perform(self, on_message: OnMessage, on_status: OnStatus) -> None:
        actions = self.gate.actions
        while actions:
            action = actions.popleft()
            if isinstance(action, Deliver):
                on_message(*action)
            elif isinstance(action, Ask):
                self._ask(action.start)
            else:
                on_status(action, time.monotonic())

    def _ask(self, start: int) -> None:
        if self._replay_endpoint is None:
            return
        self._close_dealer()
        dealer = self._socket(zmq.DEALER)
        dealer.connect(self._replay_endpoint.address)
        dealer.send_multipart([b"", start.to_bytes(SEQUENCE_BYTES)])
        self._poller.register(dealer, zmq.POLLIN)
        self._dealer = dealer

    def _close_dealer(self) -> None:
        if self._dealer is not None:
            self._poller.unregister(self._dealer)
            self._dealer.close(linger=0)
            self._dealer = None

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        assert self._context is not None
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, UNLIMITED)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.LINGER, 0)
        # A host that lost power says no goodbye; without probes its restart could go unnoticed.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_SECONDS)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_APART_SECONDS)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
        if "[" in self._endpoint.address:
            socket.setsockopt(zmq.IPV6, 1)
        return socket


def _refusal(frames: list[bytes]) -> str:
    if len(frames) != 3:
        return f"{len(frames)} frames instead of 3 (topic, sequence, payload): another engine?"
    return f"sequence of {len(frames[1])} bytes instead of {SEQUENCE_BYTES}: another engine?"


def _unresolved(address: str) -> str:
    return f"{address}: the host cannot be resolved; check its name, or give its number"


def _opening_failed(address: str, we_bind: bool, error: zmq.ZMQError) -> str:
    if not we_bind:
        return f"cannot connect to {address}: {error.strerror}; check the engine's endpoint setting"
    if unresolvable(address):
        return _unresolved(address)
    if error.errno == zmq.EADDRINUSE:
        return f"{address} is in use: another process or tap is bound there; give each rank its own"
    return (
        f"cannot bind {address}: {error.strerror}; vLLM connects to such an address, so it must be "
        "one of this machine's, or say that the engine binds it"
    )
