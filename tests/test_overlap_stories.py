"""Engines whose batches wait for their loads: forecast with them, and learned from without them."""

from __future__ import annotations

import msgspec
import pytest
from story import ENGINE, Story, prefill

from kvready.advisor.ledger import PairState, Target
from kvready.advisor.overlap import compute_seconds, usable_batch_seconds
from kvready.collectors.records import OverlapMode, Tier

STALLING = (OverlapMode.BLOCKING, OverlapMode.LAYERWISE)
LAYERS = ENGINE.layers
CHAIN = tuple(range(100, 120))  # loaded in 40 ms below
LOAD_SECONDS = 0.04


def told(mode: OverlapMode, compute: float) -> Story:
    """Sixty prefills of 64 tokens after a loaded prefix, each with its load in its own batch."""
    story = Story()
    story.tell(0.0, msgspec.structs.replace(ENGINE, overlap=mode))
    story.stored(0.1, CHAIN, tier=Tier.HOST)
    whole = usable_batch_seconds(mode, LAYERS, LOAD_SECONDS, compute)
    for number in range(60):
        now, name = 1.0 + number, f"r{number}"
        story.arrives(now, name, CHAIN, prompt=640 + 64)
        story.loads(number, name, decided=now + 0.001, blocks=20)
        story.scheduled(now + 0.001, name, loaded=640)
        planned = now + 0.001
        # The batch ends after its load, whichever of the two is the longer.
        story.loaded(number, started=planned, ready=planned + LOAD_SECONDS)
        story.batch(planned, planned + whole, prefill(name, 64, 640))
        story.first_token(planned + whole, name)
        story.finished(planned + whole + 0.01, name)
    return story


@pytest.mark.parametrize("mode", STALLING)
def test_the_compute_of_a_batch_is_learned_without_its_load(mode: OverlapMode) -> None:
    story = told(mode, compute=0.1)
    learned = story.pipeline.ranks[0].forecaster.compute.batch_seconds([prefill("x", 64, 640)])
    assert learned == pytest.approx(0.1, rel=0.05)


def test_a_load_that_hides_all_compute_teaches_nothing_of_it() -> None:
    story = told(OverlapMode.LAYERWISE, compute=0.01)
    assert story.pipeline.ranks[0].forecaster.compute.prefill_observations == 0


@pytest.mark.parametrize("mode", STALLING)
def test_first_tokens_are_forecast_by_the_engines_own_overlap(mode: OverlapMode) -> None:
    story = told(mode, compute=0.1)
    late = [
        pair
        for pair in story.pairs
        if pair.forecast.target is Target.TTFT and pair.state is PairState.PAIRED
    ][-20:]
    for pair in late:
        assert pair.actual_seconds == pytest.approx(pair.forecast.p50_seconds, rel=0.1)


@pytest.mark.parametrize("mode", OverlapMode)
@pytest.mark.parametrize("compute", [0.05, 0.5, 5.0])
def test_compute_is_told_back_from_a_whole_batch_where_it_can_be(
    mode: OverlapMode, compute: float
) -> None:
    whole = usable_batch_seconds(mode, LAYERS, 0.5, compute)
    found = compute_seconds(mode, LAYERS, 0.5, whole)
    if mode is OverlapMode.LAYERWISE and compute < 0.5:
        assert found is None
    elif mode is OverlapMode.BEFORE_ADMISSION:
        assert found == whole  # its batches never hold a load
    else:
        assert found == pytest.approx(compute) or compute == 0.5
