"""Whether an engine shares by itself is judged by what it did, left to itself, of late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.shared_work import KEPT_MINUTES, Repeats, SharedWork
from kvready.advisor.totals import Totals

MINUTES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 900), st.integers(0, 900), st.booleans()),
    max_size=30,
)


def grow(totals: Totals, delay_hits: int, promised: int, duplicate: int) -> None:
    totals.delay_hits["in_flight"] += delay_hits
    totals.delay_hit_tokens += promised
    totals.duplicate_prefill_tokens += duplicate


@given(MINUTES)
def test_minutes_in_which_dedup_acts_say_nothing_of_the_engine(
    minutes: list[tuple[int, int, int, bool]],
) -> None:
    totals, work = Totals(), SharedWork()
    for delay_hits, promised, duplicate, acts in minutes:
        grow(totals, delay_hits, promised, duplicate)
        if acts:
            work.helped()
        work.minute(totals)
    alone = [one[:3] for one in minutes if one[0] and not one[3]]
    assert work.sums(totals) == Repeats(*(sum(column) for column in zip(*alone, strict=True)))


def test_a_policy_that_worked_for_long_does_not_look_as_if_it_was_never_needed() -> None:
    totals, work = Totals(), SharedWork()
    grow(totals, 20, 20_000, 10_000)
    work.minute(totals)
    for _ in range(500):
        grow(totals, 20, 20_000, 0)
        work.helped()
        work.minute(totals)
    assert totals.duplicate_prefill_tokens / totals.delay_hit_tokens < 0.01
    assert work.sums(totals).duplicate_share == 0.5


def test_the_minute_at_hand_counts_and_the_oldest_are_forgotten() -> None:
    totals, work = Totals(), SharedWork()
    grow(totals, 1, 1_000, 1_000)
    assert work.sums(totals) == Repeats(1, 1_000, 1_000)
    work.minute(totals)
    for _ in range(KEPT_MINUTES):
        grow(totals, 1, 1_000, 0)
        work.minute(totals)
    assert work.sums(totals) == Repeats(KEPT_MINUTES, 1_000 * KEPT_MINUTES, 0)
    work.forget(totals)
    assert work.sums(totals) == Repeats()
