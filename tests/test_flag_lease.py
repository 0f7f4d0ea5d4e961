"""The lease on flags: whatever the order, the delay and the sidecar, what is not certain is OFF."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kvready.advisor.flags import Split
from kvready.advisor.hooks.lease import MAX_LEASE_SECONDS, NOTHING, OFF, Answer, Lease, Switch
from kvready.advisor.policies import Policy

ON = {Policy.DEDUP: Switch(True)}
ALL_OFF = {Policy.DEDUP: OFF}


def said(revision: int = 1, switches: object = ON, boot: str = "a", lease: float = 2.0) -> Answer:
    return Answer(boot_id=boot, revision=revision, lease_seconds=lease, switches=switches)  # type: ignore[arg-type]


def is_on(lease: Lease, now: float) -> bool:
    return lease.held.switch(Policy.DEDUP, now).is_on


def test_it_runs_from_the_moment_of_asking_and_ends_on_time() -> None:
    lease = Lease()
    assert not is_on(lease, 0.0)
    assert lease.heard(10.0, said())
    assert is_on(lease, 10.0)
    assert is_on(lease, math.nextafter(12.0, 0.0))
    assert not is_on(lease, 12.0)
    assert not is_on(lease, 9.9), "a clock that went back"
    lease.heard(11.0, said(switches=None))
    assert is_on(lease, 12.9)


def test_no_lease_is_longer_than_the_hooks_own_and_none_is_endless() -> None:
    lease = Lease()
    lease.heard(0.0, said(lease=1e9))
    assert not is_on(lease, MAX_LEASE_SECONDS)
    for impossible in (0.0, -1.0, math.nan, math.inf):
        lease = Lease()
        assert not lease.heard(0.0, said(lease=impossible))
        assert not is_on(lease, 0.0)


def test_what_is_predicted_badly_is_left_alone_whatever_else_is_said() -> None:
    bad = "inflight_ready: batch ≥128 tokens"
    for switch in (
        Switch(True, outside=frozenset({bad})),
        Switch(split=Split("seed", 1.0), outside=frozenset({bad})),
    ):
        assert switch.treats(1, "inflight_ready: batch ≥256 tokens")
        assert switch.treats(1), "who acts on no prediction"
        assert not switch.treats(1, bad)


def test_a_lower_revision_changes_nothing_and_prolongs_nothing() -> None:
    lease = Lease()
    lease.heard(0.0, said(5, ALL_OFF))
    lease.heard(1.0, said(4, ON))
    assert not is_on(lease, 1.0)
    lease.heard(1.5, said(6, ON))
    lease.heard(2.0, said(5, ON))
    assert not is_on(lease, 1.5 + MAX_LEASE_SECONDS)


def test_a_new_boot_is_off_until_it_says_all() -> None:
    lease = Lease()
    lease.heard(0.0, said(9))
    assert not lease.heard(0.5, said(9, None, boot="b"))
    assert not is_on(lease, 0.5)
    assert not lease.heard(0.6, said(9, None)), "nothing is held that could hold on"
    assert not is_on(lease, 0.6)
    assert lease.heard(1.0, said(1, boot="b"))
    assert is_on(lease, 1.0), "its revisions begin anew"


def test_what_contradicts_itself_is_off_at_once() -> None:
    for second in (said(1, ALL_OFF | {"x": Switch(True)}), said(2, None)):
        lease = Lease()
        lease.heard(0.0, said(1, ON))
        assert not lease.heard(0.5, second)
        assert lease.held is NOTHING


def test_prefix_groups_are_drawn_where_they_are_split() -> None:
    split = Split("seed", 0.5)
    switch = Switch(False, split)
    drawn = [switch.treats(group) for group in range(2_000)]
    assert drawn == [split.treats(group) for group in range(2_000)]
    assert 900 < sum(drawn) < 1_100
    assert not switch.treats(None)
    assert Switch(True).treats(None)
    assert not any(Split("s", 0.0).treats(group) for group in range(100))
    assert all(Split("s", 1.0).treats(group) for group in range(100))
    assert [Split("other", 0.5).treats(g) for g in range(64)] != drawn[:64]


class Sidecar:
    """What really is: a switch that is thrown, and incarnations, each with its revisions."""

    def __init__(self) -> None:
        self.boot, self.revision, self.is_on = 0, 1, False
        self.on_until = -math.inf  # the latest moment at which it was on

    def answer(self, tag: tuple[int, int] | None) -> Answer:
        switches = ON if self.is_on else ALL_OFF
        here = (self.boot, self.revision)
        return said(self.revision, None if tag == here else switches, boot=f"boot {self.boot}")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "deliver", "lose", "throw", "restart", "freeze", "garbage"]),
        st.floats(0.0, 3.0),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(STEPS)
def test_on_means_that_it_was_on_within_a_lease_whatever_happens_on_the_way(steps: list) -> None:  # type: ignore[type-arg]
    """Answers come late, in any order, from sidecars that are gone, or not at all."""
    lease, sidecar, now = Lease(), Sidecar(), 0.0
    under_way: list[tuple[float, Answer]] = []
    tag: tuple[int, int] | None = None
    newest: dict[str, int] = {}
    for what, passed, which in steps:
        now += passed
        if sidecar.is_on:
            sidecar.on_until = now
        if what == "ask":
            under_way.append((now, sidecar.answer(tag)))
        elif what == "throw":
            sidecar.is_on, sidecar.revision = not sidecar.is_on, sidecar.revision + 1
        elif what == "restart":
            sidecar.boot, sidecar.revision, sidecar.is_on = sidecar.boot + 1, 1, False
        elif what == "garbage":
            lease.refused()
            tag = None
            assert not is_on(lease, now)
        elif under_way and what in ("deliver", "lose"):
            asked, answer = under_way.pop(which % len(under_way))
            if what == "deliver":
                lease.heard(asked, answer)
                boot = answer.boot_id
                if is_on(lease, now) and asked == lease.held.since_seconds:
                    assert answer.revision >= newest.get(boot, 0), "never back to an older one"
                    newest[boot] = answer.revision
                if answer.switches is not None and lease.held.since_seconds == asked:
                    tag = (int(boot.split()[1]), answer.revision)
        if is_on(lease, now):
            assert sidecar.on_until > now - MAX_LEASE_SECONDS
            assert sidecar.is_on or now - sidecar.on_until < MAX_LEASE_SECONDS
        assert not is_on(lease, now + MAX_LEASE_SECONDS), "silence ends it"


@given(
    st.lists(
        st.tuples(
            st.floats(),
            st.sampled_from(["", "a", "b"]),
            st.integers(-2, 3),
            st.floats(),
            st.sampled_from([None, ON, ALL_OFF, {}]),
        ),
        max_size=30,
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_no_answers_whatsoever_hold_longer_than_a_lease(answers: list, now: float) -> None:  # type: ignore[type-arg]
    lease = Lease()
    for asked, boot, revision, lasts, switches in answers:
        lease.heard(asked, said(revision, switches, boot, lasts))
        held = lease.held
        if held is not NOTHING and math.isfinite(held.since_seconds):
            assert held.until_seconds - held.since_seconds <= MAX_LEASE_SECONDS * (1 + 1e-9)
        if is_on(lease, now):
            assert held.since_seconds <= now < held.until_seconds
