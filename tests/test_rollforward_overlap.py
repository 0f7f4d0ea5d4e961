"""Engines that overlap loads with compute, and prefixes that others bring, rolled forward."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.jobs import Job, Limits, Link, Mark, UnderWay
from kvready.advisor.rollforward import roll_forward
from kvready.collectors.records import BatchMember, OverlapMode

LAYERS = 4
BLOCK = 10


def seconds_per_token(members: Sequence[BatchMember]) -> float:
    return float(sum(member.new_tokens for member in members))


def one_second_a_step(members: Sequence[BatchMember]) -> float:
    return 1.0


def limits(mode: OverlapMode = OverlapMode.BEFORE_ADMISSION, **more: int) -> Limits:
    bounds = {"batch_tokens": 100, "batch_requests": 8, "block_tokens": BLOCK, "layers": LAYERS}
    return Limits(free_blocks=None, overlap=mode, **(bounds | more))


def job(name: str, prompt: int, found: int = 0, load: float = 0.0, **more: object) -> Job:
    whole: dict[str, object] = {
        "request_id": name,
        "prompt_tokens": prompt,
        "context_tokens": found,
        "output_left": 10,
        "load_seconds": load,
        "usable_after_seconds": 0.0,
        "running": False,
        "blocks_needed": 0,
        "blocks_held": 0,
    }
    return Job(**(whole | more))  # type: ignore[arg-type]


def test_the_queue_ends_when_it_is_first_scheduled() -> None:
    # a's two chunks take a step each; b shares the second with it
    rolled = roll_forward([job("a", 150), job("b", 40)], "b", limits(), one_second_a_step)
    assert (rolled.scheduled_seconds, rolled.first_token_seconds) == (1.0, 2.0)


def test_a_request_that_runs_already_has_no_queue_before_it() -> None:
    running = job("a", 150, running=True)
    assert roll_forward([running], "a", limits(), one_second_a_step).scheduled_seconds == 0.0


def test_a_mark_is_reached_when_the_step_ends_that_computes_it() -> None:
    jobs = [job("a", 250), job("b", 40)]
    for tokens, reached in ((1, 1.0), (100, 1.0), (101, 2.0), (250, 3.0)):
        rolled = roll_forward(jobs, "b", limits(), one_second_a_step, mark=Mark("a", tokens))
        assert rolled.mark_seconds == reached


def test_a_mark_behind_a_running_request_is_reached_already() -> None:
    jobs = [job("a", 250, found=60, running=True), job("b", 40)]
    rolled = roll_forward(jobs, "b", limits(), one_second_a_step, mark=Mark("a", 60))
    assert rolled.mark_seconds == 0.0


def test_a_mark_is_reached_by_a_batch_under_way() -> None:
    under_way = UnderWay([[BatchMember("a", 100, 0, True)]], elapsed_seconds=0.4)
    jobs = [job("a", 150, running=True), job("b", 40)]
    rolled = roll_forward(jobs, "b", limits(), one_second_a_step, under_way, mark=Mark("a", 90))
    assert rolled.mark_seconds == pytest.approx(0.6)


def test_a_follower_finds_what_its_leader_has_computed_by_then() -> None:
    """One prefill may take 40 of 100 tokens a step, so that followers run beside their leader."""
    chunked = limits(request_tokens=40)
    leader = job("a", 200)
    follower = job("b", 210, leader="a", promised_tokens=200)
    # Step 1: a 40; b finds 40 of them and computes 40 to 80. Steps 2 to 5: 40 each, b ends at 210
    # after (210 - 40) / 40 = 5 steps.
    rolled = roll_forward([leader, follower], "b", chunked, one_second_a_step, mark=Mark("a", 200))
    assert rolled[:3] == (0.0, 5.0, 5.0)
    # Without the bound the leader takes all, and the follower comes when its prefix is whole.
    rolled = roll_forward([leader, follower], "b", limits(), one_second_a_step, mark=Mark("a", 200))
    assert rolled[:3] == (2.0, 3.0, 2.0)


def test_a_follower_finds_whole_blocks_only() -> None:
    leader = job("a", 75, request_id="a")
    follower = job("b", 100, leader="a", promised_tokens=70)
    # a takes 75 of 100 tokens, b finds 70 and computes 25 of its 30: a second step for the rest
    rolled = roll_forward([leader, follower], "b", limits(), one_second_a_step)
    assert rolled.first_token_seconds == 2.0


def test_alone_a_prefill_may_take_the_whole_batch() -> None:
    rolled = roll_forward([job("a", 100)], "a", limits(request_tokens=40), one_second_a_step)
    assert rolled.first_token_seconds == 1.0


def test_what_a_leader_that_is_gone_promised_is_there() -> None:
    follower = job("b", 100, leader="a", promised_tokens=90)
    rolled = roll_forward([follower], "b", limits(), seconds_per_token)
    assert rolled.first_token_seconds == 10.0


@pytest.mark.parametrize(
    ("mode", "ends"),
    [
        # a loads for 8 s and computes 10 tokens; r decodes meanwhile, a token and second a step
        (OverlapMode.BEFORE_ADMISSION, 8.0 + 11.0),
        (OverlapMode.BLOCKING, 8.0 + 11.0),
        (OverlapMode.LAYERWISE, 8.0 / LAYERS + 11.0),
    ],
)
def test_each_overlap_mode_has_its_own_batch_time(mode: OverlapMode, ends: float) -> None:
    running = job("r", 1, found=1, running=True, output_left=50)
    jobs = [running, job("a", 100, found=90, load=8.0)]
    rolled = roll_forward(jobs, "a", limits(mode), seconds_per_token)
    assert rolled.first_token_seconds == ends
    parked = mode is OverlapMode.BEFORE_ADMISSION
    assert rolled.scheduled_seconds == (8.0 if parked else 0.0)


def test_others_stall_with_a_batch_whose_load_is_slow() -> None:
    jobs = [job("a", 100, found=90, load=40.0), job("b", 10)]
    for mode, stalled in (
        (OverlapMode.BEFORE_ADMISSION, 10.0),
        (OverlapMode.BLOCKING, 60.0),
        (OverlapMode.LAYERWISE, 40.0 + 20.0 / LAYERS),
    ):
        rolled = roll_forward(jobs, "b", limits(mode), seconds_per_token)
        assert rolled.first_token_seconds == stalled


def test_a_batch_under_way_waits_for_copies_ordered_before_it() -> None:
    under_way = UnderWay([[BatchMember("a", 10, 90, True)]], elapsed_seconds=2.0)
    jobs = [job("a", 100, found=90, running=True, usable_after_seconds=6.0)]
    ends = {
        # planned 2 s ago, loaded after 8 s in all, ten seconds of compute
        OverlapMode.BLOCKING: 6.0 + 10.0,
        OverlapMode.LAYERWISE: 8.0 / LAYERS + 10.0 - 2.0,
    }
    for mode, end in ends.items():
        rolled = roll_forward(jobs, "a", limits(mode), seconds_per_token, under_way)
        assert rolled.first_token_seconds == pytest.approx(end)


class Layers:
    """An engine moved layer by layer: its link and its compute each take one thing at a time."""

    def __init__(self, mode: OverlapMode, link: Link) -> None:
        self.mode = mode
        self.link = link
        self.link_free = link.busy_seconds
        self.now = 0.0

    def batch(self, loads: Sequence[float], compute: float) -> float:
        loaded_layers = [self.now] * LAYERS
        if loads:
            begun = max(self.now + self.link.submit_seconds, self.link_free)
            each = math.fsum(loads) / LAYERS
            loaded_layers = [begun + each * (layer + 1) for layer in range(LAYERS)]
            self.link_free = loaded_layers[-1]
        if self.mode is OverlapMode.BLOCKING:
            loaded_layers = [loaded_layers[-1]] * LAYERS
        ends = self.now
        for loaded in loaded_layers:
            ends = max(ends, loaded) + compute / LAYERS
        self.now = ends
        return ends


@given(
    st.sampled_from([OverlapMode.LAYERWISE, OverlapMode.BLOCKING]),
    st.lists(st.tuples(st.integers(1, 100), st.floats(0.0, 60.0)), min_size=1, max_size=6),
    st.floats(0.0, 20.0),
    st.floats(0.0, 2.0),
)
def test_queues_take_as_long_as_an_engine_moved_layer_by_layer(
    mode: OverlapMode, shapes: list[tuple[int, float]], busy: float, submit: float
) -> None:
    """Each request leaves after its first token, and batches are filled in order."""
    jobs = [
        job(f"j{n}", prompt + 50, found=50, load=load, output_left=1)
        for n, (prompt, load) in enumerate(shapes)
    ]
    link = Link(busy, submit)
    engine = Layers(mode, link)
    left = {one.request_id: one.prompt_left for one in map(_Left, jobs)}
    loads = {one.request_id: one.load_seconds for one in jobs}
    ended = 0.0
    while left:
        room, members = 100, {}
        for name, tokens in left.items():
            if not room:
                break
            members[name] = min(tokens, room)
            room -= members[name]
        ordered = [loads.pop(name) for name in members if loads.get(name)]
        ended = engine.batch(ordered, float(sum(members.values())))
        left = {n: t - members.get(n, 0) for n, t in left.items() if t > members.get(n, 0)}
    rolled = roll_forward(jobs, jobs[-1].request_id, limits(mode), seconds_per_token, link=link)
    assert rolled.first_token_seconds == pytest.approx(ended)


class _Left:
    def __init__(self, one: Job) -> None:
        self.request_id = one.request_id
        self.prompt_left = one.prefill_left
