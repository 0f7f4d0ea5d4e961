"""Goodput and what waits depend on: every request counted once, against the target that it has."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import BLOCK_TOKENS, Story, prefill

from kvready.advisor.bounded_names import OVERFLOW, UNNAMED, BoundedNames
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.requests import RequestState
from kvready.advisor.served import Ended, Served, judge
from kvready.advisor.service_account import MAX_CLASSES, By, ServiceAccount
from kvready.advisor.service_groups import (
    InitialState,
    PrefixLength,
    ReuseDistance,
    initial_state,
    prefix_length,
    reuse_distance,
)
from kvready.collectors.records import (
    FirstToken,
    Outcome,
    RequestArrived,
    RequestFinished,
    RequestReported,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
)
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets

TARGETS = ServiceTargets(ttft_seconds=2.0, output_tokens_per_second=10.0)


def ended(**told: object) -> Ended:
    """A good request: 1 s to its first token, then 20 tokens in 1 s."""
    good = {
        "outcome": Outcome.FINISHED,
        "ttft_seconds": 1.0,
        "decode_seconds": 1.0,
        "whole_seconds": 2.0,
        "output_tokens": 21,
    }
    return Ended(**{**good, **told})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "targets", "expected"),
    [
        ({}, TARGETS, Served.GOOD),
        ({}, NO_TARGETS, Served.NO_TARGET),
        ({"ttft_seconds": 2.0}, TARGETS, Served.GOOD),  # in time to the instant
        ({"ttft_seconds": 2.1}, TARGETS, Served.LATE),
        ({"ttft_seconds": 2.1, "decode_seconds": 9.0}, TARGETS, Served.LATE),  # the first miss
        ({"decode_seconds": 2.0}, TARGETS, Served.GOOD),  # 10 a second
        ({"decode_seconds": 2.1}, TARGETS, Served.SLOW),
        ({"output_tokens": 1, "decode_seconds": 0.0}, TARGETS, Served.GOOD),
        ({"ttft_target_seconds": 0.5}, TARGETS, Served.LATE),  # its own target comes first
        ({"ttft_target_seconds": 3.0, "ttft_seconds": 2.5}, TARGETS, Served.GOOD),
        ({"ttft_target_seconds": 0.5}, NO_TARGETS, Served.LATE),
        ({"outcome": Outcome.FAILED}, TARGETS, Served.FAILED),
        ({"outcome": Outcome.ABORTED}, TARGETS, Served.ABORTED),
        ({"outcome": Outcome.ABORTED, "ttft_seconds": 2.1}, TARGETS, Served.LATE),
        ({"outcome": Outcome.ABORTED, "ttft_seconds": None}, TARGETS, Served.ABORTED),
        (
            {"outcome": Outcome.ABORTED, "ttft_seconds": None, "whole_seconds": 2.1},
            TARGETS,
            Served.LATE,
        ),
        ({"ttft_seconds": None}, TARGETS, Served.UNSEEN),
        ({"decode_seconds": None}, TARGETS, Served.UNSEEN),
        ({"output_tokens": None}, TARGETS, Served.UNSEEN),
        ({"output_tokens": None}, ServiceTargets(ttft_seconds=2.0), Served.GOOD),
        ({"ttft_seconds": None}, ServiceTargets(output_tokens_per_second=1.0), Served.GOOD),
    ],
)
def test_a_request_is_good_only_inside_every_target_that_it_has(
    told: dict[str, object], targets: ServiceTargets, expected: Served
) -> None:
    assert judge(ended(**told), targets) is expected


SECONDS = st.one_of(st.none(), st.floats(0, 10))


@given(
    st.builds(
        Ended,
        outcome=st.sampled_from(Outcome),
        ttft_seconds=SECONDS,
        decode_seconds=SECONDS,
        whole_seconds=SECONDS,
        output_tokens=st.one_of(st.none(), st.integers(0, 100)),
    )
)
def test_who_is_good_stays_good_under_easier_targets(request_: Ended) -> None:
    easier = ServiceTargets(ttft_seconds=4.0, output_tokens_per_second=5.0)
    if judge(request_, TARGETS) is Served.GOOD:
        assert judge(request_, easier) is Served.GOOD


def test_every_end_is_counted_once_and_every_first_token_in_each_breakdown(
    told_story: Story,
) -> None:
    service, totals = told_story.pipeline.service, told_story.pipeline.totals
    assert sum(service.served.values()) == sum(totals.requests.values()) > 0
    assert sum(service.surfaces.values()) == totals.arrivals
    for by in By:
        groups = service.groups[by].values()
        assert sum(one.ttft.count for one in groups) == totals.first_tokens > 0, by
    waited = {by: sum(one.ttft.total for one in service.groups[by].values()) for by in By}
    assert len({round(seconds, 9) for seconds in waited.values()}) == 1


def test_goodput_counts_the_whole_path_from_arrival(told_story: Story) -> None:
    """The same day against targets: what is late is what waited longer, load and queue included."""
    waits = []
    for item in told_story.told:
        if isinstance(item.record, FirstToken):
            waits.append(item.record.first_token_seconds)
    arrivals = [
        item.record.arrived_seconds
        for item in told_story.told
        if isinstance(item.record, RequestArrived)
    ]
    spans = [first - arrived for first, arrived in zip(waits, arrivals, strict=True)]
    limit = sorted(spans)[len(spans) // 2]
    pipeline = Pipeline(targets=ServiceTargets(ttft_seconds=limit))
    for item in told_story.told:
        pipeline.ingest(item)
    good = sum(span <= limit for span in spans)
    assert pipeline.service.served[UNNAMED, Served.GOOD] == good
    assert pipeline.service.served[UNNAMED, Served.LATE] == len(spans) - good > 0


def test_a_request_that_arrived_before_we_did_is_unseen_not_good() -> None:
    story = Story()
    story.finished(1.0, "earlier")
    assert dict(story.pipeline.service.served) == {(UNNAMED, Served.UNSEEN): 1}


def test_requests_that_a_restart_ended_were_not_served() -> None:
    story = Story()
    story.arrives(1.0, "a", range(4))
    story.arrives(1.1, "b", range(4))
    story.finished(1.2, "a")
    restart = TapStatus("observer-scheduler-0", 0, TapEvent.EPOCH, TapState.LIVE, epoch=2)
    story.tell(2.0, restart, tap="recorder")
    assert dict(story.pipeline.service.served) == {
        (UNNAMED, Served.NO_TARGET): 1,
        (UNNAMED, Served.FAILED): 1,
    }


def test_where_a_prefix_was_is_what_was_so_at_arrival() -> None:
    story = Story()
    chain = list(range(100, 110))
    story.stored(0.5, chain)
    story.arrives(1.0, "hot", chain)
    story.arrives(1.1, "new", range(500, 510))
    story.removed(1.2, chain)
    story.arrives(1.3, "cold", chain)
    story.arrives(1.4, "follower", range(500, 510))
    groups = {name: state.group for name, state in story.pipeline.ranks[0].requests.live.items()}
    assert {name: group.initial_state for name, group in groups.items() if group} == {
        "hot": InitialState.HBM,
        "new": InitialState.COLD,
        "cold": InitialState.COLD,  # gone, and nobody is computing it
        "follower": InitialState.IN_FLIGHT,
    }
    assert {name: group.reuse_distance for name, group in groups.items() if group} == {
        "hot": ReuseDistance.FIRST_USE,
        "new": ReuseDistance.FIRST_USE,
        "cold": ReuseDistance.BELOW_16K,
        "follower": ReuseDistance.BELOW_16K,
    }


def state_of(
    nominal: int | None, host: int = 0, disk: int = 0, promised: int = 0, hashes: int = 1
) -> RequestState:
    state = RequestState(
        RequestArrived("r", Surface.SCHEDULER, 0.0, 1 << 20, tuple(range(hashes)), BLOCK_TOKENS)
    )
    state.nominal_tokens, state.host_tokens, state.disk_tokens = nominal, host, disk
    state.promised_tokens = promised
    return state


@pytest.mark.parametrize(
    ("state", "where", "length"),
    [
        (state_of(None), InitialState.UNKNOWN, PrefixLength.UNKNOWN),
        (state_of(0), InitialState.COLD, PrefixLength.NONE),
        (state_of(64), InitialState.HBM, PrefixLength.BELOW_2K),
        (state_of(4_096, host=64), InitialState.HOST, PrefixLength.BELOW_16K),
        (state_of(16_384, host=128, disk=64), InitialState.DISK, PrefixLength.FROM_16K),
        (state_of(64, promised=64), InitialState.HBM, PrefixLength.BELOW_2K),
        (state_of(64, host=64, promised=96), InitialState.IN_FLIGHT, PrefixLength.BELOW_2K),
    ],
)
def test_a_request_is_told_apart_by_the_farthest_tier_that_it_needs(
    state: RequestState, where: InitialState, length: PrefixLength
) -> None:
    assert initial_state(state) is where
    assert prefix_length(state) is length


@given(st.one_of(st.none(), st.integers(0, 1 << 40)), st.booleans())
def test_reuse_distances_rise_with_the_tokens_in_between(
    tokens: int | None, has_hashes: bool
) -> None:
    found = reuse_distance(state_of(0, hashes=int(has_hashes)), tokens)
    if not has_hashes:
        assert found is ReuseDistance.UNKNOWN
    elif tokens is None:
        assert found is ReuseDistance.FIRST_USE
    else:
        order = [*ReuseDistance]
        further = reuse_distance(state_of(0), 4 * tokens)
        assert order.index(found) <= order.index(further)
        assert found is not ReuseDistance.FIRST_USE


def test_only_the_first_classes_are_told_apart_and_the_others_are_counted_together() -> None:
    account = ServiceAccount(TARGETS)
    names = [f"class-{number}" for number in range(MAX_CLASSES + 3)]
    for name, lap in product(names, range(2)):
        record = RequestArrived(f"{name}-{lap}", Surface.GATEWAY, 0.0, 8, request_class=name)
        state = RequestState(record)
        account.arrive(state, None)
        state.first_token_seconds = 1.0
        account.first_token(state, FirstToken(record.request_id, 1.0))
        account.finish(state, RequestFinished(record.request_id, 1.5, Outcome.FINISHED, 21))
    assert account.classes.labels == tuple(names[:MAX_CLASSES])
    assert account.classes.overflowed == 6
    assert account.served[names[0], Served.GOOD] == 2
    assert account.served[OVERFLOW, Served.GOOD] == 6
    assert account.groups[By.CLASS][OVERFLOW].ttft.count == 6
    assert set(account.groups[By.CLASS]) == {UNNAMED, OVERFLOW, *names[:MAX_CLASSES]}
    assert account.groups[By.CLASS][names[0]].output_tokens == 2 * 20


@pytest.mark.parametrize("name", [OVERFLOW, UNNAMED, "x" * 65])
def test_a_class_cannot_take_a_label_of_ours_nor_a_long_one(name: str) -> None:
    names = BoundedNames(4)
    assert names.label(name) == OVERFLOW
    assert names.labels == ()


def test_reports_from_outside_are_judged_apart_and_each_request_once() -> None:
    story = Story()
    pipeline = Pipeline(targets=TARGETS)
    report = RequestReported(
        "a", Surface.FRONTEND, decode_seconds=1.0, whole_seconds=2.0, output_tokens=21
    )
    for number, record in enumerate((report, report)):  # two taps tell of it
        item = story.told[0]
        pipeline.ingest(type(item)(ingest=number, received_seconds=1.0, tap="spans", record=record))
    pipeline.outside.backcaster.tick(60.0, pipeline.outside.clock)
    assert dict(pipeline.service.reported) == {Served.GOOD: 1}
    assert pipeline.service.reported_ttft.total == 1.0
    assert not pipeline.service.served


def test_a_requests_pace_is_of_the_tokens_after_its_first() -> None:
    story = Story()
    story.arrives(1.0, "r", range(4))
    story.scheduled(1.5, "r")
    story.batch(1.5, 2.0, prefill("r", 4 * BLOCK_TOKENS + 8))
    story.first_token(2.0, "r")
    story.tell(6.0, RequestFinished("r", 6.0, Outcome.FINISHED, 9))
    sums = story.pipeline.service.groups[By.STATE][InitialState.COLD]
    assert (sums.output_tokens, sums.decode_seconds) == (8, 4.0)
