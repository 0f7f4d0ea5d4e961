"""A simulated engine into a recording, on a clock that needs no waiting.

The records are those that a sidecar beside it would have taken: KV events go through their wire
form and the tap's own decoder, the recorder numbers them and writes its ticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvready.advisor.outside import OBSERVER, SCHEDULER_STREAM
from kvready.advisor.version import VERSION
from kvready.advisor.whatif.sim_engine.clock import Clock
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.kv_wire import CacheEvent, encode
from kvready.collectors.recorder import TICK_SECONDS, Recorder
from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter
from kvready.collectors.records import AnyRecord, Ingested, TapEvent, TapState, TapStatus
from kvready.collectors.vllm import KvEventDecoder

DELIVERY_SECONDS = 0.4e-3  # from a record's making to its ingestion: sockets, threads
PUBLISHER = "engine"
ORIGIN_SECONDS = 1_000.0  # of the virtual clock: nothing of this host is in a recording
ORIGIN_WALL_SECONDS = 1.7e9
STREAMS = (PUBLISHER, f"{SCHEDULER_STREAM}-0", "observer-mover-0")


class RecordedSink:
    """A sink that a recorder takes from. Its clock is virtual: real seconds are simulated ones."""

    def __init__(self, recorder: Recorder, clock: Clock, block_tokens: int) -> None:
        self._recorder = recorder
        self._clock = clock
        self._block_tokens = block_tokens
        self._decoder = KvEventDecoder(PUBLISHER)
        self._sequence = -1
        self._epoch = 0
        self._received_seconds = clock.origin_seconds
        self._ticked_seconds = clock.origin_seconds
        self._tell_taps(TapEvent.CONNECTED)

    def scheduler(self, simulated_seconds: float, records: Sequence[AnyRecord]) -> None:
        """What the scheduler's loop tells at one go."""
        received = self._received(simulated_seconds)
        for record in records:
            self._recorder.take(record, received, OBSERVER)

    def mover(self, simulated_seconds: float, record: AnyRecord) -> None:
        """What the mover tells."""
        self._recorder.take(record, self._received(simulated_seconds), OBSERVER)

    def cache(self, simulated_seconds: float, events: Sequence[CacheEvent]) -> int | None:
        """One message of KV events."""
        self._sequence += 1
        payload = encode(events, self._block_tokens, self._clock.wall(simulated_seconds))
        received = self._received(simulated_seconds)
        for record in self._decoder.decode(self._sequence, payload).records:
            self._recorder.take(record, received, PUBLISHER)
        return self._sequence

    def restart(self) -> None:
        """Another incarnation follows: every tap says so."""
        self._sequence = -1
        self._epoch += 1
        self._decoder.forget_chains()
        self._tell_taps(TapEvent.EPOCH)

    def _tell_taps(self, event: TapEvent) -> None:
        for stream in STREAMS:
            tap = PUBLISHER if stream == PUBLISHER else OBSERVER
            status = TapStatus(stream, 0, event, TapState.LIVE, self._epoch)
            self._recorder.take(status, self._received_seconds, tap)

    def _received(self, simulated_seconds: float) -> float:
        """When that is ingested; ticks up to then go before it."""
        received = self._clock.monotonic(simulated_seconds) + DELIVERY_SECONDS
        while self._ticked_seconds + TICK_SECONDS <= received:
            self._ticked_seconds += TICK_SECONDS
            wall = self._ticked_seconds - self._clock.origin_seconds
            self._recorder.advance(self._ticked_seconds, self._clock.origin_wall_seconds + wall)
        self._received_seconds = received
        return received


def write(path: Path, engine: SimEngine, workload: str, seed: int) -> str:
    """Run an engine into a new recording; returns what it holds, in words."""
    header = RecordingHeader(
        provenance=Provenance.SIMULATED,
        created_wall_seconds=ORIGIN_WALL_SECONDS,
        kvready_version=VERSION,
        conditions={"workload": workload, "seed": str(seed)},
    )
    clock = Clock(ORIGIN_SECONDS, ORIGIN_WALL_SECONDS, speed=1.0)
    with RecordingWriter(path, header) as writer:
        recorder = Recorder(_ignore, writer, started_seconds=ORIGIN_SECONDS)
        engine.run(clock, RecordedSink(recorder, clock, engine.described.block_tokens))
        recorder.close()
    return (
        f"{path}: {recorder.recording.records:,} records of {engine.now:,.0f} simulated seconds, "
        f"{engine.requests:,} requests"
    )


def _ignore(item: Ingested) -> None:
    """Nobody listens: the recording is all."""
