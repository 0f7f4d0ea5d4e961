"""The gateway's state machine: roles, bounds, and that every hold ends."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvready.advisor.gateway import holds as holds_module
from kvready.advisor.gateway.holds import KNOWN_SECONDS, Holds, Let, Release

CAP_SECONDS = 5.0
# Prompts as chains: equal beginnings have equal keys, as in what is hashed.
WORDS = st.lists(st.sampled_from("ab"), min_size=1, max_size=6)


def chain(words: list[str]) -> tuple[int, ...]:
    """A key for each beginning."""
    return tuple(hash_of("".join(words[: n + 1])) for n in range(len(words)))


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode().ljust(8, b"\0"), "big")


class HoldsMachine(RuleBasedStateMachine):
    """Any order of arrivals, first tokens, ends, releases and time, against a plain account."""

    @initialize()
    def begin(self) -> None:
        self.holds = Holds()
        self.now = 100.0
        self.number = 0
        self.leaders: dict[str, tuple[int, ...]] = {}
        self.held: dict[str, tuple[str, float]] = {}
        self.known: dict[int, float] = {}
        self.once_held: set[str] = set()

    # What happens --------------------------------------------------------------------------

    @rule(words=WORDS, wants=st.booleans(), seconds=st.floats(0.1, CAP_SECONDS))
    def arrives(self, words: list[str], wants: bool, seconds: float) -> None:
        name, pieces = f"r{self.number}", chain(words)
        self.number += 1
        match = self.holds.match(pieces, self.now)
        known = self.known_by_account(pieces)
        shared = max((common(pieces, other) for other in self.leaders.values()), default=0)
        if shared <= known:
            assert match is None
        else:
            assert match is not None
            assert (match.shared, match.known) == (shared, known)
            assert common(pieces, self.leaders[match.leader]) == shared
        if match is not None and wants:
            assert self.holds.hold(name, match.leader, self.now + seconds)
            self.held[name] = match.leader, self.now + seconds
            self.once_held.add(name)
        else:
            assert self.holds.lead(name, pieces)
            self.leaders[name] = pieces

    @precondition(lambda self: self.leaders)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.leaders)))
        lets = self.holds.first_token(name, self.now)
        self.let_are(lets, self.followers(name), Release.FIRST_TOKEN)
        for key in self.leaders.pop(name):
            self.known[key] = self.now

    @precondition(lambda self: self.leaders or self.held)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({*self.leaders, *self.held})))
        followers = self.followers(name)
        lets = self.holds.ended(name)
        self.let_are(lets, followers, Release.LEADER_GONE)
        self.leaders.pop(name, None)
        self.held.pop(name, None)

    @rule(seconds=st.floats(0.0, 2 * CAP_SECONDS) | st.just(KNOWN_SECONDS))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        over = {name for name, (_, until) in self.held.items() if until <= self.now}
        self.let_are(self.holds.expired(self.now), over, Release.DEADLINE)

    @rule()
    def switched_off(self) -> None:
        self.let_are(self.holds.let_all(Release.FLAG_OFF), set(self.held), Release.FLAG_OFF)

    @precondition(lambda self: self.once_held)
    @rule(data=st.data(), words=WORDS)
    def goes_on_after_a_hold(self, data: st.DataObject, words: list[str]) -> None:
        name = data.draw(st.sampled_from(sorted(self.once_held)))
        if name in self.held or name in self.leaders:
            with pytest.raises(ValueError, match="under way"):
                self.holds.lead(name, chain(words))
            with pytest.raises(ValueError, match="under way"):
                self.holds.hold(name, name, self.now)
        else:
            assert self.holds.lead(name, chain(words))
            self.leaders[name] = chain(words)

    @rule()
    def nobody_follows_who_is_gone(self) -> None:
        assert not self.holds.hold("late", "gone", self.now + 1.0)

    # What holds ----------------------------------------------------------------------------

    @invariant()
    def roles_are_as_accounted_and_never_both(self) -> None:
        if not hasattr(self, "holds"):
            return
        assert not self.leaders.keys() & self.held.keys()
        assert self.holds.held == len(self.held)
        assert self.holds.leading == len(self.leaders)
        for name, (leader, until) in self.held.items():
            assert self.holds.until_seconds(name) == until > self.now
            assert leader in self.leaders

    @invariant()
    def nothing_is_left_of_who_is_gone(self) -> None:
        if not hasattr(self, "holds"):
            return
        led = {key for pieces in self.leaders.values() for key in pieces}
        assert self.holds._led.keys() == led
        assert self.holds._led_pieces == sum(map(len, self.leaders.values()))

    # ---------------------------------------------------------------------------------------

    def followers(self, name: str) -> set[str]:
        return {held for held, (leader, _) in self.held.items() if leader == name}

    def let_are(self, lets: list[Let], names: set[str], why: Release) -> None:
        assert {let.name for let in lets} == names
        assert len(lets) == len(names)
        assert {let.why for let in lets} <= {why}
        for name in names:
            del self.held[name]

    def known_by_account(self, pieces: tuple[int, ...]) -> int:
        known = 0
        for key in pieces:
            if self.now - self.known.get(key, -1e9) >= KNOWN_SECONDS:
                break
            known += 1
        return known


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


TestHolds = HoldsMachine.TestCase


@pytest.mark.parametrize("bound", ["MAX_LEADERS", "MAX_LED_PIECES", "MAX_HELD", "MAX_FOLLOWERS"])
def test_beyond_a_bound_nobody_leads_or_is_held(bound: str, monkeypatch) -> None:
    monkeypatch.setattr(holds_module, bound, 3)
    holds = Holds()
    led = [holds.lead(f"l{n}", (n,)) for n in range(4)]
    assert led == [True] * 3 + [bound not in ("MAX_LEADERS", "MAX_LED_PIECES")]
    held = [holds.hold(f"f{n}", "l0", 9.0) for n in range(4)]
    assert held == [True] * 3 + [bound not in ("MAX_HELD", "MAX_FOLLOWERS")]
    assert holds.match((3,), 0.0) is None or led[3]
    assert [let.name for let in holds.ended("l0")] == [f"f{n}" for n in range(sum(held))]


def test_what_is_known_is_bounded_and_stays_a_prefix(monkeypatch) -> None:
    monkeypatch.setattr(holds_module, "MAX_KNOWN_PIECES", 4)
    holds = Holds()
    for name, pieces in (("a", (1, 2, 3)), ("b", (1, 5, 6))):
        holds.lead(name, pieces)
        holds.first_token(name, 0.0)
    assert holds.known_pieces((1, 5, 6), 1.0) == 3
    assert holds.known_pieces((1, 2, 3), 1.0) == 2  # the deepest went first
    holds.forget_known()
    assert holds.known_pieces((1, 5, 6), 1.0) == 0
