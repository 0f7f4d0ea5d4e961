"""All of a simulated engine's surfaces on real sockets, one incarnation after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvready.advisor.whatif.sim_engine.accounts import Accounts, Served
from kvready.advisor.whatif.sim_engine.clock import Clock
from kvready.advisor.whatif.sim_engine.faults import FaultName, Faults
from kvready.advisor.whatif.sim_engine.kv_publisher import KvPublisher
from kvready.advisor.whatif.sim_engine.kv_wire import CacheEvent, encode
from kvready.advisor.whatif.sim_engine.metrics_text import Identity, render
from kvready.advisor.whatif.sim_engine.pages import TEXT, Page, PageServer, json_page
from kvready.advisor.whatif.sim_engine.spans import SpanExporter
from kvready.collectors.engine.publisher import RecordPublisher
from kvready.collectors.errors import ServiceError
from kvready.collectors.records import AnyRecord, EngineDescribed

RANK = 0
MOVER, SCHEDULER = "mover", "scheduler"


class Addresses(msgspec.Struct, frozen=True):
    """Where the surfaces are. The folder holds the observer's sockets and the KV events'."""

    folder: Path
    host: str
    port: int
    spans: str | None = None

    @property
    def kv_events(self) -> str:
        """The PUB socket."""
        return f"ipc://{self.folder}/kv.sock"

    @property
    def replay(self) -> str:
        """The ROUTER socket."""
        return f"ipc://{self.folder}/replay.sock"


class Surfaces:
    """A sink on real sockets. `restart` makes another incarnation behind the same addresses."""

    def __init__(
        self, described: EngineDescribed, addresses: Addresses, clock: Clock, faults: Faults
    ) -> None:
        self.described = described
        self.addresses = addresses
        self._clock = clock
        self._faults = faults
        addresses.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        offset = clock.origin_wall_seconds - clock.origin_seconds
        self.spans = SpanExporter(addresses.spans, offset) if addresses.spans else None
        self._open()
        try:
            self._pages = PageServer(addresses.host, addresses.port, self._all_pages())
        except ServiceError:
            self._close()
            raise
        self.port = self._pages.port

    def scheduler(self, simulated_seconds: float, records: Sequence[AnyRecord]) -> None:
        """What the scheduler's loop tells at one go."""
        self._count(simulated_seconds, records)
        self._publish(self._scheduler, simulated_seconds, records)

    def mover(self, simulated_seconds: float, record: AnyRecord) -> None:
        """What the mover tells."""
        self._count(simulated_seconds, (record,))
        self._publish(self._mover, simulated_seconds, (record,))

    def cache(self, simulated_seconds: float, events: Sequence[CacheEvent]) -> int | None:
        """One message of KV events; the number it got."""
        payload = encode(events, self.described.block_tokens, self._clock.wall(simulated_seconds))
        lost = self._faults.active(FaultName.GAP, simulated_seconds) is not None
        return self._kv.publish(payload, lost)

    def restart(self) -> None:
        """End this incarnation and begin another one: numbers from 0, counters from nothing."""
        self._close()
        self._open()

    def close(self) -> None:
        """Close all of it. Safe twice."""
        self._pages.close()
        self._close()
        if self.spans is not None:
            self.spans.close()

    def _open(self) -> None:
        on_served = self._served if self.spans is not None else None
        engine, folder = self.described, self.addresses.folder
        self.accounts = Accounts(engine.hbm_blocks, on_served)
        self._identity = Identity(engine.model, engine.block_tokens, engine.hbm_blocks, time.time())
        self._kv = KvPublisher(self.addresses.kv_events, self.addresses.replay)
        self._scheduler = RecordPublisher(folder, SCHEDULER, RANK)
        self._mover = RecordPublisher(folder, MOVER, RANK)
        for publisher in (self._scheduler, self._mover):
            publisher.open()

    def _close(self) -> None:
        self._scheduler.close()
        self._mover.close()
        self._kv.close()

    def _publish(
        self, publisher: RecordPublisher, simulated_seconds: float, records: Sequence[AnyRecord]
    ) -> None:
        if self._faults.active(FaultName.SILENT, simulated_seconds) is not None:
            publisher.lose(len(records))
        else:
            publisher.publish(records)

    def _count(self, simulated_seconds: float, records: Sequence[AnyRecord]) -> None:
        miscounts = self._faults.active(FaultName.COUNTERS, simulated_seconds) is not None
        self.accounts.miscounts_loads = miscounts
        for record in records:
            self.accounts.take(record)

    def _served(self, served: Served) -> None:
        if self.spans is not None:
            self.spans.add(served)

    def _all_pages(self) -> dict[str, tuple[str, Page]]:
        engine = self.described
        return {
            "/metrics": (TEXT, self._metrics),
            "/health": (TEXT, lambda: b""),
            "/version": json_page(lambda: {"version": engine.engine_version}),
            "/v1/models": json_page(lambda: {"data": [{"id": engine.model}]}),
            "/kv_event_sources": json_page(self._sources),
        }

    def _metrics(self) -> bytes:
        return render(self.accounts, self._identity)

    def _sources(self) -> dict[str, dict[str, object]]:
        return {
            str(RANK): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": self.addresses.kv_events,
                "replay_endpoint": self.addresses.replay,
                "topic": "",
            }
        }
