"""Queueing told from outside by how many wait and run: where gauges are scraped, and only there."""

from __future__ import annotations

import random
from statistics import median

from test_backcasts import WALL, report

from kvready.advisor.backcasts import HOLD_SECONDS, Backcaster
from kvready.advisor.outside_model import BackcastTarget, Depth, OutsideModel
from kvready.collectors.clock import ClockMap
from kvready.collectors.records import CountersScraped

SERVICE_SECONDS = 0.4


def backcast_queue(seed: int, scraped: bool, scrape_ahead: float = 0.0) -> Backcaster:
    """A server that is overloaded for half a minute and then not; gauges read every two seconds."""
    draw = random.Random(seed)
    arrivals, now = [], 1.0
    while now < 300.0:
        busy = int(now / 30.0) % 2 == 0
        now += draw.expovariate((1.5 if busy else 0.4) / SERVICE_SECONDS)
        arrivals.append(now)
    free, begun = 0.0, []
    for arrived in arrivals:
        free = max(free, arrived) + SERVICE_SECONDS
        begun.append(free - SERVICE_SECONDS)
    reports = [
        report(number, arrived, begin - arrived + SERVICE_SECONDS, queue=begin - arrived)
        for number, (arrived, begin) in enumerate(zip(arrivals, begun, strict=True))
    ]
    caster, clock = Backcaster(), ClockMap()
    coming = sorted(reports, key=lambda one: one.ended_wall_seconds or 0.0)
    for half in range(2 * int(max(begun) + 3 * HOLD_SECONDS)):
        moment = half / 2.0
        spans = list(zip(arrivals, begun, strict=True))
        waiting = sum(arrived <= moment < begin for arrived, begin in spans)
        running = sum(begin <= moment < begin + SERVICE_SECONDS for _, begin in spans)
        if scraped and half % 4 == 0:
            values = {"waiting": float(waiting), "running": float(running)}
            caster.scrape(CountersScraped(moment + scrape_ahead, values=values))
        while coming and (coming[0].ended_wall_seconds or 0.0) - WALL <= moment:
            caster.report(coming.pop(0), moment)
        if half % 2 == 0:
            clock.observe(moment, WALL + moment)
            caster.tick(moment, clock)
    return caster


def error_of(caster: Backcaster) -> float:
    queued = [one for one in caster.backcasts if one.target is BackcastTarget.QUEUE]
    assert len(queued) > 200
    return median(abs(one.actual_seconds - one.p50_seconds) for one in queued[50:])


def test_the_depth_of_the_queue_tells_more_than_how_others_fared() -> None:
    blind = error_of(backcast_queue(1, scraped=False))
    assert error_of(backcast_queue(1, scraped=True)) < 0.3 * blind


def test_scrapes_after_an_arrival_are_not_looked_at() -> None:
    late = backcast_queue(1, scraped=True, scrape_ahead=1e6)
    blind = backcast_queue(1, scraped=False)
    assert list(late.backcasts) == list(blind.backcasts)


def test_a_depth_that_tells_nothing_is_not_used() -> None:
    draw = random.Random(3)
    model = OutsideModel()
    for _ in range(300):
        depth = Depth(draw.randrange(20), draw.randrange(20))
        model.learn(100, 1.0, 0.5, depth)
    assert model.frozen().depth_costs == ()
    unscraped = model.frozen().outlook(BackcastTarget.QUEUE, 100)
    assert model.frozen().outlook(BackcastTarget.QUEUE, 100, Depth(50, 50)) is not None
    assert unscraped.p50_seconds == (
        model.frozen().outlook(BackcastTarget.QUEUE, 100, Depth(50, 50)).p50_seconds
    )


def test_a_frozen_model_keeps_the_costs_that_it_had() -> None:
    draw = random.Random(3)
    model = OutsideModel()
    for _ in range(100):
        depth = Depth(draw.randrange(20), 1)
        model.learn(100, 1.0 + depth.waiting, depth.waiting * 0.5, depth)
    frozen = model.frozen()
    assert frozen.depth_costs
    assert abs(frozen.outlook(BackcastTarget.QUEUE, 100, Depth(10, 1)).p50_seconds - 5.0) < 0.5
    before = frozen.depth_costs
    for _ in range(100):
        model.learn(100, 1.0, 9.0, Depth(1.0, 1.0))
    assert frozen.depth_costs == before
