"""Data-parallel ranks share an engine's name and nothing else: each is judged on its own blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kv_publisher import KvPublisher
from observer_publisher import ObserverPublisher, load_started
from story import Story, decode, prefill

from kvready.advisor.inventory import Knowledge
from kvready.advisor.ledger import Pair
from kvready.advisor.pipeline import MAX_RANKS, Pipeline
from kvready.advisor.service.taps import build_taps
from kvready.advisor.settings import TapSettings
from kvready.collectors.contract import Gathered
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import (
    AnyRecord,
    BlocksStored,
    Ingested,
    LoadStarted,
    Observed,
    RequestArrived,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)

PATIENCE_SECONDS = 20.0


def days_work(seed: int) -> Story:
    """One rank's day; its load ids, steps and request names are those of any other rank."""
    story = Story()
    now = 1.0
    for number in range(12):
        chain = range(1_000 * (number % 3 + 1) + seed, 1_000 * (number % 3 + 1) + seed + 5)
        again = number >= 3
        name = f"r{number}"
        story.arrives(now, name, chain)
        loaded = 5 * 32 if again else 0
        if again:
            story.loads(number, name, decided=now, blocks=5)
            ready = now + 0.01 + 0.002 * ((number + seed) % 4)
            story.loaded(number, started=now + 0.001, ready=ready)
            now = ready
        story.scheduled(now, name, loaded=loaded)
        new = 8 if again else 5 * 32 + 8
        finished = now + 0.004 + new * 1e-4 * (1 + seed)
        story.batch(now, finished, prefill(name, new, loaded))
        if not again:
            story.stored(finished, chain)
            story.stored(finished, chain, tier=Tier.HOST)
            story.removed(finished, chain)
        story.first_token(finished, name)
        story.batch(finished, finished + 0.005, decode(name, loaded + new))
        now = finished + 0.005
        story.finished(now, name)
    return story


def of_rank(record: AnyRecord, rank: int) -> AnyRecord:
    """The same fact, told by another rank's taps."""
    changes: dict[str, Any] = {}
    if hasattr(record, "rank"):
        changes["rank"] = rank
    if hasattr(record, "publisher"):
        changes["publisher"] = f"e-{rank}"
    if isinstance(record, TapStatus):
        changes["tap"] = f"e-{rank}"
    return msgspec.structs.replace(record, **changes) if changes else record


def both_ranks() -> tuple[list[Story], Pipeline, list[Pair]]:
    """Two days told into one pipeline in order of time, and each alone."""
    stories = [days_work(0), days_work(2)]
    pairs: list[Pair] = []
    pipeline = Pipeline(on_pair=pairs.append)
    merged = sorted(
        (
            (item.received_seconds, rank, item)
            for rank, story in enumerate(stories)
            for item in story.told
        ),
        key=lambda entry: entry[:2],
    )
    for number, (seconds, rank, item) in enumerate(merged):
        tap = item.tap.replace("-0", f"-{rank}") if "observer" in item.tap else f"e-{rank}"
        pipeline.ingest(Ingested(number, seconds, tap, of_rank(item.record, rank)))
    return stories, pipeline, pairs


def essence(pair: Pair, prefix: str = "") -> tuple[Any, ...]:
    forecast = pair.forecast
    return (
        forecast.target,
        forecast.subject.removeprefix(prefix),
        pair.state,
        forecast.p50_seconds,
        forecast.shape_cell,
        pair.actual_seconds,
    )


def test_two_ranks_in_one_pipeline_are_forecast_and_paired_as_each_would_be_alone() -> None:
    stories, pipeline, pairs = both_ranks()
    for rank, story in enumerate(stories):
        prefix = f"{rank}:" if rank else ""
        mine = [pair for pair in pairs if (":" in pair.forecast.subject) == bool(rank)]
        alone = [essence(pair) for pair in story.pairs]
        assert [essence(pair, prefix) for pair in mine] == alone
        assert len(alone) > 40
    assert [essence(pair) for pair in stories[0].pairs] != [
        essence(pair) for pair in stories[1].pairs
    ]
    for name in ("arrivals", "batches", "first_tokens", "nominal_hit_tokens", "in_time_hits"):
        alone_total = sum(getattr(story.pipeline.totals, name) for story in stories)
        assert getattr(pipeline.totals, name) == alone_total


def stored(rank: int, *hashes: int) -> BlocksStored:
    return BlocksStored(f"e-{rank}", rank, 0, 0.0, Tier.HBM, hashes, None, 32)


def told(*records: AnyRecord) -> Pipeline:
    pipeline = Pipeline()
    for number, record in enumerate(records):
        pipeline.ingest(Ingested(number, float(number), "t", record))
    return pipeline


def live(rank: int) -> TapStatus:
    return TapStatus(f"e-{rank}", rank, TapEvent.CONNECTED, TapState.LIVE)


def arrival(rank: int, name: str) -> RequestArrived:
    return RequestArrived(name, Surface.SCHEDULER, 9.0, 200, (1, 2, 3), 32, rank=rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_is_judged_against_its_own_ranks_blocks(rank: int) -> None:
    pipeline = told(live(0), live(1), stored(0, 1, 2), stored(1, 1), arrival(rank, "r"))
    state = pipeline.ranks[rank].requests.live["r"]
    assert state.nominal_tokens == (2 if rank == 0 else 1) * 32
    assert set(pipeline.ranks) == {0, rank}


@pytest.mark.parametrize("event", [TapEvent.EPOCH, TapEvent.DROPPED])
def test_what_happens_to_one_ranks_stream_leaves_the_other_ranks_blocks(event: TapEvent) -> None:
    state = TapState.LIVE if event is TapEvent.EPOCH else TapState.DEGRADED
    news = TapStatus("e-1", 1, event, state, epoch=1)
    pipeline = told(live(0), live(1), stored(0, 1, 2), stored(1, 1), news)
    assert pipeline.inventory.tier_prefix((1, 2, 3), rank=0).blocks == 2
    assert pipeline.inventory.tier_prefix((1, 2, 3), rank=1).blocks == 0
    assert pipeline.inventory.state(rank=0) is Knowledge.LIVE
    assert not pipeline.rank_degraded(0)
    assert pipeline.rank_degraded(1) == (event is TapEvent.DROPPED)


def test_a_restart_of_one_scheduler_ends_only_its_own_requests() -> None:
    news = TapStatus("observer-scheduler-1", 1, TapEvent.EPOCH, TapState.LIVE, epoch=1)
    pipeline = told(live(0), live(1), arrival(0, "a"), arrival(1, "a"), news)
    assert list(pipeline.ranks[0].requests.live) == ["a"]
    assert not pipeline.ranks[1].requests.live


def test_a_gap_in_one_observer_makes_only_its_own_forecasts_lean_on_it() -> None:
    news = TapStatus("observer-mover-1", 1, TapEvent.GAP, TapState.DEGRADED)
    pipeline = told(live(0), live(1), stored(0, 1), stored(1, 1), news)
    assert not pipeline.rank_degraded(0)
    assert pipeline.rank_degraded(1)
    assert pipeline.degraded


def test_ranks_that_a_stranger_makes_up_are_bounded() -> None:
    pipeline = told(*(arrival(rank, "r") for rank in range(0, 10 * MAX_RANKS, 5)))
    assert len(pipeline.ranks) == MAX_RANKS
    assert pipeline.shed_records == MAX_RANKS


def test_the_socket_names_the_rank_of_every_record_on_it(short_dir: Path) -> None:
    tap = ObserverTap("observer", short_dir)
    sink = Gathered()
    tap.start(sink)
    publishers = {
        name: ObserverPublisher(short_dir, name)
        for name in ("scheduler-0", "scheduler-3", "mover-3-1")
    }

    def seen() -> set[tuple[int, int]]:
        return {
            (record.load_id % 10, record.rank)
            for record in sink.records
            if isinstance(record, LoadStarted)
        }

    wanted = {(0, 0), (1, 3), (2, 3)}
    poll_until(tap, lambda: seen() == wanted, publishers)
    assert all(isinstance(record, Observed | TapStatus) for record in sink.records)
    connected = {(status.tap, status.rank) for status in sink.news(TapEvent.CONNECTED)}
    assert connected == {
        ("observer-scheduler-0", 0),
        ("observer-scheduler-3", 3),
        ("observer-mover-3-1", 3),
    }
    tap.stop()
    for publisher in publishers.values():
        publisher.end()


def test_two_ranks_on_real_sockets_lose_and_keep_their_own_blocks(
    short_dir: Path, tmp_path: Path
) -> None:
    publishers = []
    for rank in range(2):
        (short_dir / str(rank)).mkdir()
        publishers.append(KvPublisher(short_dir / str(rank)))
    settings = TapSettings(
        kv_events=tuple(publisher.endpoint for publisher in publishers), state_dir=tmp_path
    )
    collectors = [tap.collector for tap in build_taps(settings)]
    assert [collector.name for collector in collectors] == ["kv-events-0", "kv-events-1"]
    pipeline = Pipeline()
    numbers = iter(range(1_000_000))

    def sink(record: AnyRecord, received_seconds: float, tap: str) -> None:
        pipeline.ingest(Ingested(next(numbers), received_seconds, tap, record))

    sent = [0, 0]

    def all_speak_until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline
            for rank, publisher in enumerate(publishers):
                events = [stored_event(rank * 100 + sent[rank] % 9 + 1)]
                payload = msgspec.msgpack.encode([time.time(), events, rank])
                publisher.publish_frames([b"kv", sent[rank].to_bytes(8, "big"), payload])
                sent[rank] += 1
            for collector in collectors:
                collector.poll(0.01)

    def blocks(rank: int) -> set[int]:
        return set(pipeline.inventory.blocks(Tier.HBM, rank=rank))

    for collector in collectors:
        collector.start(sink)
    all_speak_until(lambda: len(blocks(0)) == len(blocks(1)) == 9)
    assert blocks(0) == set(range(1, 10))
    assert blocks(1) == set(range(101, 110))
    degraded_before = pipeline.rank_degraded(0)
    publishers[1].restart()
    sent[1] = 0
    all_speak_until(lambda: collectors[1].gate.epoch == 1)  # type: ignore[attr-defined]
    assert blocks(0) == set(range(1, 10))
    assert len(blocks(1)) < 9
    assert pipeline.rank_degraded(0) == degraded_before
    for collector, publisher in zip(collectors, publishers, strict=True):
        collector.stop()
        publisher.end()


def stored_event(block_hash: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [block_hash],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def poll_until(
    tap: ObserverTap, done: Callable[[], bool], publishers: dict[str, ObserverPublisher]
) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    sequence = 0
    while not done():
        assert time.monotonic() < deadline
        for place, publisher in enumerate(publishers.values()):
            publisher.publish_records(sequence, [load_started(10 * sequence + place)])
        sequence += 1
        tap.poll(0.02)
