"""Windows: long enough, equal in a pair, told once, and clean only where nothing happened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.policies import Policy, Scope
from kvready.advisor.requests import RequestState
from kvready.advisor.window_tracker import (
    MAX_OPEN_WINDOWS,
    MIN_ENDED,
    MIN_WINDOW_SECONDS,
    REQUEST_TIMES,
    Key,
    WindowTracker,
)
from kvready.advisor.windows import DROPPED_SHARE, MAX_TENANTS, WindowSummary
from kvready.collectors.records import Outcome, RequestArrived, RequestFinished, Surface

BALANCE: Key = (Policy.BALANCE, Scope())


class Serving:
    """A tracker that is fed requests, and what it told of one policy."""

    def __init__(self) -> None:
        self.told: list[WindowSummary] = []
        self.tracker = WindowTracker(self._hear)
        self.now = 0.0
        self._next = 0

    def _hear(self, key: Key, window: WindowSummary) -> None:
        if key == BALANCE:
            self.told.append(window)

    def request(
        self, ttft: float | None, whole: float, tenant: str = "", target: float | None = None
    ) -> None:
        """One that arrives now; it ends when it ends, whatever the clock says by then."""
        self._next += 1
        name = str(self._next)
        arrived = RequestArrived(
            request_id=name,
            surface=Surface.SCHEDULER,
            arrived_seconds=self.now,
            prompt_tokens=100,
            tenant=tenant,
            ttft_target_seconds=target,
        )
        state = RequestState(arrived)
        self.tracker.arrived(0, state, self.now)
        if ttft is None:
            return
        state.first_token_seconds = self.now + ttft
        self.tracker.first_token(0, name, ttft, ttft / 2)
        ended = RequestFinished(
            request_id=name,
            finished_seconds=self.now + whole,
            outcome=Outcome.FINISHED,
            output_tokens=11,
        )
        self.tracker.finished(0, state, ended)

    def run(self, seconds: int, ttft: float | None = 0.5, whole: float = 1.0) -> None:
        """One request a second."""
        for _ in range(seconds):
            self.request(ttft, whole)
            self.now += 1.0
            self.tracker.tick(self.now)


@given(st.floats(0.5, 60.0))
def test_a_window_is_five_high_request_times_and_its_neighbour_as_long(whole: float) -> None:
    serving = Serving()
    serving.run(MIN_ENDED, whole=whole)
    length = max(MIN_WINDOW_SECONDS, REQUEST_TIMES * whole)
    serving.run(int(5 * length) + 10, whole=whole)
    first, second = serving.told[:2]
    assert first.pair == second.pair == 0
    assert second.begin_seconds == first.end_seconds
    for one in (first, second):
        assert length <= one.end_seconds - one.begin_seconds <= length + 1.0
        assert one.is_clean


def test_no_window_begins_before_it_is_known_how_long_requests_take() -> None:
    serving = Serving()
    serving.run(MIN_ENDED - 1)
    assert serving.tracker.window is None
    serving.run(2)
    assert serving.tracker.window == 0


def test_the_first_quarter_is_left_out() -> None:
    serving = Serving()
    serving.run(200)
    one = serving.told[0]
    length = one.end_seconds - one.begin_seconds
    assert abs(one.requests - (1.0 - DROPPED_SHARE) * length) <= 1.0


def test_who_waits_without_a_first_token_counts_with_its_wait() -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 1)
    serving.run(60, ttft=None)
    waited = [one.mean_ttft_seconds for one in serving.told]
    # Told after as long again as the window lasted: none has waited less than that.
    assert waited[1] is not None
    assert waited[1] >= MIN_WINDOW_SECONDS


def test_a_gap_marks_every_window_that_is_not_told_yet() -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 5)
    serving.tracker.disturbed("records lost")
    serving.run(60)
    assert [one.is_clean for one in serving.told[:3]] == [False, True, True]
    assert serving.tracker.cut_short == {"records lost": 1}


def test_a_pair_that_is_cut_is_followed_by_a_whole_one() -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 5)
    serving.tracker.begin_anew(serving.now, "balance moved")
    assert serving.tracker.window == 2
    serving.run(60)
    assert [(one.pair, one.is_clean) for one in serving.told[:3]] == [
        (0, False), (1, True), (1, True)
    ]  # fmt: skip


def test_hours_without_a_tick_make_one_window_not_thousands() -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 5)
    serving.now += 100_000.0
    serving.run(60)
    assert len(serving.told) < 10
    assert not serving.told[0].is_clean


def test_tenants_are_the_most_frequent_and_their_number_is_bounded() -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 1)
    for _ in range(12):
        for number in range(2 * MAX_TENANTS):
            for _ in range(1 + (number < MAX_TENANTS)):
                serving.request(0.5, 1.0, tenant=f"t{number:02}")
        serving.now += 1.0
        serving.tracker.tick(serving.now)
    serving.run(60)
    assert set(serving.told[0].tenant_ttft_seconds) == {f"t{n:02}" for n in range(MAX_TENANTS)}


def test_the_share_over_target_is_of_those_that_have_one() -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 1)
    for number in range(20):
        serving.request(0.5, 1.0, target=0.4 if number % 4 == 0 else 0.6)
        serving.request(9.0, 1.0)
        serving.now += 0.5
        serving.tracker.tick(serving.now)
    serving.run(60)
    ratio = serving.told[0].over_target_ratio
    assert ratio is not None
    assert 0.1 < ratio < 0.45


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 90.0)), max_size=80))
def test_whatever_happens_windows_are_told_in_order_and_few_stay_open(
    steps: list[tuple[int, float]],
) -> None:
    serving = Serving()
    serving.run(MIN_ENDED + 1)
    for kind, seconds in steps:
        match kind:
            case 0:
                serving.request(seconds / 30.0, seconds / 10.0)
            case 1:
                serving.request(None, 0.0)
            case 2:
                serving.tracker.disturbed("stall")
            case 3:
                serving.tracker.begin_anew(serving.now, "moved")
            case _:
                serving.now += seconds
                serving.tracker.tick(serving.now)
    begins = [one.begin_seconds for one in serving.told]
    assert begins == sorted(begins)
    assert len(serving.tracker._open) <= MAX_OPEN_WINDOWS
    assert len(serving.tracker._rows) <= serving._next
