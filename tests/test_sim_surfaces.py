"""The simulated engine on real sockets: what a real sidecar makes of it, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from served import KVREADY, free_port, serving

from kvready.advisor.whatif.sim_engine.accounts import Accounts, Served
from kvready.advisor.whatif.sim_engine.clock import Clock, RealClock
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.faults import Faults, parse_fault
from kvready.advisor.whatif.sim_engine.flags import Flags
from kvready.advisor.whatif.sim_engine.kv_publisher import KvPublisher
from kvready.advisor.whatif.sim_engine.kv_wire import Removed, Stored, block_hash, encode, token_ids
from kvready.advisor.whatif.sim_engine.machine import vllm_like
from kvready.advisor.whatif.sim_engine.metrics_text import Identity, render
from kvready.advisor.whatif.sim_engine.mix import mix
from kvready.advisor.whatif.sim_engine.narrator import Sink
from kvready.advisor.whatif.sim_engine.surfaces import Addresses, Surfaces
from kvready.collectors.discover import discover
from kvready.collectors.errors import ServiceError, TapError
from kvready.collectors.hashing import content_keys
from kvready.collectors.http_get import get
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.metrics_page import read_page
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.otlp import OtlpTap
from kvready.collectors.records import (
    AnyRecord,
    BlocksRemoved,
    BlocksStored,
    RequestReported,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)
from kvready.collectors.vllm import KvEventDecoder

MACHINE = vllm_like("llama-3.1-8b", "h200", hbm_gib=4, host_gib=16, page_tokens=32)
VERSION = "0.32.0+sim"
WAIT_SECONDS = 20.0
NO_FAULTS = Faults()


class Kept:
    """A sink that keeps what a virtual engine tells, and counts it as the surfaces would."""

    def __init__(self) -> None:
        self.served: list[Served] = []
        self.accounts = Accounts(1_024, self.served.append)

    def scheduler(self, simulated_seconds: float, records: list[AnyRecord]) -> None:
        for record in records:
            self.accounts.take(record)

    def mover(self, simulated_seconds: float, record: AnyRecord) -> None:
        self.accounts.take(record)

    def cache(self, simulated_seconds: float, events: object) -> None:
        return None

    def restart(self) -> None:
        return None


def engine(requests: int, *faults: str, rate: float = 8.0) -> SimEngine:
    parsed = Faults(map(parse_fault, faults))
    return SimEngine(MACHINE, mix(rate, requests, 1), parsed, Flags(), 1)


# Bytes ------------------------------------------------------------------------------------------


def test_events_read_as_those_of_vllm() -> None:
    events = [Stored(Tier.HBM, (7, 8), 6), Removed(Tier.HBM, (7,)), Removed(Tier.HOST, (1, 2))]
    decoder = KvEventDecoder("e", with_content_keys=True)
    first = decoder.decode(0, encode([Stored(Tier.HBM, (6,), None)], 32, 5.0)).records
    decoded = decoder.decode(3, encode(events, 32, 6.0))
    assert not decoder.errors
    assert not decoder.unknown_events
    assert decoded.lost is None
    stored, removed, host = decoded.records
    assert isinstance(stored, BlocksStored)
    assert stored.block_hashes == (block_hash(7), block_hash(8))
    assert (stored.parent_hash, stored.block_tokens) == (block_hash(6), 32)
    assert (stored.sequence, stored.published_wall_seconds, stored.tier) == (3, 6.0, Tier.HBM)
    tokens = [token for block in (6, 7, 8) for token in token_ids(block, 32)]
    assert isinstance(first[0], BlocksStored)
    assert first[0].content_keys + stored.content_keys == content_keys(tokens, 32)
    assert isinstance(removed, BlocksRemoved)
    assert isinstance(host, BlocksRemoved)
    assert (host.tier, len(host.block_hashes)) == (Tier.HOST, 2)


def test_the_page_counts_what_happened() -> None:
    kept = Kept()
    sink: Sink = kept  # type: ignore[assignment]
    assert engine(120).run(Clock(0.0, 0.0, 1.0), sink)
    identity = Identity("SIMULATED m", 32, 1_024, 1.0e9)
    page = read_page(render(kept.accounts, identity).decode(), VERSION)
    reading = page.engines[0]
    assert (page.malformed, page.models) == (0, ("SIMULATED m",))
    assert reading.ttft_seconds is not None
    assert reading.ttft_seconds.count == len(kept.served) == 120
    seconds = sum(one.first_token_seconds - one.arrived_seconds for one in kept.served)
    assert reading.ttft_seconds.total == pytest.approx(seconds)
    tokens = sum(one.prompt_tokens for one in kept.served)
    hits = reading.hit_tokens[Tier.HBM], reading.hit_tokens[Tier.HOST]
    assert reading.prompt_tokens == tokens
    assert all(isinstance(one, float) and one > 0 for one in hits)
    assert reading.computed_tokens == tokens - sum(hits)  # type: ignore[arg-type]
    assert (reading.running, reading.waiting, reading.deferred) == (0, 0, 0)
    assert reading.fetching is not None
    assert sum(reading.fetching.values()) == 0
    assert isinstance(reading.load_bytes, float)
    assert reading.load_bytes % (32 * 131_072) == 0
    assert reading.cache is not None
    assert (reading.cache.block_tokens, reading.cache.hbm_blocks) == (32, 1_025)


# Sockets ----------------------------------------------------------------------------------------


def test_a_replay_holds_the_ring_and_no_more(tmp_path: Path) -> None:
    live, replay = f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"
    publisher = KvPublisher(live, replay, ring=50)
    records: list[AnyRecord] = []
    tap = KvEventTap("engine", live, replay)

    def sequences() -> list[int]:
        return [record.sequence for record in records if isinstance(record, BlocksStored)]

    try:
        for number in range(80):
            publisher.publish(encode([Stored(Tier.HBM, (number + 1,))], 32, 1.0 + number), True)
        deadline = time.monotonic() + WAIT_SECONDS
        while publisher.queued and time.monotonic() < deadline:
            time.sleep(0.001)  # a replay answered earlier would hold the beginning still
        tap.start(lambda record, at, name: records.append(record))
        while not publisher.replays and time.monotonic() < deadline:
            number = publisher.sequence + 1
            publisher.publish(encode([Stored(Tier.HBM, (number + 1,))], 32, 1.0 + number))
            tap.poll(0.05)
        while len(sequences()) < 50 and time.monotonic() < deadline:
            tap.poll(0.05)
        # All that the ring held then, and what came live; what it had lost before is lost.
        seen = sequences()
        assert seen == list(range(seen[0], publisher.sequence + 1))
        assert 80 - 50 <= seen[0] <= publisher.sequence - 49
    finally:
        tap.stop()
        publisher.close()


@contextmanager
def surfaces(
    folder: Path, simulated: SimEngine, speed: float, spans: str = "", faults: Faults = NO_FAULTS
) -> Iterator[Surfaces]:
    """The engine on its sockets, running in a thread."""
    stopping = threading.Event()
    clock = RealClock(speed, stopping)
    made = Surfaces(
        simulated.described, Addresses(folder, "127.0.0.1", 0, spans or None), clock, faults
    )
    thread = threading.Thread(target=simulated.run, args=(clock, made))
    thread.start()
    try:
        yield made
    finally:
        stopping.set()
        thread.join(WAIT_SECONDS)
        made.close()
        assert not thread.is_alive()


def test_spans_tell_of_every_request_that_ended(tmp_path: Path) -> None:
    port = free_port()
    tap = OtlpTap("spans", port, None, None, "127.0.0.1")
    reports: list[RequestReported] = []

    def take(record: AnyRecord, at: float, name: str) -> None:
        if isinstance(record, RequestReported):
            reports.append(record)

    tap.start(take)
    try:
        with surfaces(tmp_path, engine(60), 20.0, f"http://127.0.0.1:{port}") as made:
            deadline = time.monotonic() + WAIT_SECONDS
            while made.accounts.counters["success_length"] < 60 and time.monotonic() < deadline:
                tap.poll(0.05)
        while len(reports) < 60 and time.monotonic() < deadline:
            tap.poll(0.05)
    finally:
        tap.stop()
    assert len({report.request_id for report in reports}) == 60
    for report in reports:
        assert report.queue_seconds is not None
        assert report.prefill_seconds is not None
        assert report.ttft_seconds == pytest.approx(report.queue_seconds + report.prefill_seconds)


def test_a_gap_is_healed_and_a_silence_is_told_with_what_it_cost(tmp_path: Path) -> None:
    faults = Faults([parse_fault("gap@3:2"), parse_fault("silent@4:2")])
    records: list[AnyRecord] = []
    with surfaces(tmp_path, engine(100), 10.0, faults=faults) as made:
        kv = KvEventTap("engine", made.addresses.kv_events, made.addresses.replay)
        observer = ObserverTap("observer", tmp_path)
        for tap in (kv, observer):
            tap.start(lambda record, at, name: records.append(record))
        deadline = time.monotonic() + WAIT_SECONDS
        while made.accounts.counters["success_length"] < 100 and time.monotonic() < deadline:
            kv.poll(0.02)
            observer.poll(0.02)
        while kv.coverage().state is not TapState.LIVE and time.monotonic() < deadline:
            kv.poll(0.05)
        for tap in (kv, observer):
            tap.stop()
    told = {(one.tap, one.event): one for one in records if isinstance(one, TapStatus)}
    assert ("engine", TapEvent.GAP) in told
    assert ("engine", TapEvent.HEALED) in told
    assert told["observer-scheduler-0", TapEvent.DROPPED].count > 50
    seen = {one.sequence for one in records if isinstance(one, BlocksStored | BlocksRemoved)}
    assert seen == set(range(max(seen) + 1))


def test_wrong_counters_count_loads_twice_and_nothing_else() -> None:
    pages = []
    for miscounts in (False, True):
        kept = Kept()
        kept.accounts.miscounts_loads = miscounts
        sink: Sink = kept  # type: ignore[assignment]
        engine(60).run(Clock(0.0, 0.0, 1.0), sink)
        text = render(kept.accounts, Identity("m", 32, 1_024, 1.0e9)).decode()
        pages.append(read_page(text, VERSION).engines[0])
    right, wrong = pages
    assert wrong.load_bytes == 2 * right.load_bytes  # type: ignore[operator]
    assert msgspec.structs.replace(wrong, load_bytes=right.load_bytes) == right


def test_it_is_discovered_as_an_engine_with_all_its_taps(tmp_path: Path) -> None:
    with surfaces(tmp_path, engine(30), 20.0) as made:
        found = discover(f"http://127.0.0.1:{made.port}")
        assert get(f"http://127.0.0.1:{made.port}", "/nothing").status == 404
    assert not found.problem
    assert found.version == VERSION
    assert found.models == (f"SIMULATED {MACHINE.scenario.shape.name}",)
    assert found.is_healthy
    assert found.scheduler_observed
    assert [source.problem for source in found.usable_sources] == [""]


# Processes --------------------------------------------------------------------------------------


@contextmanager
def simulating(folder: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`kvready sim-engine` as a process, and the URL that it says."""
    command = [*KVREADY, "sim-engine", "--port", 0, "--folder", folder, "--hbm-gib", 4, *options]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while "attach with" not in said:
            said = process.stderr.readline()
            assert said, process.wait()
        yield process, said.split()[-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_sidecar_attached_to_it_forecasts_and_calls_all_of_it_simulated(tmp_path: Path) -> None:
    port = free_port()
    with (
        simulating(tmp_path, "--speed", 10, "--rate", 8) as (process, url),
        serving("attach", url, port=port) as served,
    ):

        def scored() -> int:
            pairs = served.get("/v1/pairs?target=ttft&limit=1000").json()
            return len([pair for pair in pairs if pair["state"] == "paired"])

        served.wait_for(lambda: scored() >= 30)
        status = served.get("/v1/status").json()
        assert status["evidence"] == "simulated"
        assert status["engine"]["engine"] == "sim"
        assert all(tap["state"] == "live" for tap in status["taps"])
        assert all(tap["decode_errors"] == 0 for tap in status["taps"])
        assert "SIMULATED" in served.get("/").text
        assert served.get("/v1/report").json()["evidence"] == "simulated"
        metrics = served.get("/metrics").text
        assert 'kvready_evidence_info{evidence="simulated"} 1' in metrics
        assert 'engine="sim"' in metrics
        served.end(signal.SIGKILL)  # harmless to the engine
        assert process.poll() is None
        assert get(url, "/health").ok
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    # As a real engine's: the observer leaves its sockets to the next one.
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"observer"}


def test_an_engine_that_was_killed_is_followed_by_another_one_in_its_place(tmp_path: Path) -> None:
    for _ in range(2):
        with simulating(tmp_path, "--speed", 20) as (process, url):
            assert get(url, "/health").ok
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_SECONDS)


def test_its_own_folder_is_closed_to_others_and_gone_with_it(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*KVREADY, "sim-engine", "--port", "0", "--speed", "20"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    while "attach" not in process.stderr.readline():
        assert process.poll() is None
    (made,) = tmp_path.iterdir()
    assert made.stat().st_mode & 0o077 == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_second_engine_in_the_same_place_is_refused_with_the_fix(tmp_path: Path) -> None:
    with surfaces(tmp_path, engine(30), 20.0) as made:
        taken = Addresses(tmp_path, "127.0.0.1", 0)
        clock, described = Clock(0.0, 0.0, 1.0), engine(1).described
        with pytest.raises(TapError, match="another folder"):
            Surfaces(described, taken, clock, Faults())
        taken = Addresses(tmp_path / "other", "127.0.0.1", made.port)
        with pytest.raises(ServiceError, match="--port"):
            Surfaces(described, taken, clock, Faults())
        assert get(f"http://127.0.0.1:{made.port}", "/health").ok


def test_statuses_of_a_restart_reach_a_tap(tmp_path: Path) -> None:
    records: list[AnyRecord] = []
    simulated = engine(400, "restart@8")
    with surfaces(tmp_path, simulated, 10.0) as made:
        tap = KvEventTap("engine", made.addresses.kv_events, made.addresses.replay)
        tap.start(lambda record, at, name: records.append(record))
        deadline = time.monotonic() + WAIT_SECONDS

        def epochs() -> list[TapStatus]:
            return [
                one for one in records if isinstance(one, TapStatus) and one.event is TapEvent.EPOCH
            ]

        while not epochs() and time.monotonic() < deadline:
            tap.poll(0.05)
        tap.stop()
    assert epochs()
    assert msgspec.structs.asdict(epochs()[0])["tap"] == "engine"
