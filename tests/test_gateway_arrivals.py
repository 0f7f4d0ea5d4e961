"""What a gateway told counts from its own arrival on: waits, windows, arms."""

from __future__ import annotations

import pytest
from story import Story, prefill

from kvready.advisor import gateway_arrivals
from kvready.advisor.gateway_arrivals import GatewayArrivals, Told
from kvready.advisor.requests import RequestState
from kvready.advisor.waits import WaitState, split_wait
from kvready.advisor.window_tracker import WindowTracker, _group
from kvready.collectors.records import (
    DeferReason,
    Outcome,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    Surface,
)
from kvready.collectors.request_ids import completion_id

NAMES = [("cmpl-a-0", "cmpl-a-0-b673a854"), ("chatcmpl-a", "chatcmpl-a-b673a854")]
GROUP = 77


def gateway_tells(story: Story, seconds: float, name: str, held: bool = True) -> None:
    told = RequestArrived(name, Surface.GATEWAY, seconds, 1_000, (GROUP,))
    story.tell(seconds, told, "observer-gateway-0")
    if held:
        record = RequestDeferred(name, seconds, DeferReason.HOLD)
        story.tell(seconds, record, "observer-gateway-0")


@pytest.mark.parametrize(("told", "scheduled"), NAMES)
def test_the_wait_begins_at_the_gateway(told: str, scheduled: str) -> None:
    story = Story()
    gateway_tells(story, 1.0, told)
    story.arrives(3.0, scheduled, range(6))
    state = story.pipeline.ranks[0].requests.live[scheduled]
    assert state.arrived_seconds == 1.0
    assert state.upstream is not None
    assert state.upstream.was_held
    story.scheduled(3.5, scheduled)
    story.batch(3.5, 4.0, prefill(scheduled, 200, 0))
    wait = split_wait(state.timeline(4.0))
    assert wait == {WaitState.FRONTEND: 2.0, WaitState.QUEUE: 0.5, WaitState.PREFILL: 0.5}
    story.first_token(4.0, scheduled)
    assert story.pipeline.totals.wait_seconds[WaitState.FRONTEND] == 2.0
    assert story.pipeline.totals.unattributed_seconds == pytest.approx(0.0)
    assert story.pipeline.totals.arrivals == 1
    assert story.pipeline.service.surfaces == {Surface.GATEWAY: 1}
    assert story.pipeline.gateway.counts == {Told.HELD: 1, Told.JOINED: 1}


def test_what_no_gateway_told_is_as_it_was() -> None:
    story = Story()
    gateway_tells(story, 1.0, "cmpl-other-0")
    story.arrives(3.0, "cmpl-a-0-b673a854", range(6))
    state = story.pipeline.ranks[0].requests.live["cmpl-a-0-b673a854"]
    assert state.upstream is None
    assert state.arrived_seconds == 3.0
    assert len(story.pipeline.gateway) == 1


@pytest.mark.parametrize("held", [True, False])
def test_windows_know_a_held_follower_and_its_gateways_group(held: bool) -> None:
    tracker = WindowTracker()
    state = RequestState(RequestArrived("r", Surface.SCHEDULER, 5.0, 1_000, (1, 2), 32))
    assert _group(state) == 1
    arrivals = GatewayArrivals()
    assert arrivals.take(RequestArrived("r", Surface.GATEWAY, 4.0, 1_000, (GROUP,)))
    if held:
        assert arrivals.take(RequestDeferred("r", 4.0, DeferReason.HOLD))
    state.upstream = arrivals.join("r")
    assert _group(state) == GROUP
    for _ in range(64):  # enough have ended for windows to run
        tracker._times.append(0.1)
    tracker.tick(4.0)
    tracker.arrived(0, state, 5.0)
    _, row = tracker._rows[0, "r"]
    assert (row.arrived_seconds, row.group, row.is_follower) == (4.0, GROUP, held)


def test_a_client_that_left_while_held_is_counted_and_forgotten() -> None:
    arrivals = GatewayArrivals()
    for name in "ab":
        arrivals.take(RequestArrived(name, Surface.GATEWAY, 1.0, 10))
    arrivals.take(RequestDeferred("a", 1.0, DeferReason.HOLD))
    assert arrivals.take(RequestFinished("a", 2.0, Outcome.ABORTED))
    assert arrivals.take(RequestFinished("b", 2.0, Outcome.ABORTED))
    assert arrivals.counts == {Told.HELD: 1, Told.LEFT_HELD: 1}
    assert len(arrivals) == 0


def test_an_engines_own_records_are_left_to_the_engine() -> None:
    arrivals = GatewayArrivals()
    assert not arrivals.take(RequestArrived("a", Surface.SCHEDULER, 1.0, 10))
    assert not arrivals.take(RequestDeferred("a", 1.0, DeferReason.HOLD))
    assert not arrivals.take(RequestFinished("a", 2.0, Outcome.ABORTED))


def test_two_of_one_name_are_neither(monkeypatch) -> None:
    arrivals = GatewayArrivals()
    for seconds in (1.0, 2.0):
        arrivals.take(RequestArrived("a", Surface.GATEWAY, seconds, 10))
    assert arrivals.join("a-b673a854") is None
    assert arrivals.counts[Told.LOST] == 2
    monkeypatch.setattr(gateway_arrivals, "MAX_AWAITED", 2)
    for name in "bcd":
        arrivals.take(RequestArrived(name, Surface.GATEWAY, 1.0, 10))
    assert [arrivals.join(name) is not None for name in "bcd"] == [False, True, True]
    assert (arrivals.counts[Told.JOINED], arrivals.counts[Told.LOST]) == (2, 3)


def test_names_are_those_of_the_engines_reports() -> None:
    assert completion_id("a", is_chat=False) == NAMES[0][0]
    assert completion_id("a", is_chat=True) == NAMES[1][0]
