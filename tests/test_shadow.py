"""What a policy would have saved: both sides from one state, and a placebo that reads zero."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import ENGINE, Story, decode, prefill

from kvready.advisor import shadow as shadow_module
from kvready.advisor.episode_roll import (
    Arrival,
    Decided,
    EpisodeRoll,
    Start,
    as_it_was,
    as_policy,
)
from kvready.advisor.jobs import Job, Limits, Link
from kvready.advisor.playback import play
from kvready.advisor.rollforward import UnderWay
from kvready.advisor.savings import (
    MIN_DELAY_HITS,
    MIN_EPISODES,
    Candidate,
    Difference,
    Saving,
    Savings,
    Verdict,
)
from kvready.advisor.shadow import Compared, Voided
from kvready.advisor.strata import ENGINE_ALONE, Settings
from kvready.advisor.strata_scan import StrataScan
from kvready.collectors.records import BatchMember, Outcome, OverlapMode, RequestFinished

RECORDINGS = Path(__file__).parents[1] / "examples" / "recordings"
HORIZON = 1e6


def seconds_of(members: Sequence[BatchMember]) -> float:
    """A fixed part, and a second per prefilled token."""
    return 0.5 + sum(member.new_tokens for member in members if member.is_prefill)


def job(name: str, prompt: int, **more: float) -> Job:
    found = int(more.get("found", 0))
    load = more.get("load", 0.0)
    return Job(
        name,
        prompt,
        found,
        int(more.get("output", 3)),
        load,
        0.0,
        False,
        int(more.get("blocks", 1)),
        0,
        promised_tokens=found,
        load_tokens=found if load else 0,
        family=int(more.get("family", 0)),
        fetch_seconds=more.get("fetch", 0.0),
    )


@st.composite
def starts(draw: st.DrawFn) -> tuple[Start, list[Arrival]]:
    """Queues with loads, and later arrivals."""
    overlap = draw(st.sampled_from(list(OverlapMode)))
    # Elsewhere a plan is made whole, before one of a family has brought what the next one finds.
    families = 2 if overlap is OverlapMode.BEFORE_ADMISSION else 0
    jobs = [
        job(
            f"r{number}",
            draw(st.integers(2, 60)),
            found=1,
            load=draw(st.sampled_from((0.0, 0.0, 5.0, 40.0))),
            output=draw(st.integers(1, 5)),
            blocks=draw(st.integers(1, 4)),
            family=draw(st.integers(0, families)),
        )
        for number in range(draw(st.integers(1, 7)))
    ]
    limits = Limits(
        batch_tokens=draw(st.sampled_from((16, 64))),
        batch_requests=draw(st.sampled_from((2, 4))),
        free_blocks=draw(st.sampled_from((None, 8))),
        overlap=overlap,
        layers=4,
    )
    present = draw(st.integers(1, len(jobs)))
    late = sorted(draw(st.floats(0.0, 90.0)) for _ in jobs[present:])
    arrivals = [Arrival(at, one) for at, one in zip(late, jobs[present:], strict=True)]
    return Start(jobs[:present], limits, UnderWay(), Link()), arrivals


def script_of(start: Start, arrivals: Sequence[Arrival]) -> list[Decided]:
    """The passes of an engine that does exactly what we think it does."""
    roll = EpisodeRoll(start, arrivals, seconds_of)
    script = []
    while not roll.is_done:
        roll.let_in()
        members = roll.state.plan(roll.now)
        loads = [one.request_id for one in roll.state.loads_ordered]
        if members or loads:
            script.append(Decided(members, loads))
        roll.run(members)
        if not members:
            ready = roll.state.next_ready(roll.now)
            coming = [one.seconds for one in roll.arrivals][:1]
            roll.now = min([*coming, *([] if ready is None else [ready])])
    return script


@given(starts())
def test_the_placebo_of_an_engine_that_is_known_exactly_is_zero(
    case: tuple[Start, list[Arrival]],
) -> None:
    start, arrivals = case
    actual, _ = as_it_was(start, arrivals, seconds_of, HORIZON, script_of(start, arrivals))
    placebo = as_policy(start, arrivals, seconds_of, HORIZON, None)
    assert placebo is not None
    assert actual.whole
    assert placebo.whole
    assert actual.first_token_seconds == pytest.approx(placebo.first_token_seconds)
    assert actual.busy_seconds == pytest.approx(placebo.busy_seconds)


@given(starts())
def test_strata_with_every_policy_off_is_the_engine(case: tuple[Start, list[Arrival]]) -> None:
    start, arrivals = case
    alone = as_policy(start, arrivals, seconds_of, HORIZON, StrataScan(ENGINE_ALONE, start.limits))
    engine = as_policy(start, arrivals, seconds_of, HORIZON, None)
    assert alone is not None
    assert engine is not None
    assert alone.first_token_seconds == pytest.approx(engine.first_token_seconds)
    assert alone.busy_seconds == pytest.approx(engine.busy_seconds)


def test_loads_that_start_under_anothers_compute_come_sooner() -> None:
    # one seat: FCFS computes `long` for 40.5 s and then starts the load of `hit`
    jobs = [job("long", 40), job("hit", 10, found=9, load=30.0)]
    limits = Limits(batch_tokens=40, batch_requests=2, free_blocks=None)
    start = Start(jobs, limits, UnderWay(), Link())
    engine = as_policy(start, [], seconds_of, HORIZON, None)
    balanced = as_policy(start, [], seconds_of, HORIZON, StrataScan(Settings(dedup=False), limits))
    assert engine is not None
    assert balanced is not None
    assert balanced.first_token_seconds["long"] == engine.first_token_seconds["long"] == 40.5
    # the load is ordered with the first batch, and ready before that ends
    assert balanced.first_token_seconds["hit"] == 40.5 + 1.5
    assert engine.first_token_seconds["hit"] == 40.5 + 30.5 + 1.0


def test_a_deferred_follower_finds_what_its_leader_computed() -> None:
    follower = job("follower", 410)
    follower.leader, follower.promised_tokens = "leader", 400
    jobs = [job("leader", 400), follower]
    limits = Limits(batch_tokens=300, batch_requests=4, free_blocks=None)
    start = Start(jobs, limits, UnderWay(), Link())
    engine = as_policy(start, [], seconds_of, HORIZON, None)
    deferring = as_policy(
        start, [], seconds_of, HORIZON, StrataScan(Settings(balance=False), limits)
    )
    assert engine is not None
    assert deferring is not None
    # FCFS lets the follower in with the leader's last chunk, which it then finds as well
    assert deferring.first_token_seconds["follower"] <= engine.first_token_seconds["follower"]
    assert deferring.busy_seconds <= engine.busy_seconds


def saved(savings: Savings, *, delay_hits: int = 0, share: float = 1.0) -> dict[str, Saving]:
    return {one.candidate: one for one in savings.savings(0.1, delay_hits, share)}


def test_nothing_is_shown_until_the_placebo_reads_zero() -> None:
    savings = Savings()
    for _ in range(MIN_EPISODES):
        savings.add(Candidate.BALANCE, Difference(10.0, 1.0, 0.0, 0.0, 4))
    assert saved(savings)["engine"].verdict is Verdict.NO_EPISODES
    assert saved(savings)["balance"].verdict is Verdict.UNPROVEN
    for number in range(MIN_EPISODES):
        off = 0.5 - number % 2
        savings.add(Candidate.PLACEBO, Difference(off, 0.0, off, 0.0, 4))
    found = saved(savings)
    assert found["engine"].ttft.covers_zero
    assert found["balance"].verdict is Verdict.SHOWN
    assert found["dedup"].verdict is Verdict.NO_EPISODES
    bounds = found["balance"].ttft
    # 1.645 times the root of 0.5 ** 2 (placebo) and (0.1 * 10) ** 2 (model), of each episode
    reach = 1.645 * (MIN_EPISODES * (0.25 + 1.0)) ** 0.5
    assert bounds.high_seconds == pytest.approx(10.0 * MIN_EPISODES + reach)
    assert bounds.low_seconds == pytest.approx(10.0 * MIN_EPISODES - reach)
    for number in range(60):
        off = 3.0 + number % 2
        savings.add(Candidate.PLACEBO, Difference(off, 0.0, off, 0.0, 4))
    assert saved(savings)["balance"].verdict is Verdict.UNPROVEN


def test_an_episode_is_as_wrong_as_its_own_placebo() -> None:
    savings = Savings()
    for _ in range(MIN_EPISODES):
        savings.add(Candidate.PLACEBO, Difference(0.0, 0.0, 0.0, 0.0, 4))
    savings.add(Candidate.BALANCE, Difference(1.0, 0.0, 2.0, 0.0, 4))
    found = saved(savings)["balance"]
    assert found.verdict is Verdict.TOO_FEW
    assert found.ttft.covers_zero


def test_an_engine_that_shares_by_itself_is_native() -> None:
    savings = Savings()
    savings.add(Candidate.DEDUP, Difference(1.0, 0.0, 0.0, 0.0, 2))
    assert saved(savings, delay_hits=MIN_DELAY_HITS, share=0.0)["dedup"].verdict is Verdict.NATIVE
    assert saved(savings, delay_hits=MIN_DELAY_HITS)["dedup"].verdict is Verdict.UNPROVEN
    assert saved(savings, delay_hits=1, share=0.0)["dedup"].verdict is Verdict.UNPROVEN


def test_what_would_save_surely_is_not_native_however_little_is_computed_twice() -> None:
    """Behind a long queue an engine that does not share still computes little twice."""
    savings = Savings()
    for _ in range(MIN_EPISODES):
        savings.add(Candidate.PLACEBO, Difference(0.0, 0.0, 0.0, 0.0, 4))
        savings.add(Candidate.DEDUP, Difference(5.0, 0.0, 0.0, 0.0, 4))
    found = saved(savings, delay_hits=MIN_DELAY_HITS, share=0.0)["dedup"]
    assert found.verdict is Verdict.SHOWN
    for _ in range(60):
        savings.add(Candidate.DEDUP, Difference(-5.0, 0.0, 0.0, 0.0, 4))
    assert saved(savings, delay_hits=MIN_DELAY_HITS, share=0.0)["dedup"].verdict is Verdict.NATIVE


def follower_story() -> Story:
    """A leader computes in chunks; its follower is let in beside it all the same."""
    story = Story()
    story.tell(0.5, msgspec.structs.replace(ENGINE, request_token_limit=256))
    chain = tuple(range(100, 140))
    story.arrives(1.0, "leader", chain)
    story.arrives(1.0, "follower", (*chain, 999))
    story.batch(1.0, 1.5, prefill("leader", 256), prefill("follower", 256))
    return story


def test_a_batch_that_strata_would_have_formed_otherwise_begins_an_episode() -> None:
    story = follower_story()
    totals = story.pipeline.shadow
    assert totals.compared[Compared.DIFFERENT] == 1
    assert totals.intended.batches == 1
    assert totals.intended.compute_seconds > 0.0
    story.batch(1.5, 2.0, prefill("leader", 512, 256))
    assert totals.compared[Compared.IN_EPISODE] == 1


def test_what_was_computed_twice_is_what_dedup_would_have_saved() -> None:
    story = follower_story()
    for step in range(1, 5):
        begin = 1.0 + 0.5 * step
        both = (prefill(name, 256, 256 * step) for name in ("leader", "follower"))
        story.batch(begin, begin + 0.5, *both)
    story.batch(3.5, 3.7, prefill("leader", 8, 1_280), prefill("follower", 40, 1_280))
    story.first_token(3.7, "leader")
    story.first_token(3.7, "follower")
    story.batch(3.7, 3.8, decode("leader", 1_288), decode("follower", 1_320))
    savings = story.pipeline.shadow.savings
    dedup, balance = saved(savings)["dedup"], saved(savings)["balance"]
    assert (dedup.episodes, dedup.requests, balance.episodes) == (1, 2, 0)
    assert dedup.verdict is Verdict.UNPROVEN
    # 1,280 tokens less to compute, at what the model says of a token by then
    assert dedup.busy.seconds > 0.3 * 2.7
    assert dedup.ttft.seconds > 0.0


def test_an_episode_with_an_aborted_request_comes_to_nothing() -> None:
    story = follower_story()
    story.tell(1.6, RequestFinished("follower", 1.6, Outcome.ABORTED))
    totals = story.pipeline.shadow
    assert totals.voided == {Voided.ABORTED: 1}
    assert all(not one.episodes for one in totals.savings.savings(0.1, 0, 1.0))


def test_an_episode_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "MAX_TAPE_BATCHES", 3)
    story = follower_story()
    for number in range(4):
        begin = 1.5 + 0.01 * number
        story.batch(begin, begin + 0.01, decode("leader", 900))
    assert story.pipeline.shadow.voided == {Voided.TOO_LARGE: 1}


def test_of_too_many_requests_no_batch_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "MAX_TAPE_REQUESTS", 1)
    assert follower_story().pipeline.shadow.compared == {Compared.TOO_MANY: 1}


def test_nobody_waits_for_a_load_or_a_leader_so_there_is_no_choice() -> None:
    story = Story()
    story.arrives(1.0, "a", (1, 2, 3))
    story.batch(1.0, 1.5, prefill("a", 104))
    assert story.pipeline.shadow.compared == {Compared.NO_CHOICE: 1}
    assert ENGINE.overlap is OverlapMode.BEFORE_ADMISSION


@pytest.mark.parametrize("name", ["vllm-0.32-cpu-kv-heavy", "vllm-0.32-cpu-kv-heavy-movers"])
def test_a_real_engine_decides_as_we_think_and_its_placebo_saves_next_to_nothing(name: str) -> None:
    pipeline = play(RECORDINGS / f"{name}.kvr").pipeline
    totals = pipeline.shadow
    judged = totals.compared[Compared.SAME] + totals.compared[Compared.DIFFERENT]
    assert totals.compared[Compared.SAME] / judged > 0.95
    placebo = saved(totals.savings)["engine"]
    assert placebo.verdict is not Verdict.UNPROVEN
    a_step = pipeline.ranks[0].steps.median_step_seconds
    assert abs(placebo.ttft.seconds) < placebo.requests * a_step
