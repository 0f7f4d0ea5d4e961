"""Where the time of a link into HBM goes: every second has one state, and the right one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from story import Story, prefill

from kvready.advisor.link_use import MAX_EARLY_STARTS, Idle, LinkUse
from kvready.advisor.requests import Copy, RequestState
from kvready.collectors.records import (
    LoadDecided,
    RequestArrived,
    Surface,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
)


def wants(name: str, seconds: float, host_tokens: int = 64) -> RequestState:
    """A request with a prefix below HBM."""
    state = RequestState(RequestArrived(name, Surface.SCHEDULER, seconds, 100))
    state.host_tokens = host_tokens
    return state


def order(
    load_id: int, seconds: float, name: str = "r", source: Tier = Tier.HOST, to: Tier = Tier.HBM
) -> Copy:
    return Copy(LoadDecided(load_id, name, source, to, 64, 1_000, 2, seconds))


@pytest.fixture
def link() -> LinkUse:
    link = LinkUse()
    link.describe(True)
    link.pass_time(0.0)
    return link


def told(link: LinkUse) -> dict[str, float]:
    """All states that took time."""
    seconds = {"busy": link.busy_seconds, "untold": link.untold_seconds, **link.idle_seconds}
    return {str(name): value for name, value in seconds.items() if value}


def test_a_load_is_waited_for_ordered_begun_and_usable(link: LinkUse) -> None:
    link.arrived(wants("r", 1.0))
    link.planned(1.5, False)
    link.ordered(order(7, 3.0))
    link.started(7, 3.25)
    link.ended(7, 5.25)
    link.pass_time(6.25)
    assert told(link) == {
        "no_demand": 1.0 + 1.0,
        "passed_over": 0.5,
        "no_room": 1.5,
        "not_started": 0.25,
        "busy": 2.0,
    }


def test_who_waits_while_its_data_comes_from_below_is_no_fault_of_the_scheduler(
    link: LinkUse,
) -> None:
    link.arrived(wants("r", 0.0))
    link.ordered(order(1, 1.0, source=Tier.DISK, to=Tier.HOST))
    link.ended(1, 3.0)
    link.pass_time(4.0)
    assert told(link) == {"passed_over": 2.0, "fetching": 2.0}


@pytest.mark.parametrize("end", ["admitted", "gone"])
def test_who_was_admitted_or_is_gone_waits_for_no_load(link: LinkUse, end: str) -> None:
    link.arrived(wants(end, 0.0))
    link.pass_time(1.0)
    link.settled(end)
    link.pass_time(2.0)
    assert told(link) == {"passed_over": 1.0, "no_demand": 1.0}


def test_copies_out_of_hbm_make_the_link_into_it_neither_busy_nor_wanted(link: LinkUse) -> None:
    link.ordered(order(1, 0.0, source=Tier.HBM, to=Tier.HOST))
    link.started(1, 0.0)
    link.ended(1, 2.0)
    assert told(link) == {"no_demand": 2.0}


def test_a_mover_that_tells_no_starts_leaves_it_open_whether_the_link_was_busy() -> None:
    link = LinkUse()
    link.ordered(order(1, 1.0))
    link.ended(1, 3.0)
    assert told(link) == {"untold": 2.0}


def test_what_passes_while_the_observer_is_not_whole_is_untold(link: LinkUse) -> None:
    link.ordered(order(1, 0.0))
    link.started(1, 0.0)
    link.tick(1.0, True)
    link.tick(2.0, False)
    link.ended(1, 3.0)
    link.tick(4.0, True)
    link.tick(5.0, True)
    assert told(link) == {"busy": 2.0, "untold": 2.0, "no_demand": 1.0}


def test_a_rank_that_nobody_told_of_yet_has_no_idle_link() -> None:
    link = LinkUse()
    link.tick(1.0, True)
    link.tick(100.0, True)
    assert told(link) == {}


def test_a_pipeline_hears_of_a_ranks_lost_stream() -> None:
    story = Story()
    lost = TapStatus("observer-scheduler-0", 0, TapEvent.SILENT, TapState.SILENT)
    for second in range(1, 8):
        if second == 3:
            story.tell(3.0, lost, tap="recorder")
        if second == 5:
            news = msgspec.structs.replace(lost, event=TapEvent.HEALED, state=TapState.LIVE)
            story.tell(5.0, news, tap="recorder")
        story.tell(float(second), Tick(float(second), 1e6 + second), tap="recorder")
        if second == 1:
            story.batch(1.0, 1.0, prefill("r", 8))
    link = story.pipeline.ranks[0].link
    assert told(link) == {"no_demand": 4.0, "untold": 2.0}


def test_a_start_that_came_before_its_order_counts(link: LinkUse) -> None:
    link.started(4, 1.0)
    link.ordered(order(4, 0.9))
    link.ended(4, 2.0)
    assert told(link) == {"no_demand": 1.0, "busy": 1.0}


def test_starts_without_orders_are_bounded(link: LinkUse) -> None:
    for load_id in range(2 * MAX_EARLY_STARTS):
        link.started(load_id, 1.0)
    assert len(link._early) == MAX_EARLY_STARTS


def test_a_restart_leaves_nothing_ordered_and_nobody_waiting(link: LinkUse) -> None:
    link.arrived(wants("r", 0.0))
    link.ordered(order(1, 0.0))
    link.started(1, 0.0)
    link.pass_time(1.0)
    link.restart()
    link.pass_time(3.0)
    assert told(link) == {"busy": 1.0, "no_demand": 2.0}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "order", "fetch", "start", "end", "settle", "plan", "tick"]),
        st.integers(0, 5),
        st.floats(-0.5, 2.0, allow_nan=False),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
@example([("order", 0, 0.0), ("start", 0, 1.0), ("order", 0, 1.0), ("end", 0, 1.0)] * 2, True)
def test_every_second_is_counted_once_whatever_comes_in_which_order(
    steps: list[tuple[str, int, float]], tells_starts: bool
) -> None:
    link = LinkUse()
    link.describe(tells_starts)
    now = latest = 0.0
    link.pass_time(now)
    for kind, number, later in steps:
        now = max(0.0, now + later)  # clocks of several sockets: not always forwards
        name = f"r{number}"
        match kind:
            case "arrive":
                link.arrived(wants(name, now, host_tokens=number))
            case "order":
                link.ordered(order(number, now, name))
            case "fetch":
                link.ordered(order(number, now, name, Tier.DISK, Tier.HOST))
            case "start":
                link.started(number, now)
            case "end":
                link.ended(number, now)
            case "settle":
                link.settled(name)
                continue
            case "plan":
                link.planned(now, bool(number % 2))
            case "tick":
                link.pass_time(now)
        latest = max(latest, now)
        assert 0 <= link._begun <= len(link._loads)
    assert sum(told(link).values()) == pytest.approx(latest)
    if tells_starts:
        assert not link.untold_seconds
    else:
        assert not link.idle_seconds[Idle.NOT_STARTED]
