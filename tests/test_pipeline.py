"""Stories with a known meaning, told record by record: the definitions of hits, waits and pairs."""

from __future__ import annotations

import math

import msgspec
import pytest
from story import BLOCK_TOKENS, ENGINE, WALL_OFFSET, Story, decode, prefill

from kvready.advisor import requests as requests_module
from kvready.advisor.ledger import PairState, Target
from kvready.advisor.report import build_report
from kvready.advisor.waits import WaitState
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    DeferReason,
    Outcome,
    RequestDeferred,
    RequestPreempted,
    RequestScheduled,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
)

CHAIN = tuple(range(101, 111))  # ten blocks of one document


def test_a_hit_in_hbm_is_in_time() -> None:
    story = Story()
    story.stored(0.1, CHAIN)
    story.arrives(1.0, "a", CHAIN)
    story.scheduled(1.0, "a", hbm=320)
    story.batch(1.0, 1.1, prefill("a", 8, 320))
    story.first_token(1.1, "a")
    totals = story.pipeline.totals
    assert totals.nominal_hit_tokens == totals.in_time_hit_tokens == 320
    assert (totals.late_hits, totals.lost_hit_tokens) == (0, 0)


def warmed_up() -> Story:
    """An engine that was seen computing 16 tokens in 10 ms, with a document in its host tier."""
    story = Story()
    story.stored(0.1, CHAIN, tier=Tier.HOST)
    for n in range(64):
        story.batch(0.2 + n * 0.01, 0.21 + n * 0.01, prefill("warm", 16))
    return story


@pytest.mark.parametrize(
    ("budget_used", "exposed"), [(512, 0.1), (511, 0.3)], ids=["no room", "room"]
)
def test_a_load_is_hidden_only_behind_batches_that_had_no_room(
    budget_used: int, exposed: float
) -> None:
    story = warmed_up()
    story.arrives(2.0, "a", CHAIN)
    story.loads(1, "a", decided=2.0, blocks=10)
    story.batch(2.0, 2.2, prefill("other", budget_used))  # then nothing runs until 2.3
    story.loaded(1, started=2.0, ready=2.3)
    story.scheduled(2.3, "a", loaded=320)
    story.first_token(2.4, "a")
    totals = story.pipeline.totals
    assert totals.exposed_load_seconds == pytest.approx(exposed)
    assert totals.hidden_load_seconds == pytest.approx(0.3 - exposed)


def test_an_exposed_load_longer_than_a_step_makes_the_hit_late() -> None:
    story = warmed_up()
    story.arrives(2.0, "a", CHAIN)
    story.loads(1, "a", decided=2.0, blocks=10)
    story.loaded(1, started=2.0, ready=2.05)
    story.scheduled(2.06, "a", loaded=320)
    story.batch(2.06, 2.07, prefill("a", 8, 320))
    story.first_token(2.07, "a")
    totals = story.pipeline.totals
    assert totals.exposed_load_seconds == pytest.approx(0.05)
    assert (totals.late_hits, totals.late_hit_tokens, totals.in_time_hit_tokens) == (1, 320, 0)
    # 16 tokens cost 10 ms, so computing 320 again would have cost about 200 ms
    assert totals.worthwhile_hit_tokens == 320
    assert totals.wait_seconds[WaitState.LOAD] == pytest.approx(0.05)
    assert totals.wait_seconds[WaitState.READY] == pytest.approx(0.01)
    assert totals.wait_seconds[WaitState.PREFILL] == pytest.approx(0.01)


def test_a_nominal_hit_that_is_computed_all_the_same_is_lost() -> None:
    story = Story()
    story.stored(0.1, CHAIN, tier=Tier.HOST)
    story.arrives(1.0, "a", CHAIN)
    story.scheduled(1.0, "a", hbm=0)
    story.batch(1.0, 1.1, prefill("a", 328))
    story.first_token(1.1, "a")
    assert story.pipeline.totals.lost_hit_tokens == 320
    assert story.pipeline.totals.in_time_hit_tokens == 0


def test_the_last_token_of_a_prompt_is_never_found() -> None:
    story = Story()
    story.stored(0.1, CHAIN)
    story.arrives(1.0, "a", CHAIN, prompt=10 * BLOCK_TOKENS)
    story.scheduled(1.0, "a", hbm=9 * BLOCK_TOKENS)
    assert story.pipeline.totals.nominal_hit_tokens == 9 * BLOCK_TOKENS


@pytest.mark.parametrize(("leader_runs", "kind"), [(True, "in_flight"), (False, "in_queue")])
def test_a_prefix_asked_for_before_it_exists_is_a_delay_hit(leader_runs: bool, kind: str) -> None:
    story = Story()
    story.arrives(1.0, "leader", CHAIN)
    if leader_runs:
        story.scheduled(1.0, "leader")
    story.arrives(1.1, "follower", CHAIN)
    totals = story.pipeline.totals
    assert totals.delay_hits[kind] == 1
    assert sum(totals.delay_hits.values()) == 1
    assert totals.delay_hit_tokens == 320


def test_under_100_shared_tokens_are_no_delay_hit() -> None:
    story = Story()
    story.arrives(1.0, "leader", CHAIN)
    story.arrives(1.1, "follower", (*CHAIN[:3], 7, 8))  # 96 tokens
    assert sum(story.pipeline.totals.delay_hits.values()) == 0


def test_a_leader_that_is_aborted_promises_nothing() -> None:
    story = Story()
    story.arrives(1.0, "leader", CHAIN)
    story.finished(1.05, "leader", Outcome.ABORTED)
    story.arrives(1.1, "follower", CHAIN)
    assert sum(story.pipeline.totals.delay_hits.values()) == 0


def test_an_aborted_leaders_promise_falls_to_its_first_follower() -> None:
    story = Story()
    story.arrives(1.0, "leader", CHAIN)
    story.arrives(1.1, "heir", CHAIN)
    story.finished(1.2, "leader", Outcome.ABORTED)
    story.arrives(1.3, "follower", CHAIN)
    assert sum(story.pipeline.totals.delay_hits.values()) == 2


def test_the_block_of_the_last_token_is_no_delay_hit_either() -> None:
    story = Story()
    story.arrives(1.0, "leader", CHAIN[:4], prompt=4 * BLOCK_TOKENS)
    story.arrives(1.1, "follower", CHAIN[:4], prompt=4 * BLOCK_TOKENS)  # 96 tokens can be found
    assert sum(story.pipeline.totals.delay_hits.values()) == 0


@pytest.mark.parametrize("connected", [False, True], ids=["never came", "has a gap"])
def test_without_a_whole_kv_tap_residency_is_unknown_not_zero(connected: bool) -> None:
    story = Story(kv_tap=connected)
    if connected:
        story.tell(0.2, TapStatus("e", 0, TapEvent.GAP, TapState.DEGRADED), tap="e")
    story.arrives(1.0, "a", CHAIN)
    story.scheduled(1.0, "a", hbm=320)
    story.first_token(1.1, "a")
    hits = build_report(story.pipeline).hits
    assert hits.unknown_residency_requests == 1
    assert hits.in_time_ratio is None
    assert hits.nominal_ratio is None


def test_a_request_forgotten_at_the_bound_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "MAX_LIVE_REQUESTS", 4)
    story = Story()
    for n in range(10):
        story.arrives(1.0 + n, f"r{n}", tuple(range(1_000 * n, 1_000 * n + 10)))
    rank = story.pipeline.ranks[0]
    assert len(rank.requests.live) == 4
    assert len(rank.hits.pending) == 40
    assert story.pipeline.ledger.open_count == 2 * 4  # queue and first token


def test_blocks_computed_by_two_requests_at_once_are_counted_once_as_duplicates() -> None:
    story = Story()
    for name in ("a", "b"):
        story.arrives(1.0, name, CHAIN)
        story.scheduled(1.0, name)
    story.batch(1.0, 1.5, prefill("a", 160), prefill("b", 160))
    assert story.pipeline.totals.duplicate_prefill_tokens == 160
    story.stored(1.5, CHAIN[:5])
    story.stored(1.5, CHAIN[:5])
    story.batch(1.5, 2.0, prefill("a", 168, 160))
    assert story.pipeline.totals.duplicate_prefill_tokens == 160


def test_a_batch_is_not_judged_by_its_own_stores_arriving_first() -> None:
    """The two taps are two sockets: a batch's own stores may be ingested before its plan."""
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.scheduled(1.0, "a")
    story.stored(1.4, CHAIN)  # published after the batch below was planned
    story.batch(1.0, 1.5, prefill("a", 328))
    assert story.pipeline.totals.duplicate_prefill_tokens == 0


def test_every_load_batch_and_request_is_forecast_and_paired() -> None:
    story = Story()
    story.stored(0.1, CHAIN, tier=Tier.HOST)
    story.arrives(1.0, "a", CHAIN)
    story.loads(1, "a", decided=1.0, blocks=10)
    story.loaded(1, started=1.0, ready=1.2)
    story.scheduled(1.2, "a", loaded=320)
    story.batch(1.2, 1.3, prefill("a", 8, 320))
    story.first_token(1.3, "a")
    states = {(pair.forecast.target, pair.state): pair for pair in story.pairs}
    assert {target for target, _ in states} == set(Target) - {Target.FETCH, Target.INFLIGHT_READY}
    assert all(pair.state is PairState.PAIRED for pair in story.pairs)
    actual = {pair.forecast.target: pair.actual_seconds for pair in story.pairs}
    assert actual[Target.LOAD] == actual[Target.QUEUE] == pytest.approx(0.2)
    assert actual[Target.BATCH_COMPUTE] == pytest.approx(0.1)
    assert actual[Target.PREFILL] == pytest.approx(0.1)
    assert actual[Target.TTFT] == pytest.approx(0.3)


def test_a_prefix_on_disk_is_expected_later_than_one_in_host_memory_by_its_fetch() -> None:
    expected = {}
    for tier in (Tier.HOST, Tier.DISK):
        story = Story()
        story.stored(0.1, CHAIN, tier=tier)
        story.arrives(1.0, "a", CHAIN)
        story.scheduled(1.2, "a", loaded=320)
        story.first_token(1.3, "a")
        [ttft] = [p.forecast for p in story.pairs if p.forecast.target is Target.TTFT]
        expected[tier] = ttft.p50_seconds
        fetch = story.pipeline.ranks[0].forecaster.mover.model(Tier.DISK, Tier.HOST)
    tokens = len(CHAIN) * BLOCK_TOKENS
    seconds = fetch.service_seconds(tokens * ENGINE.kv_bytes_per_token, len(CHAIN))
    assert expected[Tier.DISK] - expected[Tier.HOST] >= 0.9 * seconds


def test_a_followers_late_hit_is_worthwhile_by_what_it_would_have_computed() -> None:
    story = warmed_up()
    story.arrives(2.0, "leader", CHAIN)
    story.loads(1, "leader", decided=2.0, blocks=10)
    story.arrives(2.0, "follower", CHAIN)
    story.tell(2.0, RequestDeferred("follower", 2.0, DeferReason.LOAD))
    story.loaded(1, started=2.0, ready=2.05)
    for name, loaded in (("leader", 320), ("follower", 0)):
        story.scheduled(2.06, name, hbm=320 - loaded, loaded=loaded)
        story.first_token(2.08, name)
    assert story.pipeline.totals.late_hits == story.pipeline.totals.worthwhile_hits == 2


def test_a_follower_that_waits_for_anothers_load_waits_in_load() -> None:
    story = Story()
    story.stored(0.1, CHAIN, tier=Tier.HOST)
    story.arrives(1.0, "leader", CHAIN)
    story.loads(1, "leader", decided=1.0, blocks=10)
    story.arrives(1.1, "follower", CHAIN)
    story.tell(1.1, RequestDeferred("follower", 1.1, DeferReason.LOAD))
    story.loaded(1, started=1.0, ready=1.5)
    story.scheduled(1.6, "follower", hbm=320)
    story.first_token(1.7, "follower")
    waits = story.pipeline.totals.wait_seconds
    assert waits[WaitState.LOAD] == pytest.approx(0.4)
    assert waits[WaitState.READY] == pytest.approx(0.1)


def test_a_copy_whose_end_arrives_before_its_order_is_closed_and_not_scored() -> None:
    """The mover's socket and the scheduler's are not ordered against each other."""
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.loaded(1, started=1.001, ready=1.003)
    story.loads(1, "a", decided=1.0, blocks=1, ingested=1.004)
    assert not story.pipeline.ranks[0].requests.copies
    [pair] = [pair for pair in story.pairs if pair.forecast.target is Target.LOAD]
    assert pair.state is PairState.LATE


def test_a_copy_that_never_ends_is_forgotten() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.loads(1, "a", decided=1.0, blocks=1)
    for second in range(2, 70):
        story.tell(float(second), Tick(float(second), WALL_OFFSET + second), "recorder")
    assert not story.pipeline.ranks[0].requests.copies
    assert story.pipeline.ledger.counts[Target.LOAD, PairState.CENSORED] == 1


def test_an_aborted_request_leaves_censored_forecasts() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.finished(1.2, "a", Outcome.ABORTED)
    assert [(p.forecast.target, p.state) for p in story.pairs] == [
        (Target.TTFT, PairState.CENSORED),
        (Target.QUEUE, PairState.CENSORED),
    ]
    assert story.pipeline.totals.requests[Outcome.ABORTED] == 1


def test_a_preempted_request_waits_in_the_queue_again() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.scheduled(1.0, "a")
    story.tell(1.5, RequestPreempted("a", 1.5))
    story.scheduled(2.5, "a")
    story.first_token(3.0, "a")
    waits = story.pipeline.totals.wait_seconds
    assert waits[WaitState.PREFILL] == pytest.approx(1.0)
    assert waits[WaitState.QUEUE] == pytest.approx(1.0)


def test_an_engine_restart_ends_what_was_under_way_without_an_outcome() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.loads(1, "a", decided=1.0, blocks=10)
    story.tell(2.0, TapStatus("observer-scheduler-0", 0, TapEvent.EPOCH, TapState.LIVE, epoch=1))
    assert {pair.state for pair in story.pairs} == {PairState.CENSORED}
    assert not story.pipeline.ranks[0].requests.live
    assert not story.pipeline.ranks[0].requests.copies
    assert story.pipeline.ledger.open_count == 0


@pytest.mark.parametrize("other_tap", ["e", "observer-mover-0"])
def test_a_restart_noticed_late_by_another_tap_spares_the_new_engines_requests(
    other_tap: str,
) -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.tell(1.1, TapStatus(other_tap, 0, TapEvent.EPOCH, TapState.LIVE, epoch=1))
    story.first_token(1.3, "a")
    assert [pair.state for pair in story.pairs] == [PairState.PAIRED]


def test_a_request_whose_end_was_lost_is_forgotten_once_batches_no_longer_name_it() -> None:
    story = Story()
    for name in ("ended unseen", "alive"):
        story.arrives(1.0, name, ())
        story.scheduled(1.0, name)
    story.tell(1.5, TapStatus("observer-scheduler-0", 0, TapEvent.GAP, TapState.DEGRADED))
    for n in range(16):
        story.batch(2.0 + n, 2.5 + n, decode("alive", 8 + n))
    assert list(story.pipeline.ranks[0].requests.live) == ["alive"]


def test_a_batch_whose_end_was_lost_is_not_under_way_for_ever() -> None:
    story = Story()
    story.tell(1.0, BatchPlanned(7, 1.0, WALL_OFFSET + 1.0, (decode("a", 8),)))
    story.tell(1.1, BatchPlanned(8, 1.1, WALL_OFFSET + 1.1, (decode("a", 9),)))
    story.tell(1.2, BatchFinished(8, 1.2, 0.1))
    states = {(p.forecast.subject, p.state) for p in story.pairs}
    assert states == {("7", PairState.CENSORED), ("8", PairState.PAIRED)}
    assert story.pipeline.ledger.open_count == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_a_record_with_an_impossible_time_is_refused_and_counted(bad: float) -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.first_token(bad, "a")
    assert story.pipeline.refused_records == 1
    story.first_token(1.2, "a")
    assert [pair.state for pair in story.pairs] == [PairState.PAIRED]


def test_a_first_token_before_its_arrival_is_not_scored() -> None:
    story = Story()
    story.arrives(1.0, "a", CHAIN)
    story.first_token(0.5, "a")
    assert [pair.state for pair in story.pairs] == [PairState.CENSORED]


def test_an_engine_of_another_kv_state_gets_no_number() -> None:
    story = Story()
    story.tell(0.5, msgspec.structs.replace(ENGINE, supported_kv_state=False))
    story.stored(0.6, CHAIN)
    story.arrives(1.0, "a", CHAIN)
    story.scheduled(1.0, "a", hbm=320)
    story.batch(1.0, 1.1, prefill("a", 8, 320))
    story.first_token(1.1, "a")
    assert story.pairs == []
    assert build_report(story.pipeline).hits.nominal_ratio is None


def test_a_load_that_free_blocks_would_have_held_up_anyway_is_hidden() -> None:
    story = warmed_up()
    story.arrives(2.0, "a", CHAIN)  # 8 tokens to compute: one block
    story.tell(2.0, BatchPlanned(900, 2.0, WALL_OFFSET + 2.0, (decode("b", 9),), free_blocks=0))
    story.loads(1, "a", decided=2.0, blocks=10)
    story.loaded(1, started=2.0, ready=2.3)
    story.scheduled(2.3, "a", loaded=320)
    story.first_token(2.4, "a")
    assert story.pipeline.totals.hidden_load_seconds == pytest.approx(0.3)


def test_the_prefill_forecast_counts_from_dispatch_however_late_the_news() -> None:
    def p50(lag: float) -> float:
        story = warmed_up()
        story.arrives(2.0, "a", CHAIN)
        story.tell(2.0 + lag, RequestScheduled("a", 2.0, 0))
        story.first_token(9.0, "a")
        [pair] = [pair for pair in story.pairs if pair.forecast.target is Target.PREFILL]
        return pair.forecast.p50_seconds

    assert p50(0.05) == pytest.approx(p50(0.0) + 0.05)


def test_forecasts_made_while_a_gap_is_open_say_so() -> None:
    story = Story()
    story.tell(
        0.5,
        TapStatus("e", 0, TapEvent.GAP, TapState.DEGRADED, first_missing=1, last_missing=2),
        tap="e",
    )
    story.arrives(1.0, "a", CHAIN)
    story.first_token(1.3, "a")
    assert [pair.forecast.leans_on_degraded for pair in story.pairs] == [True]


def test_the_same_records_give_the_same_pairs() -> None:
    def tell() -> Story:
        story = Story()
        story.stored(0.1, CHAIN, tier=Tier.HOST)
        for n in range(40):
            at = 1.0 + n * 0.1
            story.arrives(at, f"r{n}", CHAIN)
            story.loads(n, f"r{n}", at, 10)
            story.loaded(n, at, at + 0.01 + 0.0001 * (n % 7))
            story.scheduled(at + 0.02, f"r{n}", loaded=320)
            story.batch(at + 0.02, at + 0.05 + 0.001 * (n % 5), prefill(f"r{n}", 8, 320))
            story.first_token(at + 0.06, f"r{n}")
            story.finished(at + 0.07, f"r{n}")
        return story

    assert tell().pairs == tell().pairs
