"""A KV-event tap in a hostile world: all between an engine's bytes and the inventory is real.

Sockets, clocks and the engine are made here, so that any loss can be told by a seed: the real
`SequencedStream` reads from lists of frames, time passes when the world says so, and the engine's
own account of its cache is the oracle.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import msgspec
import pytest
import zmq
from streams import SmallEngine, Truth

from kvready.advisor.inventory import Inventory, Knowledge
from kvready.advisor.service.intake import Intake, Shed
from kvready.collectors import kv_events, zmq_stream
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.recorder import Recorder
from kvready.collectors.records import AnyRecord, Ingested, TapState, Tier
from kvready.collectors.sequence import MAX_ROUNDS_PER_HOUR
from kvready.collectors.zmq_stream import SequencedStream

TAP = "engine"
MEDIUM_OF_TIER = {Tier.HBM: "GPU", Tier.HOST: "CPU"}
END = b"\xff" * 8
ENCODINGS = ("maps", "arrays", "bytes")
STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
STORED += ("lora_name", "extra_keys", "group_idx")  # as 0.20 sent them
POSITIONS = {
    "BlockStored": STORED,
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


class FakeTime:
    """The monotonic clock, under the world's control."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class FakeSocket:
    """What arrived, message by message; nothing is ever waited for."""

    def __init__(self) -> None:
        self.frames: deque[list[bytes]] = deque()

    def recv_multipart(self, flags: int) -> list[bytes]:
        assert flags == zmq.NOBLOCK
        if not self.frames:
            raise zmq.Again
        return self.frames.popleft()

    def close(self, linger: int) -> None:
        self.frames.clear()


class FakePoller:
    """Time does not pass while waiting."""

    def poll(self, milliseconds: int) -> list[Any]:
        return []

    def unregister(self, socket: object) -> None:
        """Nothing was registered."""


class FakeStream(SequencedStream):
    """The real reading of frames, off lists instead of sockets."""

    def rehearse(self, world: World) -> None:
        self._world = world
        self._live = world.live  # type: ignore[assignment]
        self._poller = FakePoller()  # type: ignore[assignment]

    def _take_connection_news(self) -> None:
        while self._world.news:
            if self._world.news.popleft():
                self.gate.connected(self._world.time.now)
            else:
                self._close_dealer()
                self.gate.disconnected(self._world.time.now)

    def _ask(self, start: int) -> None:
        if self._replay_endpoint is None:
            return
        self._close_dealer()
        self._dealer = self._world.asked(start)  # type: ignore[assignment]

    def close(self) -> None:
        """There is nothing to close."""


class Incarnation:
    """One engine process: its truth, and its messages in the encoding of its version."""

    def __init__(self, seed: int, wall_seconds: float, encoding: str) -> None:
        self.engine = SmallEngine(seed, wall_seconds)
        self.encoding = encoding
        self.messages: list[bytes] = []

    @property
    def truths(self) -> list[Truth]:
        return self.engine.truths

    def publish(self) -> tuple[int, bytes]:
        self.messages.append(self._encoded(self.engine.step()))
        return len(self.messages) - 1, self.messages[-1]

    def _encoded(self, payload: bytes) -> bytes:
        wall, events, rank = msgspec.msgpack.decode(payload)
        if self.encoding == "bytes":
            for event in events:
                if "block_hashes" in event:
                    event["block_hashes"] = [wide(one) for one in event["block_hashes"]]
                if event.get("parent_block_hash") is not None:
                    event["parent_block_hash"] = wide(event["parent_block_hash"])
        if self.encoding == "arrays":
            events = [
                [event["type"], *(event.get(name) for name in POSITIONS[event["type"]])]
                for event in events
            ]
        return msgspec.msgpack.encode([wall, events, rank])


def wide(block_hash: int) -> bytes:
    return b"\x5a" * 24 + block_hash.to_bytes(8, "big")


class World:
    """An engine, a network and a sidecar that reads it, through time."""

    def __init__(
        self,
        seed: int,
        *,
        ring: int | None,
        queue_limit: int,
        past: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.random = Random(seed)
        self.time = FakeTime()
        monkeypatch.setattr(zmq_stream, "time", self.time)
        monkeypatch.setattr(kv_events, "time", self.time)
        self.live = FakeSocket()
        self.dealer: FakeSocket | None = None
        self.news: deque[bool] = deque()
        self.ring = ring  # None: there is no replay endpoint
        self.leaky = False
        self.excuses: Counter[str] = Counter()  # why something may stay unknown
        self.asked_times = 0
        self.incarnations: list[Incarnation] = []
        self.told: tuple[int, int] | None = None  # incarnation and number of the last message read
        self._by_wall: dict[tuple[int, float], int] = {}
        self.inventory = Inventory()
        self.intake = Intake([TAP], queue_limit)
        self.recorder = Recorder(self._ingest, taps={TAP: ""})
        replay = None if ring is None else "ipc:///replay"
        self.tap = KvEventTap(TAP, "ipc:///live", replay)
        stream = FakeStream(self.tap.gate, "ipc:///live", replay)
        stream.rehearse(self)
        self.tap._stream = stream
        self.tap._sink = self._sink
        self._boot(1_700_000_000.0)
        for _ in range(past):
            self.publish()
        self.news.append(True)
        self.read()

    # The engine

    @property
    def engine(self) -> Incarnation:
        return self.incarnations[-1]

    def publish(self) -> tuple[int, bytes]:
        """The engine's next message, whatever becomes of it."""
        sequence, payload = self.engine.publish()
        wall = msgspec.msgpack.decode(payload)[0]
        self._by_wall[sequence, wall] = len(self.incarnations) - 1
        return sequence, payload

    def restart(self) -> None:
        """The engine dies; another comes up under the same address, perhaps by another clock."""
        self.news.append(False)
        self.read()
        self.time.now += 30
        step = self.random.choice([30.0, 30.0, 30.0, 5_000.0, -5_000.0])
        self._boot(self.engine.engine.wall_seconds + step)
        for _ in range(self.random.choice([0, 0, 1, 5])):
            self.publish()
        self.news.append(True)
        self.read()

    def cut(self) -> None:
        """The connection breaks and comes back; it is the same engine, which went on meanwhile."""
        self.news.append(False)
        self.read()
        for _ in range(self.random.choice([0, 0, 1, 3])):
            self.publish()
        self.wait(self.random.choice([0.0, 3.0]))
        self.news.append(True)
        self.read()

    def asked(self, start: int) -> FakeSocket:
        """vLLM's ROUTER: what its ring holds.

        When leaky, its queue overflows behind the first reply, and may swallow the end marker.
        """
        self.asked_times += 1
        assert self.ring is not None
        dealer = self.dealer = FakeSocket()
        messages = self.engine.messages
        first = max(start, len(messages) - self.ring)
        if first > start:  # not even the message that would show it is the same engine
            self.excuses["the ring had passed"] += 1
        with_topic = self.random.random() < 0.5
        topic = [b""] if with_topic else []
        for sequence in range(first, len(messages)):
            if sequence == first or not (self.leaky and self.random.random() < 0.3):
                number = sequence.to_bytes(8, "big")
                dealer.frames.append([b"", *topic, number, messages[sequence]])
            if self.leaky and self.random.random() < 0.05:
                dealer.frames.append([b"", b"noise"])
        if not (self.leaky and self.random.random() < 0.5):
            dealer.frames.append([b"", *topic, END, b""])
        return dealer

    # The network

    def arrive(self, message: tuple[int, bytes]) -> None:
        sequence, payload = message
        self.live.frames.append([b"kv", sequence.to_bytes(8, "big"), payload])

    def spoil(self, message: tuple[int, bytes]) -> None:
        """In a message's place something arrives that cannot be read."""
        sequence, payload = message
        wall = msgspec.msgpack.decode(payload)[0]
        spoilt: list[bytes] = [
            payload[: self.random.randint(0, len(payload) - 1)],
            self.random.randbytes(self.random.randint(1, 40)),
            msgspec.msgpack.encode([wall, [["BlockStored", [-7], None, [1], 1, None, "GPU"]], 0]),
            msgspec.msgpack.encode([wall, [{"type": "BlockRemoved", "block_hashes": "all"}], 0]),
        ]
        self.arrive((sequence, self.random.choice(spoilt)))
        self.excuses["a message could not be read"] += 1

    def noise(self) -> None:
        """Frames that are no message at all: another engine on our address."""
        self.live.frames.append(
            self.random.choice(
                [[b"kv"], [b"kv", b"\0" * 7, b"x"], [b""] * 5, [self.random.randbytes(9)] * 2]
            )
        )

    # The sidecar

    def read(self) -> None:
        """The tap reads what is there."""
        self.tap.poll(1.0)
        while self.live.frames or self.news or self.tap.gate.actions or self._replies():
            self.tap.poll(1.0)

    def wait(self, seconds: float) -> None:
        """Time passes in the tap's rhythm."""
        for _ in range(int(seconds / 0.5)):
            self.time.now += 0.5
            self.read()

    def ingest(self) -> None:
        """The other thread gets its turn; then nothing may be called resident that is gone."""
        for record, received_seconds, tap in self.intake.drain(1_000_000, self.time.now):
            if isinstance(record, Shed):
                self.excuses["the queue was full"] += 1
                self.recorder.dropped(tap, record.records, received_seconds)
            else:
                self.recorder.take(record, received_seconds, tap)
        self.check_nothing_invented()

    def check_nothing_invented(self) -> None:
        """No block in a tier, or twice in it, that the engine did not have when it last spoke."""
        truth: Truth = {"GPU": Counter(), "CPU": Counter()}
        if self.told is not None:
            incarnation, sequence = self.told
            truth = self.incarnations[incarnation].truths[sequence]
        for tier, medium in MEDIUM_OF_TIER.items():
            for block_hash, count in self.inventory.blocks(tier).items():
                assert count <= truth[medium][block_hash], (tier, block_hash, self.told)

    def finish(self) -> None:
        """A quiet hour's start, an honest replay, and one more message; then the verdict."""
        self.leaky = False
        self.read()
        self.ingest()
        self.wait(30)
        self.arrive(self.publish())
        self.read()
        self.wait(30)
        self.ingest()
        whole = self.tap.gate.state is TapState.LIVE
        known = self.inventory.state(TAP)
        if known is not Knowledge.LIVE:
            assert self.excused(), "degraded without a cause"
            return
        assert whole
        truth = self.engine.truths[-1]
        for tier, medium in MEDIUM_OF_TIER.items():
            assert self.inventory.blocks(tier) == truth[medium]

    def excused(self) -> bool:
        """Whether anything happened that no replay could make good."""
        unreplayable = self.ring is None
        asked_out = self.asked_times >= MAX_ROUNDS_PER_HOUR
        return bool(self.excuses) or unreplayable or asked_out

    def _replies(self) -> bool:
        dealer = self.dealer
        return dealer is not None and bool(dealer.frames)

    def _boot(self, wall_seconds: float) -> None:
        encoding = self.random.choice(ENCODINGS)
        self.incarnations.append(Incarnation(self.random.getrandbits(32), wall_seconds, encoding))

    def _sink(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        wall = getattr(record, "published_wall_seconds", None)
        if wall is not None:
            sequence: int = record.sequence  # type: ignore[union-attr]
            incarnation = self._by_wall.get((sequence, wall))
            if incarnation is not None:
                self.told = (incarnation, sequence)
        self.intake.put(record, received_seconds, tap)

    def _ingest(self, item: Ingested) -> None:
        self.inventory.apply(item.record)
