"""What loads cost the batches beside them: recovered where it is known, silent where it is not."""

from __future__ import annotations

import random

import pytest
from story import ENGINE, Story, decode, prefill

from kvready.advisor.estimates import Between
from kvready.advisor.interference import MIN_BATCHES, BatchKind, Interferences
from kvready.advisor.ledger import NOMINAL_COVERAGE
from kvready.advisor.link_sharing import Span
from kvready.advisor.report import build_report
from kvready.advisor.report_text import slowdown_text
from kvready.collectors.records import BatchFinished, BatchMember, BatchPlanned


def observed(
    interferences: Interferences, seconds: float, loads: list[Span], member: BatchMember
) -> None:
    batch = BatchPlanned(0, 0.0, 0.0, (member,))
    interferences.observe(batch, BatchFinished(0, seconds, seconds), 1.0, loads)


def scattered(factor: float, beside: int, quiet: int, seed: int) -> Interferences:
    """Batches that scatter by a third either way; those beside loads take so many times as long."""
    random_ = random.Random(seed)
    interferences = Interferences()
    for number in range(beside + quiet):
        seconds = random_.lognormvariate(0.0, 0.3)
        if number < beside:
            observed(interferences, factor * seconds, [(0.0, 100.0)], decode("a", 10))
        else:
            observed(interferences, seconds, [], decode("a", 10))
    return interferences


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_the_interval_holds_the_true_slowdown_as_often_as_it_says(factor: float) -> None:
    held = 0
    for seed in range(200):
        found = scattered(factor, 40, 120, seed).slowdown(BatchKind.DECODE)
        assert found is not None
        assert found.low <= found.factor <= found.high
        held += found.low <= factor <= found.high
    assert held >= 190


def test_too_few_batches_show_nothing() -> None:
    assert scattered(1.5, MIN_BATCHES - 1, 100, 1).slowdowns == []
    assert scattered(1.5, 100, MIN_BATCHES - 1, 1).slowdowns == []
    [found] = scattered(1.5, MIN_BATCHES, MIN_BATCHES, 1).slowdowns
    assert (found.beside_batches, found.quiet_batches) == (MIN_BATCHES, MIN_BATCHES)


def test_a_batch_mostly_quiet_counts_on_neither_side() -> None:
    interferences = Interferences()
    for _ in range(100):
        observed(interferences, 1.0, [(0.0, 0.2), (0.1, 0.3)], decode("a", 10))  # 0.3 of it
        observed(interferences, 1.0, [(0.0, 0.3), (0.2, 0.6)], decode("a", 10))  # 0.6 of it
        observed(interferences, 1.0, [], decode("a", 10))
    [found] = interferences.slowdowns
    assert found.beside_batches == found.quiet_batches == 100


def test_prefill_and_decode_are_told_apart_and_no_slowdown_is_none() -> None:
    interferences = Interferences()
    for _ in range(50):
        for seconds, loads in ((0.9, [(0.0, 9.0)]), (1.0, [])):
            observed(interferences, seconds, loads, prefill("a", 64))
    assert interferences.slowdown(BatchKind.DECODE) is None
    measured = interferences.measured()
    assert (measured.prefill_slowdown, measured.decode_slowdown) == (1.0, None)
    assert (measured.sm_share, measured.decode_slowdown_interval) == (None, None)
    assert measured.prefill_slowdown_interval == Between(1.0, 1.0)


def test_an_answer_has_the_bounds_that_the_report_has() -> None:
    interferences = scattered(1.5, 60, 100, 1)
    [found] = interferences.slowdowns
    measured = interferences.measured()
    assert measured.decode_slowdown == found.factor
    assert measured.decode_slowdown_interval == Between(found.low, found.high)
    assert found.nominal_coverage_ratio >= NOMINAL_COVERAGE


def test_an_engines_loads_are_held_against_its_batches() -> None:
    story = Story()
    now = 1.0
    for number in range(120):
        slow = number % 2 == 1
        if slow:
            story.loads(number, "other", decided=now - 0.01, blocks=4)
        story.batch(now, now + (0.03 if slow else 0.02), decode("a", 100))
        if slow:
            story.loaded(number, started=now - 0.005, ready=now + 0.04)
        now += 0.1
    [found] = story.pipeline.slowdowns
    # The model of a batch is learned from both kinds; what counts is how they differ.
    assert found.kind is BatchKind.DECODE
    assert found.factor == pytest.approx(1.5, rel=0.1)
    report = build_report(story.pipeline)
    assert report.slowdowns == [found]
    assert slowdown_text(found).startswith("decode batches beside a load took x1.5")


def test_where_no_start_of_a_load_is_told_nothing_is_held_against_it() -> None:
    story = Story()
    assert ENGINE.has_mover_times
    now = 1.0
    for number in range(80):
        story.loads(number, "other", decided=now - 0.01, blocks=4, ingested=now)
        story.batch(now, now + 0.02, decode("a", 100))
        now += 0.1
    assert story.pipeline.slowdowns == []
