"""Prefixes that another request brings: when they become usable, forecast and scored."""

from __future__ import annotations

import msgspec
import pytest
from story import BLOCK_TOKENS, ENGINE, Story, prefill

from kvready.advisor import inflight, lookahead, rollforward
from kvready.advisor.ledger import Forecast, Pair, PairState, Target
from kvready.advisor.lookahead import EXTRAPOLATED
from kvready.advisor.report import build_report
from kvready.collectors.records import (
    DeferReason,
    Outcome,
    RequestDeferred,
    TapEvent,
    TapState,
    TapStatus,
    Tier,
)

CHAIN = tuple(range(100, 120))
TOKENS = len(CHAIN) * BLOCK_TOKENS  # 640; batches take 512


def scored(story: Story) -> list[Pair]:
    return [pair for pair in story.pairs if pair.forecast.target is Target.INFLIGHT_READY]


def is_empty(story: Story) -> bool:
    return not len(story.pipeline.ranks[0].forecaster.inflight)


def warmed_up() -> Story:
    """An engine whose batches take a millisecond a token."""
    story = Story()
    for n in range(40):
        tokens = 64 + 16 * (n % 8)
        story.batch(0.01 * n, 0.01 * n + tokens / 1e3, prefill("warm", tokens))
    return story


def test_a_follower_waits_until_the_batch_ends_that_computes_the_last_shared_block() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN, prompt=TOKENS + 200)
    story.arrives(10.1, "follower", CHAIN[:18])  # of them the leader's second batch has two
    story.scheduled(10.2, "leader")
    story.batch(10.2, 10.7, prefill("leader", 512))
    assert not scored(story)
    story.batch(10.7, 10.9, prefill("leader", 328, 512))
    [pair] = scored(story)
    assert (pair.state, pair.forecast.subject) == (PairState.PAIRED, "follower")
    assert pair.actual_seconds == pytest.approx(0.8)
    # 840 tokens of the leader, a millisecond each, its queue nothing
    assert pair.forecast.p50_seconds == pytest.approx(0.84, rel=0.15)
    assert is_empty(story)


def test_a_follower_that_needs_only_the_first_blocks_waits_for_the_first_batch() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN, prompt=TOKENS + 200)
    story.arrives(10.1, "follower", CHAIN[:8])
    story.scheduled(10.2, "leader")
    story.batch(10.2, 10.7, prefill("leader", 512))
    [pair] = scored(story)
    assert pair.actual_seconds == pytest.approx(0.6)
    assert pair.forecast.p50_seconds == pytest.approx(0.512, rel=0.15)


def test_short_shares_are_no_delay_hits_and_are_not_forecast() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.1, "follower", (*CHAIN[:3], 1, 2, 3))
    assert is_empty(story)


def test_resident_blocks_are_not_waited_for_but_what_follows_them_is() -> None:
    story = warmed_up()
    story.stored(1.0, CHAIN[:10])
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.1, "follower", CHAIN)
    story.scheduled(10.2, "leader", hbm=320)
    story.batch(10.2, 10.5, prefill("leader", 328, 320))
    [pair] = scored(story)
    assert pair.actual_seconds == pytest.approx(0.4)
    assert pair.forecast.p50_seconds == pytest.approx(0.328, rel=0.15)
    assert pair.forecast.shape_cell == "batch ≥256 tokens"


def test_where_prefills_share_batches_the_leaders_own_progress_counts() -> None:
    """As with vLLM's long_prefill_token_threshold: 96 tokens of a prefill a step."""
    story = warmed_up()
    story.tell(5.0, msgspec.structs.replace(ENGINE, request_token_limit=96))
    story.arrives(10.0, "other", tuple(range(500, 520)))
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.0, "follower", CHAIN[:12])  # 384 tokens: four steps of 2 x 96
    story.scheduled(10.0, "other")
    story.scheduled(10.0, "leader")
    for step in range(4):
        begin, context = 10.0 + 0.2 * step, 96 * step
        assert not scored(story)
        shares = [prefill(name, 96, context) for name in ("other", "leader")]
        story.batch(begin, begin + 0.2, *shares)
    [pair] = scored(story)
    assert pair.state is PairState.PAIRED
    assert pair.actual_seconds == pytest.approx(0.8)
    # The roll-forward lets the follower run beside them as soon as there are seats, as vLLM does.
    assert 0.7 < pair.forecast.p50_seconds < 1.4


def test_a_follower_that_computes_the_blocks_itself_has_no_outcome() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.1, "follower", CHAIN)
    story.scheduled(10.2, "follower")
    story.batch(10.2, 10.7, prefill("follower", 512))
    [pair] = scored(story)
    assert pair.state is PairState.CENSORED
    assert is_empty(story)


def test_a_follower_in_the_batch_that_brings_the_last_block_waits_no_longer_than_it() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN[:10])
    story.arrives(10.1, "follower", CHAIN[:10], prompt=360)
    story.scheduled(10.2, "leader")
    story.scheduled(10.2, "follower", hbm=320)
    story.batch(10.2, 10.6, prefill("leader", 328), prefill("follower", 40, 320))
    [pair] = scored(story)
    assert (pair.state, pair.actual_seconds) == (PairState.PAIRED, pytest.approx(0.5))


def test_an_aborted_leader_leaves_no_outcome_and_its_heir_is_followed_anew() -> None:
    story = warmed_up()
    for number, name in enumerate(("leader", "second", "third")):
        story.arrives(10.0 + 0.1 * number, name, CHAIN[:10])
    story.finished(10.5, "leader", Outcome.ABORTED)
    assert [pair.state for pair in scored(story)] == [PairState.CENSORED] * 2
    # Nobody brings the second its prefix now; it brings the third's.
    story.scheduled(10.6, "second")
    story.batch(10.6, 10.9, prefill("second", 328))
    *_, pair = scored(story)
    assert (pair.forecast.subject, pair.state) == ("third", PairState.PAIRED)
    assert pair.actual_seconds == pytest.approx(0.4)


def test_a_follower_that_ends_first_has_no_outcome() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.1, "follower", CHAIN)
    story.finished(10.2, "follower", Outcome.ABORTED)
    assert [pair.state for pair in scored(story)] == [PairState.CENSORED]
    assert is_empty(story)


def test_a_leader_that_ends_with_its_first_token_has_brought_its_whole_prompt() -> None:
    """News of the end may come before news of the batch."""
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.1, "follower", CHAIN)
    story.scheduled(10.2, "leader")
    story.first_token(10.8, "leader")
    story.finished(10.8, "leader")
    [pair] = scored(story)
    assert (pair.state, pair.actual_seconds) == (PairState.PAIRED, pytest.approx(0.7))


def test_a_load_that_another_request_ordered_is_waited_for() -> None:
    story = warmed_up()
    story.stored(1.0, CHAIN, tier=Tier.HOST)
    story.arrives(10.0, "leader", CHAIN)
    story.loads(1, "leader", decided=10.0, blocks=20)
    story.arrives(10.1, "follower", CHAIN)
    story.tell(10.2, RequestDeferred("follower", 10.2, DeferReason.LOAD))
    story.loaded(1, started=10.0, ready=10.5)
    [pair] = scored(story)
    assert (pair.state, pair.forecast.subject) == (PairState.PAIRED, "follower")
    assert pair.actual_seconds == pytest.approx(0.3)
    assert pair.forecast.shape_cell == "load ≥512 tokens"
    assert is_empty(story)


def test_a_restart_of_the_engine_ends_all_waits() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN)
    story.arrives(10.1, "follower", CHAIN)
    story.tell(11.0, TapStatus("observer-scheduler-0", 0, TapEvent.EPOCH, TapState.LIVE, epoch=1))
    assert [pair.state for pair in scored(story)] == [PairState.CENSORED]
    assert is_empty(story)


def test_followers_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "MAX_AWAITED", 3)
    story = warmed_up()
    for number in range(8):
        story.arrives(10.0 + 0.01 * number, f"r{number}", CHAIN)
    watched = story.pipeline.ranks[0].forecaster.inflight
    assert (len(watched), watched.unwatched) == (3, 4)


def test_a_forecast_beyond_what_is_rolled_says_so_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollforward, "MAX_WORK", 60)
    told: list[Forecast] = []
    story = warmed_up()
    story.pipeline.ranks[0].forecaster.writer._on_forecast = lambda one, _: told.append(one)
    for number in range(40):
        story.arrives(10.0 + 0.01 * number, f"r{number}", range(1000 * number, 1000 * number + 12))
    forecasts = [one for one in told if one.target is Target.TTFT]
    flags = [one.model_version.endswith(EXTRAPOLATED) for one in forecasts]
    assert len(flags) == 40
    assert (flags[0], flags[-1]) == (False, True)
    assert sum(flags) == story.pipeline.ranks[0].forecaster.extrapolated


def test_of_more_requests_than_are_foreseen_nothing_is_said_and_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookahead, "MAX_JOBS", 3)
    story = warmed_up()
    before = story.pipeline.ranks[0].forecaster.unforecast
    for number in range(5):
        story.arrives(10.0 + 0.01 * number, f"r{number}", range(1000 * number, 1000 * number + 12))
    assert story.pipeline.ranks[0].forecaster.unforecast - before == 2


def test_the_report_shows_queue_and_inflight_as_targets_of_their_own() -> None:
    story = warmed_up()
    story.arrives(10.0, "leader", CHAIN[:10])
    story.arrives(10.1, "follower", CHAIN[:10])
    story.scheduled(10.2, "leader")
    story.batch(10.2, 10.6, prefill("leader", 328))
    story.scheduled(10.6, "follower", hbm=320)
    report = build_report(story.pipeline)
    paired = {counts.target: counts.paired for counts in report.targets}
    assert (paired[Target.QUEUE], paired[Target.INFLIGHT_READY]) == (2, 1)
