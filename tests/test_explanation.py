"""`explain`: the story of a request adds up, and agrees with what the pipeline counted."""

from __future__ import annotations

import pytest
from story import BLOCK_TOKENS, Story, decode, prefill

from kvready.advisor.explanation import BatchTeller, RequestTeller, tell
from kvready.advisor.explanation_text import batch_lines, request_lines
from kvready.advisor.ledger import Target
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.waits import WaitState
from kvready.collectors.records import BatchPlanned, Tier


def told_story() -> Story:
    """A request whose hit must be loaded, behind one that computes."""
    story = Story()
    story.stored(0.1, [1, 2, 3, 4], tier=Tier.HOST)
    story.arrives(1.0, "first", [9], prompt=64)
    story.batch(1.1, 1.5, prefill("first", 64))
    story.scheduled(1.1, "first")
    story.first_token(1.5, "first")
    story.arrives(2.0, "hit", [1, 2, 3, 4])
    story.loads(7, "hit", 2.1, 4)
    story.loaded(7, 2.1, 2.4)
    story.batch(2.6, 2.9, prefill("hit", 8, 4 * BLOCK_TOKENS), decode("first", 64))
    story.scheduled(2.6, "hit", hbm=0, loaded=4 * BLOCK_TOKENS)
    story.first_token(2.9, "hit")
    story.finished(3.5, "hit")
    return story


def replayed(story: Story, make):
    heard = []
    pipeline = Pipeline(on_pair=lambda pair: heard[0].pair(pair))
    heard.append(make(pipeline))
    tell(heard[0], story.told)
    return heard[0].story


def test_the_states_of_a_wait_sum_to_the_whole() -> None:
    found = replayed(told_story(), lambda pipeline: RequestTeller(pipeline, "hit"))
    assert found.ttft_seconds == pytest.approx(0.9)
    assert sum(found.wait_seconds.values()) == pytest.approx(found.ttft_seconds)
    assert found.wait_seconds[WaitState.LOAD] == pytest.approx(0.3)
    assert found.wait_seconds[WaitState.PREFILL] == pytest.approx(0.3)


def test_a_story_names_the_forecasts_of_the_request_and_of_its_loads_alone() -> None:
    found = replayed(told_story(), lambda pipeline: RequestTeller(pipeline, "hit"))
    targets = {pair.forecast.target for pair in found.pairs}
    assert {Target.LOAD, Target.TTFT, Target.QUEUE, Target.PREFILL} <= targets
    assert Target.BATCH_COMPUTE not in targets
    assert {pair.forecast.subject for pair in found.pairs} == {"hit", "7"}


def test_events_follow_each_other_in_time() -> None:
    found = replayed(told_story(), lambda pipeline: RequestTeller(pipeline, "hit"))
    seconds = [event.seconds for event in found.events]
    assert seconds == sorted(seconds)
    text = "\n".join(request_lines(found))
    for word in ("arrived", "copy from host", "entered a batch", "first token", "finished"):
        assert word in text


def test_a_request_that_never_came_has_no_story() -> None:
    assert replayed(told_story(), lambda pipeline: RequestTeller(pipeline, "other")) is None
    assert replayed(told_story(), lambda pipeline: BatchTeller(pipeline, 99)) is None


def test_a_request_without_a_first_token_says_so() -> None:
    story = Story()
    story.arrives(1.0, "a", [1])
    found = replayed(story, lambda pipeline: RequestTeller(pipeline, "a"))
    assert "it got no first token" in request_lines(found)


def test_a_batch_is_told_with_its_members_and_its_forecast() -> None:
    found = replayed(told_story(), lambda pipeline: BatchTeller(pipeline, 1))
    assert [pair.forecast.target for pair in found.pairs] == [Target.BATCH_COMPUTE]
    text = "\n".join(batch_lines(found))
    assert "hit: prefill of 8" in text
    assert "first: decode of 1" in text


def test_telling_a_story_changes_no_forecast() -> None:
    story = told_story()
    plain = list(story.pairs)
    heard = []
    pipeline = Pipeline(on_pair=heard.append)
    teller = RequestTeller(pipeline, "hit")
    tell(teller, story.told)
    assert heard == plain


def test_every_pass_that_was_compared_is_told_of_some_batch() -> None:
    """Stories of all batches differ exactly as often as the pipeline counted."""
    story = told_story()
    compared = story.pipeline.shadow.compared
    steps = [item.record.step for item in story.told if isinstance(item.record, BatchPlanned)]
    stories = [
        replayed(story, lambda pipeline, step=step: BatchTeller(pipeline, step)) for step in steps
    ]
    assert sum(one.compared for one in stories) == compared["same"] + compared["different"]
    assert sum(bool(one.differs) for one in stories) == compared["different"]
