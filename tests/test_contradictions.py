"""Each kind of contradiction: a story in which it is found, a healthy one in which it is not."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import BLOCK_TOKENS, WALL_OFFSET, Story, prefill

from kvready.advisor.contradictions import Contradiction, Kind
from kvready.advisor.latency_groups import PrefillLatencies, two_groups
from kvready.advisor.outside import METRICS_TAP
from kvready.collectors.counters import counters_of
from kvready.collectors.metrics_page import read_page
from kvready.collectors.records import (
    CounterName,
    CountersScraped,
    PromptTokensReported,
    RequestReported,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
)

PAGE = Path("tests/fixtures/vllm_metrics_offload.prom")
PROMPT = 1_000  # tokens a request
REQUESTS_PER_SCRAPE = 10
SCRAPES = 12
EVERY_SECONDS = 10.0


class Told(Story):
    """An engine whose counters, events and reports agree, until a test says otherwise.

    Half of each prompt is found, a fifth of that in host memory; the rest is computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted = dict.fromkeys(
            (
                CounterName.PROMPT_TOKENS,
                CounterName.COMPUTED_TOKENS,
                CounterName.HBM_HIT_TOKENS,
                CounterName.HOST_HIT_TOKENS,
                CounterName.STORE_BYTES,
                CounterName.FIRST_TOKENS,
            ),
            0.0,
        )
        self.events = True
        self.host_events = True
        self.observed = False
        self.refused: tuple[str, ...] = ()
        self.uncounted = ""
        self.reports = 0
        self._next_hash = 1
        self.adjust: Callable[[dict[CounterName, float]], None] = lambda counted: None

    def goes_on(self, scrapes: int = SCRAPES) -> dict[Kind, Contradiction]:
        """Serve requests and be scraped, so often; what was found."""
        for _ in range(scrapes):
            now = self.told[-1].received_seconds + EVERY_SECONDS
            for number in range(REQUESTS_PER_SCRAPE):
                self.serves(now - 5.0 + number * 0.1)
            self.adjust(self.counted)
            self.scraped(now)
        return self.pipeline.outside.contradictions.found

    def serves(self, seconds: float) -> None:
        counted = self.counted
        counted[CounterName.PROMPT_TOKENS] += PROMPT
        counted[CounterName.COMPUTED_TOKENS] += PROMPT / 2
        counted[CounterName.HBM_HIT_TOKENS] += PROMPT * 0.4
        counted[CounterName.HOST_HIT_TOKENS] += PROMPT * 0.1
        counted[CounterName.STORE_BYTES] += 1e6
        counted[CounterName.FIRST_TOKENS] += 1
        if self.events:
            chain = range(self._next_hash, self._next_hash + 4)
            self._next_hash += 4
            self.stored(seconds, chain)
            if self.host_events:
                self.stored(seconds, chain, tier=Tier.HOST)

    def scraped(self, seconds: float) -> None:
        counted = self.counted.items()
        values = {str(name): value for name, value in counted if name != self.uncounted}
        scrape = CountersScraped(seconds, "vllm", "0.32.0", values, self.refused)
        self.tell(seconds, scrape, METRICS_TAP)

    def reported(self, prefill_seconds: float, cached: int | None = None) -> None:
        seconds = self.told[-1].received_seconds
        self.reports += 1
        self.tell(
            seconds,
            RequestReported(
                f"cmpl-{self.reports}-0",
                Surface.FRONTEND,
                prefill_seconds=prefill_seconds,
                prompt_tokens=PROMPT,
                cached_tokens=cached,
            ),
            "spans",
        )


def test_a_healthy_engine_contradicts_nothing() -> None:
    story = Told()
    draw = random.Random(1)
    for _ in range(60):
        story.reported(0.1 * draw.lognormvariate(0, 0.5), cached=500)
    assert story.goes_on() == {}


def test_the_counters_of_a_real_engine_contradict_nothing() -> None:
    real_page = PAGE.read_text(encoding="utf-8")
    story = Told()
    zero = counters_of(read_page(real_page, "0.32.0"), 0.0)
    begin = {name: 0.0 for name in zero.values if name != CounterName.STARTED_WALL_SECONDS}
    kept = {k: v for k, v in zero.values.items() if k == CounterName.STARTED_WALL_SECONDS}
    story.tell(1.0, CountersScraped(1.0, "vllm", "0.32.0", begin | kept), METRICS_TAP)
    story.stored(20.0, range(1, 5), tier=Tier.HOST)
    story.tell(41.0, counters_of(read_page(real_page, "0.32.0"), 41.0), METRICS_TAP)
    assert story.pipeline.outside.contradictions.found == {}
    assert zero.values[CounterName.HOST_HIT_TOKENS] == 12_928


def only(found: dict[Kind, Contradiction], kind: Kind) -> str:
    assert set(found) == {kind}
    assert found[kind].active
    return found[kind].evidence


def test_host_hits_that_no_event_ever_stored_are_found() -> None:
    story = Told()
    story.host_events = False
    evidence = only(story.goes_on(), Kind.HOST_HITS_WITHOUT_STORES)
    assert "no block was ever stored in host memory" in evidence


def test_without_a_store_counter_only_a_long_look_makes_host_hits_strange() -> None:
    """Blocks stored before we came may be loaded for long."""
    story = Told()
    story.host_events = False
    story.uncounted = CounterName.STORE_BYTES
    assert story.goes_on(20) == {}
    only(story.goes_on(60), Kind.HOST_HITS_WITHOUT_STORES)


def test_host_hits_while_the_engine_stores_nothing_are_old_blocks() -> None:
    story = Told()
    story.host_events = False
    story.adjust = lambda counted: counted.update({CounterName.STORE_BYTES: 0.0})
    assert story.goes_on(80) == {}


def test_lost_events_explain_missing_stores() -> None:
    story = Told()
    story.host_events = False
    story.tell(0.5, TapStatus("e", 0, TapEvent.GAP, TapState.DEGRADED, first_missing=1), tap="e")
    assert story.goes_on() == {}


def nothing_found(counted: dict[CounterName, float]) -> None:
    counted[CounterName.HBM_HIT_TOKENS] = counted[CounterName.HOST_HIT_TOKENS] = 0.0
    counted[CounterName.COMPUTED_TOKENS] = counted[CounterName.PROMPT_TOKENS]


def all_found(counted: dict[CounterName, float]) -> None:
    counted[CounterName.HBM_HIT_TOKENS] = counted[CounterName.PROMPT_TOKENS]
    counted[CounterName.HOST_HIT_TOKENS] = counted[CounterName.COMPUTED_TOKENS] = 0.0


@pytest.mark.parametrize(("adjust", "ratio"), [(nothing_found, "0"), (all_found, "1")])
def test_a_hit_ratio_that_two_groups_of_latencies_contradict_is_found(
    adjust: Callable[[dict[CounterName, float]], None], ratio: str
) -> None:
    story = Told()
    story.adjust = adjust
    draw = random.Random(2)
    assert story.goes_on() == {}  # without latencies a ratio of 0 or 1 may well be true
    for number in range(80):
        story.reported((0.02 if number % 3 else 0.4) * draw.lognormvariate(0, 0.1))
    evidence = only(story.goes_on(1), Kind.HIT_RATIO_STUCK)
    assert f"exactly {ratio}" in evidence
    assert "two groups" in evidence


def test_a_hit_ratio_of_0_that_reports_contradict_is_found() -> None:
    story = Told()
    story.adjust = nothing_found
    for _ in range(3):
        for _ in range(30):
            story.reported(0.1, cached=500)
        found = story.goes_on(4)
    assert "tokens were cached" in only(found, Kind.HIT_RATIO_STUCK)


def test_a_hit_ratio_of_1_that_computed_tokens_contradict_is_found() -> None:
    story = Told()

    def adjust(counted: dict[CounterName, float]) -> None:
        counted[CounterName.HBM_HIT_TOKENS] = counted[CounterName.PROMPT_TOKENS]
        counted[CounterName.HOST_HIT_TOKENS] = 0.0

    story.adjust = adjust
    found = story.goes_on()
    assert {Kind.HIT_RATIO_STUCK, Kind.TOKENS_DO_NOT_SUM} == set(found)
    assert "were computed" in found[Kind.HIT_RATIO_STUCK].evidence


def test_sources_that_do_not_sum_up_are_found() -> None:
    story = Told()

    def adjust(counted: dict[CounterName, float]) -> None:
        counted[CounterName.COMPUTED_TOKENS] = 0.4 * counted[CounterName.PROMPT_TOKENS]

    story.adjust = adjust
    assert "unexplained" in only(story.goes_on(), Kind.TOKENS_DO_NOT_SUM)


def test_a_step_that_does_not_sum_up_is_found() -> None:
    story = Told()
    story.goes_on(3)
    now = story.told[-1].received_seconds
    story.tell(now, PromptTokensReported(WALL_OFFSET + now, 0, 100, 50, 0, 150))
    story.tell(now, PromptTokensReported(WALL_OFFSET + now, 0, 100, 50, 0, None))
    assert story.goes_on(1) == {}
    story.tell(now, PromptTokensReported(WALL_OFFSET + now, 0, 100, 50, 0, 200))
    assert "of 200" in only(story.goes_on(1), Kind.TOKENS_DO_NOT_SUM)


def observed(story: Told, resident: bool, requests: int) -> None:
    """Requests that the observer saw, of a document that is resident or not."""
    chain = range(9_000_001, 9_000_031)
    if resident:
        story.stored(story.told[-1].received_seconds, chain)
    now = story.told[-1].received_seconds
    for number in range(requests):
        name = f"r{now}-{number}"
        story.arrives(now, name, chain, prompt=PROMPT)
        found = len(chain) * BLOCK_TOKENS if resident else 0
        story.scheduled(now, name, hbm=found)
        story.batch(now, now + 0.01, prefill(name, PROMPT - found, found))
        story.first_token(now + 0.01, name)
        story.finished(now + 0.01, name)


@pytest.mark.parametrize(("resident", "contradicts"), [(True, True), (False, False)])
def test_hits_that_the_inventory_foretold_and_counters_deny_are_found(
    resident: bool, contradicts: bool
) -> None:
    story = Told()
    story.adjust = lambda counted: None if resident else nothing_found(counted)
    for _ in range(6):
        observed(story, resident, REQUESTS_PER_SCRAPE)
        found = story.goes_on(1)
    if contradicts:
        assert "96% of" in only(found, Kind.HITS_DISAGREE)
    else:
        assert found == {}


def test_silent_events_while_counters_move_are_found_and_clear_again() -> None:
    story = Told()
    story.events = False
    evidence = only(story.goes_on(4), Kind.EVENTS_SILENT)
    assert "KV events: none" in evidence
    story.events = True
    assert not story.goes_on()[Kind.EVENTS_SILENT].active


def test_short_prompts_fill_no_blocks_so_that_silence_is_fine() -> None:
    story = Told()
    story.events = False
    story.adjust = lambda counted: counted.update(
        {CounterName.FIRST_TOKENS: counted[CounterName.PROMPT_TOKENS] / 20}
    )
    assert story.goes_on() == {}


def test_without_kv_events_configured_nothing_is_said_about_them() -> None:
    story = Told()
    story.pipeline.outside._event_taps.clear()
    story.events = False
    assert story.goes_on() == {}


def test_refused_counters_contradict_nothing() -> None:
    story = Told()
    story.refused = (CounterName.HBM_HIT_TOKENS,)
    story.adjust = nothing_found
    for number in range(80):
        story.reported(0.02 if number % 3 else 0.4, cached=500)
    assert story.goes_on() == {}


def test_a_restarted_engine_is_judged_anew() -> None:
    story = Told()
    story.goes_on(3)
    for name in story.counted:
        story.counted[name] = 0.0
    assert story.goes_on(1) == {}
    assert story.goes_on() == {}


def test_a_second_that_passes_contradicts_nothing() -> None:
    story = Told()
    story.tell(1.0, Tick(1.0, WALL_OFFSET + 1.0), "recorder")
    assert story.pipeline.outside.contradictions.active == []


@given(st.integers(0, 2**32), st.sampled_from(["normal", "even", "exponential"]))
def test_one_group_is_never_taken_for_two(seed: int, shape: str) -> None:
    draw = random.Random(seed)
    make = {
        "normal": lambda: draw.gauss(0.0, 2.0),
        "even": lambda: draw.uniform(0.0, 10.0),
        "exponential": lambda: -draw.expovariate(1.0),
    }[shape]
    assert two_groups(deque(make() for _ in range(200))) is None


def test_prompts_of_different_lengths_are_not_compared() -> None:
    latencies = PrefillLatencies()
    for number in range(100):
        long = number % 2
        latencies.add(8_000 if long else 300, (0.8 if long else 0.03) * (1 + number % 5 * 0.02))
    assert latencies.groups() is None
