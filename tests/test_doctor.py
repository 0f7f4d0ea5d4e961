"""Each finding where its cause is there, and none on an engine that is well; over real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from engine_pages import COPIES, OFFLOAD, TRAFFIC, EngineHttp, grown, kv_source, set_to, with_ranks
from observer_publisher import ObserverPublisher
from publisher import Publisher

from kvready.advisor.diagnosis import Diagnosis, Evidence, Finding, TapEvidence
from kvready.advisor.doctor import diagnose
from kvready.advisor.engine_hazards import ENGINE_HAZARDS
from kvready.collectors.collector import Coverage, Level, Stability
from kvready.collectors.metrics_page import read_page
from kvready.collectors.rank_sources import rank_source
from kvready.collectors.records import TapEvent, TapState, TapStatus, Tier
from kvready.collectors.surfaces import Surfaces

BUSY = grown(OFFLOAD, TRAFFIC | COPIES)
SECONDS = 10.0
OBSERVER = ("observer-scheduler-0.sock",)


def surfaces(**more) -> Surfaces:
    known = {
        "url": "http://e", "problem": "", "engine": "vllm", "version": "0.32.0",
        "models": ("tiny",), "is_healthy": True, "page": read_page(OFFLOAD, "0.32.0"),
        "page_problem": "", "tells_sources": True,
        "sources": (rank_source(0, "ipc:///run/kv.sock", "ipc:///run/replay.sock"),),
        "observer_dir": "/run", "observer_sockets": OBSERVER,
    } | more  # fmt: skip
    return Surfaces(**known)


def tap(name: str = "kv-events", *, rank: int = 0, **more) -> TapEvidence:
    """A tap that is well."""
    coverage = {
        "tap": name, "level": Level.KV_EVENTS, "state": TapState.LIVE, "stability": Stability.BETA,
        "records": 9, "messages": 9, "gaps": 0, "decode_errors": 0, "dropped": 0,
        "last_received_seconds": 1.0,
    }  # fmt: skip
    changed = {key: more.pop(key) for key in list(more) if key in coverage}
    given = {"seen": {Tier.HBM: 5, Tier.HOST: 5}, "coverage": Coverage(**coverage | changed)}
    return TapEvidence(tap=name, rank=rank, **given | more)


def judged(
    before: str = OFFLOAD,
    after: str = BUSY,
    kv: tuple[TapEvidence, ...] = (tap(),),
    observers: tuple[TapEvidence, ...] = (tap("observer"),),
    version: str | None = "0.32.0",
    wanted: bool = False,
    **more,
) -> Diagnosis:
    """What follows from such evidence; without changes, from an engine that is well."""
    return diagnose(
        Evidence(
            surfaces=surfaces(version=version, **more),
            seconds=SECONDS,
            before=read_page(before, version),
            after=read_page(after, version),
            kv_taps=kv,
            observer_taps=observers,
            observer_wanted=wanted,
        )
    )


def ids(found: Diagnosis) -> set[str]:
    return {finding.id for finding in found.findings}


def status(event: TapEvent, first: int | None = None, count: int = 0, detail: str = ""):
    return TapStatus("kv-events", 0, event, TapState.DEGRADED, 0, first, first, count, detail)


def test_an_engine_that_is_well_has_no_findings() -> None:
    found = judged()
    assert found.findings == ()
    assert found.busy
    assert found.level is Level.OBSERVER
    assert found.next_level is None
    assert {note.id for note in found.notes} >= {"native-dedup", "hazard-publisher-queue"}


def test_an_idle_engine_is_not_ill_and_its_taps_are_not_called_silent() -> None:
    quiet = (tap(messages=0, seen={}),)
    found = judged(after=OFFLOAD, kv=quiet, observers=(tap("observer", messages=0),))
    assert found.findings == ()
    assert not found.busy


def test_an_observer_that_has_sent_nothing_yet_is_missed_only_where_its_engine_works() -> None:
    waiting = (tap("observer", state=TapState.CLOSED, messages=0, seen={}),)
    assert judged(after=OFFLOAD, observers=waiting).findings == ()
    assert ids(judged(observers=waiting)) == {"tap-closed"}


def test_the_coverage_matrix_has_a_row_for_each_tap_and_rank() -> None:
    found = judged(with_ranks(OFFLOAD, 2), with_ranks(BUSY, 2), (tap(), tap(rank=1)))
    rows = {(row.tap, row.rank): row for row in found.coverage}
    assert set(rows) == {("metrics", 0), ("metrics", 1), ("kv-events", 0), ("kv-events", 1),
                         ("observer", 0)}  # fmt: skip
    assert rows["kv-events", 1].tiers == {
        Tier.HBM: "5", Tier.HOST: "5", Tier.DISK: "nothing", Tier.REMOTE: "nothing"
    }  # fmt: skip
    assert rows["metrics", 0].tiers[Tier.HOST] == "13,928 tokens"


def test_silence_counts_only_on_the_rank_that_worked() -> None:
    page = with_ranks(OFFLOAD, 2)
    worked = "\n".join(BUSY.replace('engine="0"', 'engine="1"') if n else OFFLOAD for n in range(2))
    sources = tuple(rank_source(rank, f"tcp://h:{5000 + rank}", None) for rank in range(2))
    found = judged(page, worked, (tap(messages=0), tap(rank=1, messages=0)), sources=sources)
    silent = [one for one in found.findings if one.id == "silent-tap"]
    assert [one.what for one in silent] == ["kv-events of rank 1 is silent while the engine works"]


@pytest.mark.parametrize(
    ("expected", "evidence"),
    [
        ("silent-tap", {"kv": (tap(messages=0, seen={}),)}),
        ("silent-tap", {"observers": (tap("observer", messages=0),)}),
        ("missing-tier", {"kv": (tap(seen={Tier.HBM: 5}),)}),
        ("placeholder-events", {"kv": (tap(placeholders={Tier.HOST: 3}),)}),
        ("gaps", {"kv": (tap(news=(status(TapEvent.GAP, 7, 2),)),)}),
        ("gaps", {"kv": (tap(news=(status(TapEvent.DROPPED, 7, 2, "gone"),)),)}),
        ("unreadable-messages", {"kv": (tap(decode_errors=3),)}),
        ("tap-closed", {"kv": (tap(state=TapState.CLOSED, messages=0),)}),
        ("tap-cannot-open", {"kv": (tap(coverage=None, problem="in use"),)}),
        ("prompts-on-network", {"sources": (rank_source(0, "tcp://*:5557", "tcp://*:6557"),)}),
        ("engine-connects", {"sources": (rank_source(0, "tcp://h:5557", "tcp://h:6557"),)}),
        ("endpoint-cannot-deliver", {"sources": (rank_source(0, "tcp://0.0.0.0:5557", None),)}),
        ("replay-missing", {"sources": (rank_source(0, "ipc:///run/kv.sock", None),)}),
        ("observer-missing", {"observer_sockets": (), "observers": (), "wanted": True}),
        ("observer-refused", {"observer_sockets": (), "observers": (), "wanted": True,
                              "version": "0.31.1"}),
        ("coarse-queue-histogram", {"observer_sockets": (), "observers": ()}),
        ("unknown-version", {"version": None}),
        ("unsupported-kv-state", {"kv": (tap(unsupported="several KV-cache groups"),)}),
        ("hazard-admission-stall", {"version": "0.27.1"}),
    ],
)  # fmt: skip
def test_each_cause_is_found_by_its_name(expected: str, evidence) -> None:
    found = judged(**evidence)
    assert expected in ids(found)
    assert ids(found) <= {expected, "coarse-queue-histogram", "replay-missing"}
    (finding,) = [one for one in found.findings if one.id == expected]
    assert all(msgspec.structs.astuple(finding)), "each part of a finding says something"


@pytest.mark.parametrize(
    ("expected", "change"),
    [
        ("prefix-caching-off", ('enable_prefix_caching="True"', 'enable_prefix_caching="False"')),
        ("unsupported-kv-state", ('sliding_window="None"', 'sliding_window="4096"')),
        ("unsupported-kv-state", ('mamba_block_size="None"', 'mamba_block_size="1536"')),
    ],
)
def test_what_the_cache_s_configuration_shows_is_found(expected: str, change) -> None:
    assert ids(judged(OFFLOAD.replace(*change), BUSY.replace(*change))) == {expected}


def test_a_rank_that_a_tap_does_not_cover_is_named() -> None:
    found = judged(with_ranks(OFFLOAD, 3), with_ranks(BUSY, 3))
    missing = [one for one in found.findings if one.id == "rank-missing"]
    assert len(missing) == 2
    assert all("missing 1, 2" in one.evidence for one in missing)


def test_a_stalled_engine_is_the_first_finding() -> None:
    stuck = set_to(OFFLOAD, {"vllm:num_requests_waiting": 4, "vllm:num_requests_running": 0})
    found = judged(stuck, stuck, kv=(tap(decode_errors=1),))
    assert [one.id for one in found.findings] == ["stalled-engine", "unreadable-messages"]
    moved = grown(stuck, {"vllm:prompt_tokens_total": 5.0})
    assert "stalled-engine" not in ids(judged(stuck, moved))


def test_joining_in_mid_life_is_no_loss() -> None:
    joined = tap(
        state=TapState.DEGRADED,
        news=(status(TapEvent.GAP, 0, 900), status(TapEvent.DROPPED, 0, 900, "begins after it")),
    )
    found = judged(kv=(joined,))
    assert found.findings == ()
    assert "history-gone" in {note.id for note in found.notes}


def test_hazards_follow_the_version_and_what_is_switched_on() -> None:
    old = {note.id for note in judged(version="0.28.0").notes}
    assert "hazard-random-root-hash" in old
    assert "hazard-random-root-hash" not in {note.id for note in judged().notes}
    without_events = judged(sources=(), kv=())
    assert "hazard-publisher-queue" not in {note.id for note in without_events.notes}
    assert all(hazard.sources and hazard.fix for hazard in ENGINE_HAZARDS)


@contextmanager
def traffic(engine: Publisher, observer: ObserverPublisher | None) -> Iterator[None]:
    """Keep both taps busy as an engine does that has a host tier."""
    over = threading.Event()

    def work() -> None:
        number = 0
        while not over.wait(0.05):
            engine.store(2 * number + 1)
            engine.store(2 * number + 1, medium="CPU")
            if observer is not None:
                observer.publish(number)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def observer(short_dir: Path) -> Iterator[ObserverPublisher]:
    publisher = ObserverPublisher(short_dir)
    yield publisher
    publisher.end()


def test_the_command_finds_nothing_on_a_healthy_rig(kvready, short_dir: Path, observer) -> None:
    with Publisher(short_dir) as engine, traffic(engine, observer):
        sources = {"0": kv_source(engine.events, engine.replay)}
        with EngineHttp(OFFLOAD, OFFLOAD, BUSY, sources=sources) as server:
            ended = kvready("doctor", server.url, "--seconds", "2", "--observer-dir", short_dir)
            methods = {method for method, _ in server.asked}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Nothing found." in ended.stdout
    assert "Traceback" not in ended.stderr
    assert methods == {"GET"}
    assert len(engine.replay_requests) <= 2


def test_the_command_finds_a_silent_tap_and_says_how_to_mend_it(kvready, short_dir: Path) -> None:
    with Publisher(short_dir) as engine:
        sources = {"0": kv_source(engine.events, engine.replay)}
        with EngineHttp(OFFLOAD, OFFLOAD, BUSY, sources=sources) as server:
            ended = kvready("doctor", server.url, "--seconds", "1", "--json")
    assert ended.returncode == 1, ended.stderr
    found = msgspec.json.decode(ended.stdout, type=Diagnosis)
    assert {"silent-tap"} <= ids(found)
    assert isinstance(found.findings[0], Finding)
    assert json.loads(ended.stdout)["findings"][0]["fix"]


def test_the_command_finds_that_nobody_publishes(kvready, short_dir: Path) -> None:
    sources = {"0": kv_source(f"ipc://{short_dir}/none", f"ipc://{short_dir}/replay")}
    with EngineHttp(OFFLOAD, sources=sources) as server:
        ended = kvready("doctor", server.url, "--seconds", "1")
    assert ended.returncode == 1
    assert "tap-closed" in ended.stdout


def test_the_command_cannot_without_an_engine(kvready) -> None:
    ended = kvready("doctor", "127.0.0.1:9", "--seconds", "1")
    assert ended.returncode == 2
    assert "no engine answers" in ended.stderr
