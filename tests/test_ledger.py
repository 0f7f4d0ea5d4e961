"""The pairing rules: written before the outcome, paired once, misses counted in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor import ledger as ledger_module
from kvready.advisor.ledger import Forecast, Ledger, Pair, PairState, Target
from kvready.advisor.report import score_cells


def forecast(
    ledger: Ledger, subject: str = "r1", made: float = 0.0, p50: float = 1.0, spread: float = 2.0
) -> Forecast:
    return Forecast(
        forecast_id=ledger.next_id(),
        target=Target.TTFT,
        subject=subject,
        made_ingest=1,
        made_seconds=made,
        starts_seconds=0.0,
        p50_seconds=p50,
        low_seconds=p50 / spread,
        high_seconds=p50 * spread,
        shape_cell="cell",
        model_version="m",
    )


def test_a_forecast_is_paired_once() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger))
    first = ledger.pair(Target.TTFT, "r1", 1.5, 2)
    assert first is not None
    assert first.state is PairState.PAIRED
    assert first.signed_error_seconds == pytest.approx(0.5)
    assert ledger.pair(Target.TTFT, "r1", 9.0, 3) is None


def test_an_outcome_that_was_known_when_the_forecast_was_written_is_late_and_not_scored() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger, made=2.0))
    pair = ledger.pair(Target.TTFT, "r1", 1.5, 2)  # happened at 1.5, forecast written at 2.0
    assert pair is not None
    assert pair.state is PairState.LATE
    assert ledger.counts[Target.TTFT, PairState.PAIRED] == 0


def test_a_request_past_its_upper_bound_is_a_miss_at_that_moment() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger, p50=1.0, spread=2.0))
    ledger.expire(1.9)
    assert ledger.missed[Target.TTFT] == 0
    ledger.expire(2.1)
    ledger.expire(2.2)
    assert ledger.missed[Target.TTFT] == 1
    pair = ledger.pair(Target.TTFT, "r1", 5.0, 3)
    assert pair is not None
    assert pair.missed
    assert pair.covered is False


def test_late_news_of_an_outcome_in_time_is_no_miss() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger, p50=1.0, spread=2.0))
    ledger.expire(2.5)  # nothing was heard by then
    pair = ledger.pair(Target.TTFT, "r1", 1.9, 3)
    assert pair is not None
    assert not pair.missed
    assert pair.covered
    assert ledger.missed[Target.TTFT] == 0


def test_a_miss_that_never_gets_an_outcome_stays_uncovered_and_bad() -> None:
    ledger = Ledger()
    for n in range(3):
        ledger.write(forecast(ledger, f"r{n}"))
    ledger.pair(Target.TTFT, "r0", 1.0, 2)
    ledger.expire(9.0)
    [cell] = score_cells(ledger.pairs, ledger.missed_and_open())
    assert (cell.pairs, cell.coverage_ratio, cell.bad_ratio) == pytest.approx((1, 1 / 3, 2 / 3))
    ledger.censor(Target.TTFT, "r1", 3)
    assert score_cells(ledger.pairs, ledger.missed_and_open()) == [cell]


def test_an_outcome_before_its_cause_is_a_fault_of_clocks_and_not_scored() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger))
    pair = ledger.pair(Target.TTFT, "r1", -0.5, 2)
    assert pair is not None
    assert pair.state is PairState.CENSORED


def test_deadlines_of_closed_forecasts_are_dropped() -> None:
    ledger = Ledger()
    for n in range(20_000):
        ledger.write(forecast(ledger, f"r{n}", p50=1e6))
        ledger.pair(Target.TTFT, f"r{n}", 1.0, n)
    assert len(ledger._deadlines) <= ledger_module.MIN_DEADLINES + 1


def test_an_aborted_request_has_no_outcome_to_score() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger))
    pair = ledger.censor(Target.TTFT, "r1", 2)
    assert pair is not None
    assert pair.state is PairState.CENSORED
    assert pair.actual_seconds is None
    assert pair.bad is None
    assert pair.covered is None


def test_the_first_forecast_of_a_subject_stands() -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger, p50=1.0))
    ledger.write(forecast(ledger, p50=7.0))
    pair = ledger.pair(Target.TTFT, "r1", 1.0, 2)
    assert pair is not None
    assert pair.forecast.p50_seconds == 1.0


class Told:
    """A follower that remembers what it was told."""

    def __init__(self) -> None:
        self.overdue_at: list[float] = []
        self.outcomes: list[float] = []

    def overdue(self, at_least_seconds: float) -> None:
        self.overdue_at.append(at_least_seconds)

    def settle(self, actual_seconds: float) -> None:
        self.outcomes.append(actual_seconds)


def test_a_follower_hears_at_once_that_a_forecast_is_overdue_and_then_ever_more_rarely() -> None:
    ledger, told = Ledger(), Told()
    ledger.write(forecast(ledger, p50=1.0, spread=2.0), told)
    for tenths in range(200):
        ledger.expire(tenths / 10.0)
    assert told.overdue_at == pytest.approx([2.1, 4.3, 8.7, 17.5])
    assert ledger.missed[Target.TTFT] == 1
    ledger.pair(Target.TTFT, "r1", 19.5, 2)
    assert told.outcomes == [19.5]
    ledger.expire(1e6)
    assert len(told.overdue_at) == 4


def test_a_follower_hears_only_of_what_is_scored() -> None:
    ledger, late, aborted, lost = Ledger(), Told(), Told(), Told()
    ledger.write(forecast(ledger, "late", made=2.0), late)
    ledger.pair(Target.TTFT, "late", 1.5, 2)
    ledger.write(forecast(ledger, "aborted"), aborted)
    ledger.censor(Target.TTFT, "aborted", 2)
    ledger.write(forecast(ledger, "lost"), lost)
    ledger.pair(Target.TTFT, "lost", -1.0, 2)
    ledger.expire(1e6)
    for told in (late, aborted, lost):
        assert not told.overdue_at + told.outcomes


def test_deadlines_of_forecasts_that_stay_overdue_do_not_pile_up() -> None:
    ledger = Ledger()
    for n in range(100):
        ledger.write(forecast(ledger, f"r{n}"), Told())
    for second in range(10_000):
        ledger.expire(float(second))
    assert len(ledger._deadlines) == 100


@pytest.mark.parametrize(
    ("p50", "actual", "bad"),
    [
        (0.100, 0.224, False),  # (0.125, 0.249): just under a factor of two
        (0.100, 0.226, True),
        (0.001, 0.026, False),  # the 25 ms of grace make small waits forgiving
        (0.226, 0.100, True),
    ],
)
def test_a_bad_prediction_is_off_by_more_than_two_with_25_ms_of_grace(
    p50: float, actual: float, bad: bool
) -> None:
    ledger = Ledger()
    ledger.write(forecast(ledger, p50=p50))
    pair = ledger.pair(Target.TTFT, "r1", actual, 2)
    assert pair is not None
    assert pair.bad is bad


@given(st.lists(st.sampled_from(["write", "pair", "censor", "expire"]), max_size=200), st.data())
def test_every_forecast_is_counted_in_exactly_one_state(actions: list[str], data: object) -> None:
    ledger = Ledger()
    emitted: list[Pair] = []
    written = 0
    for n, action in enumerate(actions):
        subject = f"r{n % 5}"
        if action == "write":
            before = ledger.open_count
            ledger.write(forecast(ledger, subject))
            written += ledger.open_count - before
        elif action == "pair":
            emitted += filter(None, [ledger.pair(Target.TTFT, subject, 1.0, n)])
        elif action == "censor":
            emitted += filter(None, [ledger.censor(Target.TTFT, subject, n)])
        else:
            ledger.expire(float(n))
    assert sum(ledger.counts.values()) == written == len(emitted) + ledger.open_count


def test_open_forecasts_are_bounded_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_OPEN_FORECASTS", 3)
    ledger = Ledger()
    evicted = [ledger.write(forecast(ledger, f"r{n}")) for n in range(5)]
    assert [pair.forecast.subject for pair in evicted if pair] == ["r0", "r1"]
    assert ledger.open_count == 3
