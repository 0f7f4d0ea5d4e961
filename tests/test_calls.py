"""Threads that take in records step aside for calls: in time, and never for good."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from served import AppClient
from story import Story
from test_service import Flood, sidecar_of

from kvready.advisor.service import calls as calls_module
from kvready.advisor.service.app import create_app
from kvready.advisor.service.calls import Announced, Calls, Until, Work
from kvready.advisor.service.sidecar import INGEST_BATCH_RECORDS, Sidecar

LONG_SECONDS = 60.0


@contextmanager
def running(*collectors: object) -> Iterator[Sidecar]:
    sidecar = sidecar_of(*collectors)
    sidecar.start()
    try:
        yield sidecar
    finally:
        sidecar.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.001)


def test_nobody_waits_where_nobody_calls() -> None:
    giver = Calls().giver()
    for _ in range(1_000):
        giver()
    assert giver.times == 0


def test_a_thread_waits_until_the_last_call_is_answered(monkeypatch) -> None:
    monkeypatch.setattr(calls_module, "GIVEN_SECONDS", LONG_SECONDS)
    calls = Calls()
    giver = calls.giver()
    order: list[str] = []

    def give() -> None:
        giver()
        order.append("records")

    calls.begin()
    calls.begin()
    thread = threading.Thread(target=give)
    thread.start()
    for _ in range(2):
        order.append("answered")
        calls.end()
    thread.join()
    assert order == ["answered", "answered", "records"]
    assert giver.cut_short == 0


def test_a_thread_that_is_needed_meanwhile_does_it_and_waits_on(monkeypatch) -> None:
    monkeypatch.setattr(calls_module, "GIVEN_SECONDS", LONG_SECONDS)
    calls = Calls()
    giver = calls.giver()
    done = threading.Semaphore(0)
    calls.begin()
    thread = threading.Thread(target=giver, args=(done.release,))
    thread.start()
    for _ in range(3):
        giver.again.set()
        assert done.acquire(timeout=LONG_SECONDS)
    assert thread.is_alive()
    calls.end()
    thread.join(LONG_SECONDS)
    assert not thread.is_alive()


def test_a_call_that_does_not_end_is_waited_for_once() -> None:
    calls = Calls()
    giver = calls.giver()
    with calls.answering():
        for _ in range(10_000):
            giver()
    assert giver.times == giver.cut_short == 1


def test_what_was_given_is_counted_by_work_and_by_what_ended_it() -> None:
    calls = Calls()
    taps = [calls.giver(), calls.giver()]
    ingest = calls.giver(Work.INGEST)
    with calls.answering():
        taps[0]()
    calls.begin()
    ingest.again.set()
    ingest(calls.end)  # it answers the call itself
    counts = {key: count for key, count in calls.given().items() if count}
    assert counts == {(Work.TAP, Until.BOUND): 1, (Work.INGEST, Until.ANSWERED): 1}


def test_endless_calls_leave_half_of_the_time_to_records() -> None:
    calls = Calls()
    giver = calls.giver()
    given_seconds = 0.0
    began = time.monotonic()
    while giver.times < 20:
        calls.begin()  # always a new one, and never answered
        before, entered = giver.times, time.monotonic()
        giver()
        if giver.times > before:
            given_seconds += time.monotonic() - entered
    whole_seconds = time.monotonic() - began
    # The last one is owed still.
    assert given_seconds * (1 - 1 / giver.times) <= whole_seconds / 2 * 1.1
    assert giver.cut_short == giver.times


def test_a_call_is_open_until_the_first_part_of_its_answer_is_out() -> None:
    calls = Calls()
    seen: list[tuple[str, int]] = []

    async def streams(scope: object, receive: object, send: Callable[..., object]) -> None:
        seen.append(("asked", calls.open))
        for kind in ("start", "body", "body"):
            await send({"type": f"http.response.{kind}", "status": 200})  # type: ignore[misc]
        raise ConnectionError("the reader went away")

    async def send(message: dict[str, str]) -> None:
        seen.append((message["type"], calls.open))

    app = Announced(streams, calls)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        asyncio.run(app({"type": "http", "path": "/"}, None, send))  # type: ignore[arg-type]
    assert seen == [
        ("asked", 1),
        ("http.response.start", 1),
        ("http.response.body", 1),
        ("http.response.body", 0),
    ]
    assert calls.open == 0


def test_every_way_to_be_answered_ends_the_call(told_story: Story) -> None:
    with running(Flood()) as sidecar:
        client = AppClient(create_app(sidecar))
        for path in ("/livez", "/v1/status", "/metrics", "/", "/nowhere", "/v1/pairs?limit=0"):
            client.get(path)
        client.post("/v1/readiness", content=b"{", headers={"content-type": "application/json"})
        assert sidecar.calls.open == 0


def test_a_call_is_answered_before_many_records_more_are_taken_in() -> None:
    """The tap is never done; a call is answered within about a handful of records all the same."""
    with running(Flood()) as sidecar:
        wait_for(lambda: len(sidecar.intake) > 100 * INGEST_BATCH_RECORDS)
        taken: list[int] = []
        for _ in range(40):
            with sidecar.calls.answering():
                before = sidecar.recorder.ingested
                taken.append(sidecar.ask(lambda: sidecar.recorder.ingested) - before)
            time.sleep(0.02)
    assert statistics.median(taken) <= 2 * INGEST_BATCH_RECORDS


def test_a_storm_of_calls_starves_no_tap() -> None:
    flood = Flood()
    over = threading.Event()
    with running(flood) as sidecar:

        def storm() -> None:
            while not over.is_set():
                with sidecar.calls.answering():
                    sidecar.ask(sidecar.coverages)

        callers = [threading.Thread(target=storm) for _ in range(4)]
        for caller in callers:
            caller.start()
        wait_for(lambda: sidecar._give_way.times > 10)
        delivered, ingested = flood.delivered, sidecar.recorder.ingested
        wait_for(lambda: flood.delivered > delivered + 10_000)
        wait_for(lambda: sidecar.recorder.ingested > ingested + 10_000)
        over.set()
        for caller in callers:
            caller.join()
        given = sidecar.take_snapshot().values["kvready_stepped_aside_total"]
        assert sum(given[Work.INGEST, end] for end in Until) > 10
