"""Backcasts never look ahead, never depend on when a report came, and are never forecasts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvready.advisor import backcasts
from kvready.advisor.backcasts import (
    HOLD_SECONDS,
    SETTLE_SECONDS,
    Backcast,
    Backcaster,
    BackcastState,
    merged,
)
from kvready.advisor.outside_model import MIN_LEARNED, BackcastTarget
from kvready.collectors.clock import ClockMap
from kvready.collectors.records import Outcome, RequestReported, Surface
from kvready.collectors.request_ids import reported_id

WALL = 1_000_000_000.0
LATEST_SECONDS = HOLD_SECONDS - SETTLE_SECONDS - 2.0  # from an end to its report


def report(
    number: int,
    arrived: float,
    ttft: float,
    decode: float = 0.1,
    prompt: int = 500,
    queue: float | None = 0.01,
) -> RequestReported:
    return RequestReported(
        request_id=f"cmpl-{number}-0",
        surface=Surface.FRONTEND,
        arrived_wall_seconds=WALL + arrived,
        ended_wall_seconds=WALL + arrived + ttft + decode,
        same_host=True,
        queue_seconds=queue,
        decode_seconds=decode,
        ttft_seconds=ttft,
        whole_seconds=ttft + decode,
        prompt_tokens=prompt,
    )


def end_of(one: RequestReported) -> float:
    assert one.ended_wall_seconds is not None
    return one.ended_wall_seconds - WALL


def arrival_of(one: RequestReported) -> float:
    assert one.arrived_wall_seconds is not None
    return one.arrived_wall_seconds - WALL


def traffic(seed: int, requests: int = 60) -> list[RequestReported]:
    """Overlapping requests of any length, with TTFTs that follow the prompt, sometimes wildly."""
    draw = random.Random(seed)
    made, now = [], 1.0
    for number in range(requests):
        now += draw.expovariate(2.0)
        prompt = draw.randrange(8, 4_000)
        ttft = 0.02 + prompt * 1e-4 * draw.choice((0.1, 1.0, 1.0, 5.0))
        made.append(report(number, now, ttft, draw.uniform(0.01, 20.0), prompt))
    return made


def told(reports: Sequence[RequestReported], delays: Sequence[float] | None = None) -> Backcaster:
    """A backcaster that got these reports, each so long after its end, and then some more time."""
    coming = sorted(
        (end_of(one) + delay, place, one)
        for place, (one, delay) in enumerate(
            zip(reports, delays or [0.0] * len(reports), strict=True)
        )
    )
    caster, clock = Backcaster(), ClockMap()
    last = max((received for received, _, _ in coming), default=0.0) + 3 * HOLD_SECONDS
    place = 0
    for second in range(int(last) + 1):
        while place < len(coming) and coming[place][0] <= second:
            received, _, one = coming[place]
            caster.report(one, received)
            place += 1
        clock.observe(float(second), WALL + second)
        caster.tick(float(second), clock)
    assert caster.held == 0
    return caster


def by_request(caster: Backcaster) -> dict[tuple[str, BackcastTarget], Backcast]:
    return {(one.request_id, one.target): one for one in caster.backcasts}


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_a_backcast_knows_nothing_that_ended_after_the_arrival(seed: int) -> None:
    """Oracle: tell another one only what had ended by the arrival, and the request itself."""
    reports = traffic(seed, 40)
    everything = by_request(told(reports))
    assume(everything)  # some short traffic ends too late to learn from; most does not
    for one in reports[::4]:
        before = [r for r in reports if end_of(r) <= arrival_of(one)]
        alone = by_request(told([*before, one]))
        for target in BackcastTarget:
            assert alone.get((one.request_id, target)) == everything.get((one.request_id, target))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(0.1, 10.0))
def test_what_ends_after_the_arrival_may_be_anything(seed: int, factor: float) -> None:
    reports = traffic(seed, 40)
    one = reports[30]
    changed = [
        r
        if end_of(r) <= arrival_of(one) or r is one
        else msgspec.structs.replace(
            r, ttft_seconds=(r.ttft_seconds or 0) * factor, queue_seconds=factor
        )
        for r in reports
    ]
    for target in BackcastTarget:
        key = (one.request_id, target)
        assert by_request(told(reports)).get(key) == by_request(told(changed)).get(key)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_reports_may_come_late_and_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    reports = traffic(seed)
    in_order = told(reports)
    shuffled = reports[:]
    draw.shuffle(shuffled)
    late = told(shuffled, [draw.uniform(0.0, LATEST_SECONDS) for _ in shuffled])
    assert by_request(late) == by_request(in_order)
    assert late.counts == in_order.counts
    assert late.late == 0


def test_a_report_that_comes_too_late_is_backcast_yet_never_learned_from() -> None:
    reports = traffic(1)
    one = reports[50]
    delays = [200.0 if r is one else 0.0 for r in reports]
    late = told(reports, delays)
    without = by_request(told([r for r in reports if r is not one]))
    assert late.late == 1
    got = by_request(late)
    for target in BackcastTarget:
        assert got.pop((one.request_id, target)).actual_seconds > 0
    assert got == without


def test_the_first_requests_are_too_few_to_say_anything() -> None:
    reports = [report(n, 10.0 * n, 0.1) for n in range(MIN_LEARNED + 1)]
    caster = told(reports)
    assert caster.counts[BackcastTarget.TTFT, BackcastState.COLD] == MIN_LEARNED
    [last] = [one for one in caster.backcasts if one.target is BackcastTarget.TTFT]
    assert last.request_id == reports[-1].request_id


def test_a_steady_engine_is_backcast_well_and_its_intervals_hold() -> None:
    draw = random.Random(7)
    reports = []
    for number in range(400):
        prompt = draw.randrange(100, 4_000)
        ttft = 0.01 + (0.03 + prompt * 2e-4) * draw.lognormvariate(0.0, 0.1)
        reports.append(report(number, number * 0.5, ttft, 0.2, prompt))
    caster = told(reports)
    scored = [one for one in caster.backcasts if one.target is BackcastTarget.TTFT]
    covered = [one.covered for one in scored[-200:]]
    assert 0.8 <= sum(covered) / len(covered) <= 0.99
    assert caster.bad[BackcastTarget.TTFT] <= 0.02 * len(scored)


def test_what_the_observer_saw_has_no_backcast() -> None:
    reports = traffic(3)
    caster = Backcaster()
    clock = ClockMap()
    for one in reports[::2]:
        caster.observe(f"{one.request_id}-b673a854")
    for one in reports:
        caster.report(one, end_of(one))
    for second in range(200):
        clock.observe(float(second), WALL + second)
        caster.tick(float(second), clock)
    names = {one.request_id for one in caster.backcasts}
    assert names
    assert not names & {one.request_id for one in reports[::2]}
    assert caster.counts[BackcastTarget.TTFT, BackcastState.OBSERVED] == len(reports[::2])


@pytest.mark.parametrize(
    ("scheduled", "reported"),
    [
        ("cmpl-load-1-0-0-b673a854", "cmpl-load-1-0-0"),
        ("chatcmpl-abc-0-00ff00ff", "chatcmpl-abc-0"),
        ("cmpl-load-1", "cmpl-load-1"),
    ],
)
def test_a_request_is_joined_by_prefix(scheduled: str, reported: str) -> None:
    assert reported_id(scheduled) == reported


def test_times_that_cannot_be_placed_give_no_backcast() -> None:
    reports = traffic(4)
    elsewhere = [msgspec.structs.replace(one, same_host=False) for one in reports[:5]]
    ahead = [
        msgspec.structs.replace(one, ended_wall_seconds=(one.ended_wall_seconds or 0) + 50)
        for one in reports[5:10]
    ]
    timeless = [msgspec.structs.replace(one, ended_wall_seconds=None) for one in reports[10:15]]
    caster, clock = Backcaster(), ClockMap()
    for one in (*elsewhere, *ahead, *timeless):
        caster.report(one, 40.0)
    for second in range(100):
        clock.observe(float(second), WALL + second)
        caster.tick(float(second), clock)
    assert caster.counts[BackcastTarget.TTFT, BackcastState.UNPLACED] == 15


def test_waits_that_were_not_told_are_not_made_up() -> None:
    reports = traffic(5)
    bare = msgspec.structs.replace(
        reports[40], ttft_seconds=None, whole_seconds=None, queue_seconds=None
    )
    derived = msgspec.structs.replace(reports[41], ttft_seconds=None)
    caster = told([*reports[:40], bare, derived])
    got = by_request(caster)
    assert caster.counts[BackcastTarget.TTFT, BackcastState.UNTOLD] == 1
    assert (bare.request_id, BackcastTarget.QUEUE) not in got
    assert got[derived.request_id, BackcastTarget.TTFT].actual_seconds == pytest.approx(
        reports[41].ttft_seconds
    )


def test_two_taps_that_tell_of_one_request_make_one_backcast() -> None:
    reports = traffic(6)
    spans = [msgspec.structs.replace(one, decode_seconds=None) for one in reports]
    stats = [
        msgspec.structs.replace(one, ttft_seconds=None, cached_tokens=64, outcome=Outcome.FINISHED)
        for one in reports
    ]
    both = told([*spans, *stats])
    assert by_request(both) == by_request(told(reports))
    assert both.duplicates == len(reports)
    assert merged(spans[0], stats[0]) == merged(stats[0], spans[0])
    assert merged(spans[0], stats[0]).cached_tokens == 64


def test_a_step_of_the_wall_clock_does_not_mix_up_before_and_after() -> None:
    """The wall goes back 40 s: what ended before the step stays before what came after it."""
    before = [report(n, 1.0 + n, 0.1, 0.1) for n in range(50)]
    after = [report(100 + n, 61.0 + n - 40.0, 0.1, 0.1) for n in range(50)]
    caster, clock = Backcaster(), ClockMap()
    for second in range(200):
        for one in before:
            if second - 1 < end_of(one) <= second:
                caster.report(one, float(second))
        for one in after:
            if second - 1 < end_of(one) + 40.0 <= second:
                caster.report(one, float(second))
        clock.observe(float(second), WALL + second - (40.0 if second >= 60 else 0.0))
        caster.tick(float(second), clock)
    assert clock.steps == 1
    assert caster.held == 0
    assert caster.late == 0
    unplaced = caster.counts[BackcastTarget.TTFT, BackcastState.UNPLACED]
    assert 0 < unplaced < 90  # the 40 s that the wall showed twice
    for one in caster.backcasts:
        assert one.p50_seconds < 0.2


def test_reports_beyond_the_bounds_are_shed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backcasts, "MAX_HELD_REPORTS", 10)
    monkeypatch.setattr(backcasts, "MAX_REMEMBERED_IDS", 10)
    caster = Backcaster()
    for one in traffic(8):
        caster.report(one, 0.0)
        caster.observe(one.request_id)
    assert caster.held == 10
    assert len(caster._observed) == 10
    assert caster.counts[BackcastTarget.TTFT, BackcastState.SHED] == 50


def test_a_request_longer_than_the_models_are_kept_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backcasts, "MAX_MODELS", 16)
    reports = [report(n, 1.0 + n, 0.1, 0.1) for n in range(100)]
    reports.append(report(1_000, 30.0, 0.1, 80.0))
    caster = told(reports)
    assert caster.counts[BackcastTarget.TTFT, BackcastState.TOO_OLD] == 1
    assert len(caster._models) <= 16
