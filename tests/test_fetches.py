"""Copies between host memory and slower tiers: who waits for them, and how long they take."""

from __future__ import annotations

import pytest
from story import BLOCK_TOKENS, ENGINE, Story

from kvready.advisor.ledger import PairState, Target
from kvready.advisor.waits import WaitState
from kvready.collectors.records import (
    DeferReason,
    LoadChecked,
    LoadDecided,
    LoadFinished,
    RequestDeferred,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)

CHAIN = tuple(range(100, 110))
FETCH = 1 << 40  # their numbers lie beyond those of loads


def moves(story: Story, number: int, name: str, began: float, ended: float, *tiers: Tier) -> None:
    """A copy between two tiers, from order to end."""
    source, destination = tiers
    tokens = len(CHAIN) * BLOCK_TOKENS
    payload = tokens * ENGINE.kv_bytes_per_token
    order = LoadDecided(
        number, name, source, destination, tokens, payload, len(CHAIN), decided_seconds=began
    )
    story.tell(began, order)
    story.tell(ended, LoadFinished(number, source, destination, began, ended, payload, len(CHAIN)))


def test_a_request_whose_prefix_is_on_disk_waits_in_fetch_and_then_in_load() -> None:
    story = Story()
    story.stored(0.1, CHAIN, tier=Tier.DISK)
    story.arrives(1.0, "a", CHAIN)
    moves(story, FETCH, "a", 1.0, 1.3, Tier.DISK, Tier.HOST)
    moves(story, 1, "a", 1.3, 1.5, Tier.HOST, Tier.HBM)
    story.scheduled(1.5, "a", loaded=320)
    story.first_token(1.6, "a")
    waits = story.pipeline.totals.wait_seconds
    assert waits[WaitState.FETCH] == pytest.approx(0.3)
    assert waits[WaitState.LOAD] == pytest.approx(0.2)
    assert waits[WaitState.QUEUE] == 0
    assert story.pipeline.totals.unattributed_seconds == pytest.approx(0)
    assert story.pipeline.totals.nominal_hit_tokens == 320


def test_a_fetch_is_forecast_and_scored_apart_from_loads() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    moves(story, FETCH, "a", 1.0, 1.3, Tier.DISK, Tier.HOST)
    [pair] = story.pairs
    assert (pair.forecast.target, pair.state) == (Target.FETCH, PairState.PAIRED)
    assert pair.actual_seconds == pytest.approx(0.3)
    assert pair.forecast.shape_cell.startswith("disk")


def test_a_follower_waits_for_the_fetch_that_another_request_began() -> None:
    story = Story()
    story.arrives(1.0, "leader", CHAIN)
    story.arrives(1.1, "follower", CHAIN)
    order = LoadDecided(FETCH, "leader", Tier.DISK, Tier.HOST, 320, 1 << 20, 10, 1.0)
    story.tell(1.1, order)
    story.tell(1.2, RequestDeferred("follower", 1.2, DeferReason.LOAD))
    story.tell(1.5, LoadFinished(FETCH, Tier.DISK, Tier.HOST, 1.0, 1.5))
    story.scheduled(1.6, "follower", hbm=320)
    story.first_token(1.7, "follower")
    waits = story.pipeline.totals.wait_seconds
    assert waits[WaitState.FETCH] == pytest.approx(0.3)
    assert waits[WaitState.READY] == pytest.approx(0.1)


@pytest.mark.parametrize(("source", "destination"), [(Tier.HBM, Tier.HOST), (Tier.HOST, Tier.DISK)])
def test_nobody_waits_for_a_backup_and_none_is_forecast(source: Tier, destination: Tier) -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    moves(story, FETCH, "a", 1.0, 1.4, source, destination)
    story.scheduled(1.5, "a")
    story.first_token(1.6, "a")
    waits = story.pipeline.totals.wait_seconds
    assert waits[WaitState.FETCH] == waits[WaitState.LOAD] == waits[WaitState.READY] == 0
    assert {pair.forecast.target for pair in story.pairs}.isdisjoint({Target.LOAD, Target.FETCH})
    assert story.pipeline.totals.copies[source, destination] == 1


def test_a_restart_leaves_fetches_without_an_outcome() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.tell(1.0, LoadDecided(FETCH, "a", Tier.DISK, Tier.HOST, 320, 1 << 20, 10, 1.0))
    story.tell(2.0, TapStatus("observer-scheduler-0", 0, TapEvent.EPOCH, TapState.LIVE, epoch=1))
    assert story.pipeline.ledger.counts[Target.FETCH, PairState.CENSORED] == 1


def test_checked_loads_and_those_that_differed_are_counted() -> None:
    story = Story()
    for number in range(5):
        story.tell(1.0 + number, LoadChecked(number, Tier.HOST, Tier.HBM, mismatched=number == 3))
    totals = story.pipeline.totals
    assert (totals.checked_loads, totals.mismatched_loads) == (5, 1)
