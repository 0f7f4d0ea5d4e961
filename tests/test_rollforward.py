"""Rolling the engine's policy forward gives the first-token time of queues worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvready.advisor import rollforward
from kvready.advisor.jobs import Job, Limits, Link, Mark, UnderWay
from kvready.advisor.rollforward import first_tokens, roll_forward
from kvready.advisor.scheduler_state import SchedulerState
from kvready.collectors.records import BatchMember, OverlapMode

LIMITS = Limits(batch_tokens=100, batch_requests=2, free_blocks=None)


def seconds_per_token(members: Sequence[BatchMember]) -> float:
    return float(sum(member.new_tokens for member in members))


def one_second_a_step(members: Sequence[BatchMember]) -> float:
    return 1.0


def first_token_seconds(jobs: Sequence[Job], subject: str, *rest: Any, **more: Any) -> float | None:
    return roll_forward(jobs, subject, *rest, **more).first_token_seconds


def job(
    name: str,
    prompt: int,
    found: int = 0,
    output: int = 10,
    usable_after: float = 0.0,
    running: bool = False,
    blocks: int = 0,
    load: float = 0.0,
) -> Job:
    return Job(name, prompt, found, output, load, usable_after, running, blocks, 0)


def test_alone_it_takes_its_own_chunks() -> None:
    assert first_token_seconds([job("a", 250)], "a", LIMITS, one_second_a_step) == 3.0
    assert first_token_seconds([job("a", 250)], "a", LIMITS, seconds_per_token) == 250.0


def test_what_is_found_is_not_computed() -> None:
    assert first_token_seconds([job("a", 250, found=200)], "a", LIMITS, seconds_per_token) == 50.0


def test_it_waits_for_the_prefill_ahead_of_it() -> None:
    # step 1: a 100; step 2: a 50 + b 50; step 3: a decodes 1, b 50
    jobs = [job("a", 150), job("b", 100)]
    assert first_token_seconds(jobs, "b", LIMITS, one_second_a_step) == 3.0


def test_a_seat_is_free_only_when_a_running_request_ends() -> None:
    # two seats: a and b end after 4 tokens each, then c runs
    jobs = [job("a", 10, output=4), job("b", 10, output=4), job("c", 10)]
    assert first_token_seconds(jobs, "c", LIMITS, one_second_a_step) == 5.0


def test_a_loading_request_is_passed_over_until_its_copy_is_ready() -> None:
    jobs = [job("a", 100, found=90, usable_after=5.5), job("b", 100, output=50)]
    assert first_token_seconds(jobs, "b", LIMITS, one_second_a_step) == 1.0
    # at the first step after 5.5 s
    assert first_token_seconds(jobs, "a", LIMITS, one_second_a_step) == 7.0


def test_with_nothing_to_run_time_jumps_to_the_copy() -> None:
    jobs = [job("a", 100, found=90, usable_after=5.5)]
    assert first_token_seconds(jobs, "a", LIMITS, one_second_a_step) == 6.5


def test_a_load_is_ordered_when_the_scan_reaches_it_and_queues_on_the_link() -> None:
    jobs = [job("a", 100, found=90, load=1.5), job("b", 100, found=90, load=1.5)]
    # both ordered at 0, one after the other on the link: usable at 1.5 and 3.0; a runs in whole
    # steps from 1.5, so b joins the one that begins at 3.5
    assert first_token_seconds(jobs, "a", LIMITS, one_second_a_step) == 2.5
    assert first_token_seconds(jobs, "b", LIMITS, one_second_a_step) == 4.5


@pytest.mark.parametrize(("share", "usable"), [(0.0, 1.5), (1.0, 2.5)])
def test_where_copies_wait_for_the_step_a_load_starts_after_it(share: float, usable: float) -> None:
    jobs = [job("r", 1, found=1, output=50, running=True), job("a", 100, found=90, load=1.5)]
    link = Link(step_share=share)
    steps_until_usable = math.ceil(usable)
    found = first_token_seconds(jobs, "a", LIMITS, one_second_a_step, link=link)
    assert found == steps_until_usable + 1


def test_a_busy_link_delays_the_next_load() -> None:
    jobs = [job("a", 100, found=90, load=1.5)]
    link = Link(busy_seconds=2.0)
    assert first_token_seconds(jobs, "a", LIMITS, one_second_a_step, link=link) == 4.5


def test_a_batch_under_way_is_waited_for_and_its_tokens_count() -> None:
    under_way = UnderWay([[BatchMember("a", 100, 0, True)]], elapsed_seconds=0.4)
    jobs = [job("a", 150, running=True), job("b", 40)]
    # a's first 100 tokens end at 0.6, its last 50 and b's 40 share the next step
    found = first_token_seconds(jobs, "b", LIMITS, one_second_a_step, under_way)
    assert found == pytest.approx(1.6)
    done = first_token_seconds([job("a", 100)], "a", LIMITS, one_second_a_step, under_way)
    assert done == pytest.approx(0.6)


def test_nobody_overtakes_a_head_that_lacks_blocks() -> None:
    limits = Limits(batch_tokens=100, batch_requests=8, free_blocks=4)
    running = job("r", 10, found=10, output=3, running=True)
    running.blocks_held = 6
    jobs = [running, job("big", 80, blocks=8), job("small", 10, blocks=1)]
    # r frees 6 blocks after its 3rd token; only then are both admitted
    assert first_token_seconds(jobs, "small", limits, one_second_a_step) == 4.0


def test_a_request_that_never_fits_has_no_forecast() -> None:
    limits = Limits(batch_tokens=100, batch_requests=8, free_blocks=4)
    assert first_token_seconds([job("a", 80, blocks=8)], "a", limits, one_second_a_step) is None


def test_the_queue_given_is_left_as_it_was() -> None:
    jobs = [job("a", 150), job("b", 100)]
    first_token_seconds(jobs, "b", LIMITS, one_second_a_step)
    assert jobs == [job("a", 150), job("b", 100)]


@pytest.mark.parametrize("position", range(5))
def test_later_in_the_queue_is_never_sooner(position: int) -> None:
    others = [job(f"o{n}", 120) for n in range(5)]
    queue = [*others[:position], job("x", 50), *others[position:]]
    ahead = first_token_seconds(queue, "x", LIMITS, seconds_per_token)
    later = [*others[: position + 1], job("x", 50), *others[position + 1 :]]
    behind = first_token_seconds(later, "x", LIMITS, seconds_per_token)
    assert ahead is not None
    assert behind is not None
    assert ahead <= behind


jobs_of_any_kind = st.lists(
    st.builds(
        lambda prompt, found, output, load, blocks: (
            prompt,
            min(found, prompt),
            output,
            load,
            blocks,
        ),
        st.integers(1, 400),
        st.integers(0, 400),
        st.integers(1, 60),
        st.sampled_from([0.0, 0.0, 2.5]),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=8,
)


@given(jobs_of_any_kind, st.data())
def test_skipping_like_steps_gives_the_time_of_taking_each(
    shapes: list[tuple[int, int, int, float, int]], data: st.DataObject
) -> None:
    jobs = [
        job(f"j{n}", prompt, min(found, prompt), output, load=load, blocks=blocks)
        for n, (prompt, found, output, load, blocks) in enumerate(shapes)
    ]
    subject = data.draw(st.sampled_from([job.request_id for job in jobs]))
    limits = Limits(batch_tokens=100, batch_requests=3, free_blocks=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollforward, "MAX_WORK", 10**9)
        skipping = first_token_seconds(jobs, subject, limits, one_second_a_step)
        patch.setattr(SchedulerState, "skip_decodes", lambda *_: 0)
        stepping = first_token_seconds(jobs, subject, limits, one_second_a_step)
    assert skipping == stepping


@given(jobs_of_any_kind, st.integers(0, 3))
def test_all_rolled_at_once_have_their_first_tokens_as_if_rolled_one_by_one(
    shapes: list[tuple[int, int, int, float, int]], under_way: int
) -> None:
    jobs = [
        job(f"j{n}", prompt, min(found, prompt), output, load=load, blocks=blocks)
        for n, (prompt, found, output, load, blocks) in enumerate(shapes)
    ]
    members = [
        BatchMember(one.request_id, min(10, one.prefill_left), one.context_tokens, True)
        for one in jobs[:under_way]
        if one.prefill_left
    ]
    limits = Limits(batch_tokens=100, batch_requests=3, free_blocks=8)
    rest = (limits, seconds_per_token, UnderWay([members] if members else [], 1.0))
    apart = {one.request_id: first_token_seconds(jobs, one.request_id, *rest) for one in jobs}
    known = {name: seconds for name, seconds in apart.items() if seconds is not None}
    at_once = first_tokens(jobs, *rest)
    assert at_once.seconds == known
    for one in jobs:
        name = one.request_id
        for tokens in range(1, one.prompt_tokens + 1, 1 + one.prompt_tokens // 5):
            marked = roll_forward(jobs, name, *rest, mark=Mark(name, tokens)).mark_seconds
            assert at_once.progress.reached_seconds(name, tokens) == marked


deep_queues = st.tuples(
    st.integers(1, 600),  # waiting
    st.integers(0, 60),  # running
    st.integers(1, 2_000),  # tokens of a prompt
    st.integers(1, 300),  # tokens of an output
    st.sampled_from([0.0, 0.5]),  # seconds of a load
    st.integers(0, 40),  # blocks that each needs
)


def deep_queue(shape: tuple[int, int, int, int, float, int]) -> list[Job]:
    waiting, running, prompt, output, load, blocks = shape
    jobs = [job(f"r{n}", prompt, prompt, output + n, running=True) for n in range(running)]
    return jobs + [
        job(f"w{n}", prompt, output=output, load=load, blocks=blocks) for n in range(waiting)
    ]


@settings(max_examples=40)
@given(deep_queues, st.booleans())
def test_a_roll_does_no_more_work_than_its_bound_and_one_step(
    shape: tuple[int, int, int, int, float, int], parks: bool
) -> None:
    overlap = OverlapMode.BEFORE_ADMISSION if parks else OverlapMode.BLOCKING
    limits = Limits(512, 64, free_blocks=2_000, overlap=overlap)
    jobs = deep_queue(shape)
    rolling = SchedulerState(jobs, jobs[-1].request_id, limits, Link(), None)
    rollforward._roll(rolling, seconds_per_token, UnderWay())
    # Per step each request is looked at by the plan, and by the search for the next load or seat.
    assert rolling.work <= rollforward.MAX_WORK + 4 * len(jobs) + 1


@settings(max_examples=40)
@given(deep_queues)
def test_up_to_its_horizon_a_bounded_roll_says_what_an_unbounded_one_says(
    shape: tuple[int, int, int, int, float, int],
) -> None:
    limits = Limits(512, 64, free_blocks=2_000)
    jobs = deep_queue(shape)
    subject = jobs[-1].request_id
    bounded = roll_forward(jobs, subject, limits, seconds_per_token)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollforward, "MAX_WORK", 10**9)
        whole = roll_forward(jobs, subject, limits, seconds_per_token)
    assert whole.horizon_seconds == math.inf
    for told, true in zip(bounded[:3], whole[:3], strict=True):
        if told is None or told <= bounded.horizon_seconds:
            assert told == true or told is None
        elif true is not None:
            assert true >= bounded.horizon_seconds


@pytest.mark.parametrize("waiting", [100, 400])
def test_beyond_its_horizon_it_goes_on_at_the_pace_of_what_was_rolled(waiting: int) -> None:
    limits = Limits(batch_tokens=512, batch_requests=16, free_blocks=None)
    jobs = [job(f"w{n}", 500 + 37 * (n % 11), output=20) for n in range(waiting)]
    names = [one.request_id for one in jobs]
    rolled = roll_forward(jobs, names[-1], limits, one_second_a_step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollforward, "MAX_WORK", 10**9)
        whole = roll_forward(jobs, names[-1], limits, one_second_a_step)
    assert rolled.scheduled_seconds is not None
    assert rolled.first_token_seconds is not None
    assert rolled.horizon_seconds < rolled.scheduled_seconds < rolled.first_token_seconds
    assert rolled.first_token_seconds == pytest.approx(whole.first_token_seconds, rel=0.1)
    together = first_tokens(jobs, limits, one_second_a_step)
    at_once = together.seconds
    assert at_once[names[-1]] == pytest.approx(rolled.first_token_seconds)
    assert [at_once[name] for name in names] == sorted(at_once.values())
    for name in names[::9]:
        mark = Mark(name, 200)
        marked = roll_forward(jobs, name, limits, one_second_a_step, mark=mark).mark_seconds
        assert together.progress.reached_seconds(*mark) == marked
