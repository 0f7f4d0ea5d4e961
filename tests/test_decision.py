"""What is decided for a candidate, and that its figures agree with each other."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_estimates import PlainEstimates

from kvready.advisor.decision import Decision, Reason, Tolerates, Verdict, decide, is_tolerated
from kvready.advisor.estimates import Between, Interference
from kvready.advisor.holding import Holding, Portion
from kvready.advisor.overlap import usable_batch_seconds
from kvready.advisor.ranges import Range
from kvready.advisor.split import best_split
from kvready.advisor.ways import Stage, Way, WayName
from kvready.collectors.records import OverlapMode, Tier

BLOCK = 16
TOKEN_BYTES = 131_072
FRAGMENTS_PER_BLOCK = 64
QUIET = PlainEstimates()


def portion(tier: Tier, blocks: int) -> Portion:
    tokens = blocks * BLOCK
    return Portion(tier, tokens * TOKEN_BYTES, blocks * FRAGMENTS_PER_BLOCK, tokens)


def on_host(blocks: int, *, hbm: int = 0, missing: int = 0) -> Holding:
    return Holding(
        hbm_tokens=hbm * BLOCK, portions=(portion(Tier.HOST, blocks),), missing_tokens=missing
    )


seconds = st.floats(0.0, 2.0)
engines = st.builds(
    PlainEstimates,
    overlap=st.sampled_from(OverlapMode),
    layers=st.integers(1, 80),
    copy_seconds=st.floats(0.0, 0.1),
    fragment_seconds=st.floats(0.0, 1e-4),
    bytes_per_second=st.floats(1e8, 2e11),
    wait_seconds=seconds,
    chunk_tokens=st.sampled_from([0, 256, 512, 8192]),
    token_seconds=st.floats(1e-7, 1e-3),
    pair_seconds=st.floats(0.0, 1e-7),
    queue=st.none() | seconds,
    others=st.none() | st.booleans(),
    narrow=st.floats(0.1, 1.0),
    wide=st.floats(1.0, 10.0),
    unseen=st.sampled_from([frozenset(), frozenset({Tier.REMOTE})]),
)
blocks = st.integers(0, 300)


@st.composite
def holdings(draw: st.DrawFn) -> Holding:
    degraded = draw(st.booleans())
    left = draw(st.integers(0, 3_000))
    ready = draw(st.none() | st.builds(lambda p50: Range(p50, p50 / 2, p50 * 2), seconds))
    tiers = [(tier, draw(blocks)) for tier in (Tier.HOST, Tier.DISK, Tier.REMOTE)]
    return Holding(
        hbm_tokens=draw(blocks) * BLOCK,
        portions=tuple(portion(tier, count) for tier, count in tiers if count),
        in_flight_tokens=draw(blocks) * BLOCK,
        in_flight_ready=ready,
        missing_tokens=0 if degraded else left,
        unknown_tokens=left if degraded else 0,
        degraded=degraded,
    )


def by_name(verdict: Verdict) -> dict[str, Way]:
    return {way.way: way for way in verdict.ways}


@given(holdings(), engines)
def test_ranges_are_ordered_and_stages_sum_to_the_whole(
    holding: Holding, engine: PlainEstimates
) -> None:
    for way in decide(holding, engine).ways:
        ready = way.ready_seconds
        assert 0.0 <= ready.low <= ready.p50 <= ready.high < math.inf
        assert all(spent >= 0.0 for spent in way.stages_seconds.values())
        assert sum(way.stages_seconds.values()) == pytest.approx(ready.p50, rel=1e-9, abs=1e-12)


@given(holdings(), engines)
def test_every_token_is_brought_computed_waited_for_or_there(
    holding: Holding, engine: PlainEstimates
) -> None:
    for way in decide(holding, engine).ways:
        awaited = holding.in_flight_tokens if way.way is WayName.WAIT else 0
        brought = way.load_tokens + way.compute_tokens + awaited
        assert holding.hbm_tokens + brought == holding.prompt_tokens


@given(st.integers(1, 200), st.integers(1, 100), engines)
def test_no_bound_of_a_load_shrinks_when_there_is_more_to_load(
    count: int, more: int, engine: PlainEstimates
) -> None:
    small, large = (
        by_name(decide(on_host(number, missing=8), engine))[WayName.LOAD].ready_seconds
        for number in (count, count + more)
    )
    # Its compute falls back by what attends to more; without that the load alone is compared.
    computed = [engine.prefill_seconds(8, n * BLOCK) for n in (count, count + more)]
    slack = 1e-9
    if engine.overlap is not OverlapMode.LAYERWISE:
        assert small.p50 - computed[0].p50 <= large.p50 - computed[1].p50 + slack
    assert small.p50 <= large.p50 + slack
    assert small.low <= large.low + slack
    assert small.high <= large.high + slack


@given(holdings(), engines)
def test_what_is_decided_is_the_soonest_by_its_whole_interval(
    holding: Holding, engine: PlainEstimates
) -> None:
    engine = msgspec.structs.replace(engine, others=False)
    verdict = decide(holding, engine)
    ways = by_name(verdict)
    chosen = ways.get(verdict.decision)
    if chosen is None:
        return
    for rival in ways.values():
        assert chosen.ready_seconds.p50 <= rival.ready_seconds.p50 + 1e-9


@given(holdings(), engines)
def test_one_state_has_one_verdict(holding: Holding, engine: PlainEstimates) -> None:
    assert decide(holding, engine) == decide(holding, engine)


def test_each_reason_comes_from_the_state_that_it_names() -> None:
    blocking = PlainEstimates(overlap=OverlapMode.BLOCKING, others=True)
    slow_link = PlainEstimates(bytes_per_second=1e8)
    soon = Range(0.01, 0.009, 0.011)
    expected = [
        (Holding(hbm_tokens=64), QUIET, Decision.USE, Reason.READY),
        (on_host(200, missing=8), QUIET, Decision.LOAD, Reason.LOAD_SOONER),
        (on_host(200), slow_link, Decision.RECOMPUTE, Reason.NOT_WORTH_LOADING),
        (on_host(200), PlainEstimates(wait_seconds=9.0), Decision.RECOMPUTE,
         Reason.RECOMPUTE_SOONER),
        (on_host(200), PlainEstimates(bytes_per_second=2.5e9, fragment_seconds=0.0),
         Decision.ENGINES_WAY, Reason.INTERVALS_OVERLAP),
        (Holding(missing_tokens=64), QUIET, Decision.RECOMPUTE, Reason.NOTHING_RESIDENT),
        (Holding(in_flight_tokens=1600, in_flight_ready=soon), QUIET, Decision.WAIT,
         Reason.IN_FLIGHT_SOONER),
        (on_host(200, missing=8), blocking, Decision.RUN_OTHER, Reason.LINK_BUSY_RUN_OTHER),
        (Holding(portions=(portion(Tier.REMOTE, 9),)),
         PlainEstimates(unseen=frozenset({Tier.REMOTE})), Decision.ENGINES_WAY,
         Reason.UNKNOWN_LINK),
        (Holding(unknown_tokens=64), QUIET, Decision.ENGINES_WAY, Reason.UNKNOWN_RESIDENCY),
        (Holding(hbm_tokens=64, supported=False), QUIET, Decision.NONE, Reason.UNSUPPORTED),
        (Holding(missing_bytes=9, recomputable=False), QUIET, Decision.NONE,
         Reason.NOT_RESIDENT),
        (Holding(portions=(portion(Tier.HOST, 9),), recomputable=False), QUIET, Decision.LOAD,
         Reason.ONLY_LOADING),
    ]  # fmt: skip
    for holding, engine, decision, reason in expected:
        verdict = decide(holding, engine)
        assert (verdict.decision, verdict.reason) == (decision, reason), holding


def test_unsupported_state_never_gets_a_number() -> None:
    verdict = decide(msgspec.structs.replace(on_host(20), supported=False), QUIET)
    assert verdict == Verdict(Decision.NONE, Reason.UNSUPPORTED)


@given(holdings(), engines)
def test_not_knowing_never_narrows_a_range(holding: Holding, engine: PlainEstimates) -> None:
    known = msgspec.structs.replace(
        holding,
        degraded=False,
        missing_tokens=holding.missing_tokens + holding.unknown_tokens,
        unknown_tokens=0,
    )
    unknown = msgspec.structs.replace(
        known, degraded=True, unknown_tokens=known.missing_tokens, missing_tokens=0
    )
    sure, unsure = by_name(decide(known, engine)), by_name(decide(unknown, engine))
    for name in sure.keys() & unsure.keys() - {WayName.LOAD_AND_RECOMPUTE}:
        assert unsure[name].ready_seconds.low <= sure[name].ready_seconds.low + 1e-9
        assert unsure[name].ready_seconds.high >= sure[name].ready_seconds.high - 1e-9


def test_a_queue_of_which_nothing_is_known_is_named_as_left_out() -> None:
    engine = PlainEstimates(queue=None)
    assert decide(on_host(9), engine).not_included == ("queue",)
    assert decide(on_host(9), QUIET).not_included == ()


SLOWED = Interference(decode_slowdown=1.2, decode_slowdown_interval=Between(1.1, 1.4))


@pytest.mark.parametrize(
    ("causes", "tolerates", "expected"),
    [
        (Interference(), Tolerates(), None),
        (Interference(), Tolerates(sm_share=0.1), None),
        (Interference(sm_share=0.2), Tolerates(sm_share=0.1), False),
        (Interference(sm_share=0.1), Tolerates(sm_share=0.1), True),
        (Interference(sm_share=0.1), Tolerates(sm_share=0.1, decode_slowdown=1.1), None),
        (Interference(decode_slowdown=1.2), Tolerates(sm_share=0.1, decode_slowdown=1.1), False),
        (SLOWED, Tolerates(decode_slowdown=1.05), False),
        (SLOWED, Tolerates(decode_slowdown=1.1), None),
        (SLOWED, Tolerates(decode_slowdown=1.3), None),
        (SLOWED, Tolerates(decode_slowdown=1.4), True),
    ],
)
def test_a_load_is_tolerated_only_where_all_that_counts_was_measured_and_is_sure(
    causes: Interference, tolerates: Tolerates, expected: bool | None
) -> None:
    assert is_tolerated(causes, tolerates) is expected


def test_a_load_that_is_not_tolerated_is_not_decided_on() -> None:
    engine = PlainEstimates(interference=Interference(sm_share=0.5))
    verdict = decide(on_host(200), engine, Tolerates(sm_share=0.1))
    assert (verdict.decision, verdict.reason) == (Decision.RECOMPUTE, Reason.NOT_TOLERATED)
    assert verdict.tolerated is False
    assert WayName.LOAD in by_name(verdict), "what it would have taken is shown"


# Loading a head while a tail is computed


@given(
    engines.filter(lambda engine: engine.chunk_tokens == 0), st.integers(2, 120), st.integers(1, 64)
)
def test_the_split_is_the_best_of_all_splits(
    engine: PlainEstimates, count: int, layers: int
) -> None:
    def parts(number: int) -> tuple[float, float, float]:
        computed = engine.prefill_seconds((count - number) * BLOCK, number * BLOCK).p50
        if not number:
            return 0.0, 0.0, computed
        head = portion(Tier.HOST, number)
        load = engine.load_seconds(Tier.HOST, head.payload_bytes, head.fragments)
        assert load is not None
        return engine.wait_seconds, load.p50, computed

    def whole(number: int) -> float:
        before, load, computed = parts(number)
        return before + usable_batch_seconds(OverlapMode.LAYERWISE, layers, load, computed)

    found = best_split(count, parts, layers)
    assert whole(found) == pytest.approx(min(map(whole, range(count + 1))), rel=1e-9)


@given(holdings(), engines)
def test_a_split_is_never_worse_than_a_pure_way(holding: Holding, engine: PlainEstimates) -> None:
    ways = by_name(decide(holding, engine))
    split = ways.get(WayName.LOAD_AND_RECOMPUTE)
    if split is None:
        return
    assert engine.overlap is OverlapMode.LAYERWISE
    for name in (WayName.LOAD, WayName.RECOMPUTE):
        assert split.ready_seconds.p50 <= ways[name].ready_seconds.p50 + 1e-9
    assert split.load_tokens % BLOCK == 0


def test_a_split_runs_both_at_once() -> None:
    engine = PlainEstimates(
        overlap=OverlapMode.LAYERWISE, bytes_per_second=2.6e9, fragment_seconds=0.0
    )
    verdict = decide(on_host(400), engine)
    ways = by_name(verdict)
    split = ways[WayName.LOAD_AND_RECOMPUTE].ready_seconds.p50
    assert verdict.decision is Decision.LOAD_AND_RECOMPUTE
    # Two that take equally long, halved each and run side by side.
    assert split < 0.65 * min(
        ways[WayName.LOAD].ready_seconds.p50, ways[WayName.RECOMPUTE].ready_seconds.p50
    )


# Where both ways take equally long


@given(st.integers(1, 300), st.integers(0, 50), engines)
def test_at_the_break_even_bandwidth_a_load_takes_as_long_as_a_recompute(
    count: int, missing: int, engine: PlainEstimates
) -> None:
    engine = msgspec.structs.replace(engine, overlap=OverlapMode.BEFORE_ADMISSION, queue=0.0)
    holding = on_host(count, missing=missing)
    verdict = decide(holding, engine)
    assert verdict.break_even is not None
    rate = verdict.break_even.bytes_per_second
    ways = by_name(verdict)
    if rate is None:
        assert ways[WayName.LOAD].ready_seconds.p50 >= ways[WayName.RECOMPUTE].ready_seconds.p50
        return
    load_seconds = holding.payload_bytes / rate
    rest = engine.prefill_seconds(missing, count * BLOCK).p50 if missing else 0.0
    assert engine.wait_seconds + load_seconds + rest == pytest.approx(
        ways[WayName.RECOMPUTE].ready_seconds.p50, rel=1e-6
    )


def test_the_break_even_prefix_is_the_shortest_that_is_worth_loading() -> None:
    engine = PlainEstimates(copy_seconds=0.02)
    count = 200
    verdict = decide(on_host(count), engine)
    assert verdict.break_even is not None
    assert verdict.break_even.tokens is not None

    def load_is_sooner(number: int) -> bool:
        head = portion(Tier.HOST, number)
        load = engine.load_seconds(Tier.HOST, head.payload_bytes, head.fragments)
        assert load is not None
        saved = engine.prefill_seconds(count * BLOCK, 0).p50
        saved -= engine.prefill_seconds((count - number) * BLOCK, number * BLOCK).p50
        return load.p50 <= saved

    shortest = next(number for number in itertools.count(1) if load_is_sooner(number))
    assert 1 < shortest < count
    assert verdict.break_even.tokens == pytest.approx(shortest * BLOCK, abs=3 * BLOCK)


def test_a_wait_counts_only_what_the_queue_does_not_hide() -> None:
    ready = Range(0.5, 0.4, 0.6)
    holding = Holding(in_flight_tokens=1600, in_flight_ready=ready, missing_tokens=16)
    for queue, hidden in ((0.2, 0.2), (0.9, 0.5)):
        way = by_name(decide(holding, PlainEstimates(queue=queue)))[WayName.WAIT]
        assert way.stages_seconds[Stage.IN_FLIGHT] == pytest.approx(0.5 - hidden)
