"""The metrics tap asks by GET alone, keeps every collector's promises, and reads what is meant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from metrics_server import EVERY_SECONDS, TAP, MetricsServer, page

from kvready.collectors import contract
from kvready.collectors.contract import Gathered
from kvready.collectors.counters import counters_of
from kvready.collectors.metrics_page import read_page
from kvready.collectors.metrics_tap import FAILURES_TO_DEGRADE, MetricsTap
from kvready.collectors.records import CounterName, CountersScraped, TapEvent, TapState

PAGE = Path("tests/fixtures/vllm_metrics_offload.prom")
PATIENCE_SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer()
    yield made
    made.end()


@pytest.mark.parametrize(
    "check", [contract.check_delivery, contract.check_restart], ids=lambda check: check.__name__
)
def test_it_keeps_a_collectors_promises(
    check: Callable[[contract.Rig], None], server: MetricsServer
) -> None:
    check(server)
    assert {method for method, _ in server.asked} == {"GET"}


def test_garbage_is_counted_and_survived(server: MetricsServer) -> None:
    contract.check_garbage(
        server, [[b""], [b"\xff\xfe"], [b"<html>another server</html>"], [b"vllm:x{"]]
    )


def test_it_lives_and_waits_without_an_engine() -> None:
    def make() -> MetricsTap:
        return MetricsTap(TAP, "http://127.0.0.1:1", EVERY_SECONDS)

    contract.check_lifecycle(make)
    contract.check_no_data_is_not_failure(make)


def test_addresses_that_can_never_answer_are_refused_at_start() -> None:
    contract.check_impossible_endpoints(
        [lambda: MetricsTap(TAP, "ipc:///x"), lambda: MetricsTap(TAP, "http://host:99999")]
    )


def gather(tap: MetricsTap, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until():
        assert time.monotonic() < deadline, tap.coverage()
        tap.poll(0.05)


def test_an_engine_that_does_not_answer_never_holds_up_a_poll(server: MetricsServer) -> None:
    tap = MetricsTap(TAP, server.url, EVERY_SECONDS)
    tap.start(Gathered())
    try:
        began = time.monotonic()
        polls = 0
        while time.monotonic() - began < 0.5:
            assert tap.poll(0.01) == 0
            polls += 1
        # The server holds its answer for seconds; polls of 10 ms went on meanwhile.
        assert polls > 5
    finally:
        tap.stop()


def test_an_engine_that_goes_away_degrades_the_tap_and_heals_it_by_coming_back(
    server: MetricsServer,
) -> None:
    sink = Gathered()
    tap = MetricsTap(TAP, server.url, EVERY_SECONDS)
    tap.start(sink)
    try:
        server.publish(1)
        gather(tap, lambda: tap.coverage().state is TapState.LIVE)
        for _ in range(FAILURES_TO_DEGRADE):
            server.pages.put((500, b"busy"))
        gather(tap, lambda: tap.coverage().state is TapState.DEGRADED)
        assert "500" in sink.news(TapEvent.GAP)[0].detail
        server.publish(2)
        gather(tap, lambda: tap.coverage().state is TapState.LIVE)
        assert sink.news(TapEvent.HEALED)
    finally:
        tap.stop()


def test_a_real_page_becomes_numbers_by_our_names() -> None:
    text = PAGE.read_text(encoding="utf-8")
    record = counters_of(read_page(text, "0.32.0"), 5.0)
    expected = {
        CounterName.PROMPT_TOKENS: 41_414.0,
        CounterName.COMPUTED_TOKENS: 9_766.0,
        CounterName.HBM_HIT_TOKENS: 18_720.0,
        CounterName.HOST_HIT_TOKENS: 12_928.0,
        CounterName.LOAD_BYTES: 6_619_136.0,
        CounterName.STORE_BYTES: 4_636_672.0,
    }
    assert {name: record.values[name] for name in expected} == expected
    assert set(record.values) <= set(CounterName)
    assert record.refused == ()


def test_a_counter_that_this_version_gets_wrong_is_refused_by_name() -> None:
    """Before 0.20 there was no count by source, and the plain one counts scheduling attempts."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "_by_source" not in line]
    record = counters_of(read_page("\n".join(lines) + "\n", "0.14.0"), 5.0)
    assert CounterName.HBM_HIT_TOKENS in record.refused
    assert CounterName.HBM_HIT_TOKENS not in record.values
    assert CounterName.COMPUTED_TOKENS not in record.values


def test_ranks_are_summed_and_what_one_of_them_lacks_is_unknown() -> None:
    one = page(100.0).decode()
    other = one.replace('engine="0"', 'engine="1"')
    both = counters_of(read_page(one + other, "0.32.0"), 1.0)
    assert both.values[CounterName.PROMPT_TOKENS] == 200.0
    without = "\n".join(line for line in other.splitlines() if "prompt_tokens_total" not in line)
    partly = counters_of(read_page(one + without + "\n", "0.32.0"), 1.0)
    assert CounterName.PROMPT_TOKENS not in partly.values
    assert partly.values[CounterName.RUNNING] == 2.0


def test_the_engines_version_is_asked_once_and_again_after_it_went_away(
    server: MetricsServer,
) -> None:
    sink = Gathered()
    tap = MetricsTap(TAP, server.url, EVERY_SECONDS)
    tap.start(sink)
    try:
        for number in range(3):
            server.publish(number)
        gather(tap, lambda: len(sink.facts) == 3)
        assert [path for _, path in server.asked].count("/version") == 1
        server.version = b'{"version": "0.33.0"}'
        server.pages.put((503, b""))
        server.publish(4)
        gather(tap, lambda: len(sink.facts) == 4)
    finally:
        tap.stop()
    told = [fact.engine_version for fact in sink.facts if isinstance(fact, CountersScraped)]
    assert told == ["0.32.0", "0.32.0", "0.32.0", "0.33.0"]
