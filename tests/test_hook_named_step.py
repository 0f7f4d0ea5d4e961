"""What a flag says holds from one step on, on every rank the same."""

from __future__ import annotations

import random

import msgspec
import pytest

from kvready.advisor.flags import Split
from kvready.advisor.hooks.lease import Switch
from kvready.advisor.hooks.named_step import MAX_STEPS_AHEAD, NamedStep, Switches, Word

ON = {"dedup": Switch(is_on=True)}
SPLIT = {"dedup": Switch(split=Split("seed", 0.5)), "balance": Switch(is_on=True)}


def test_alone_it_holds_from_the_step_in_which_it_was_read() -> None:
    rank = NamedStep()
    rank.say(0, {})
    assert rank.at(0) == {}
    rank.say(1, ON)
    assert rank.at(1) == ON
    rank.say(2, {})
    assert rank.at(2) == {}
    assert rank.missed == 0


def test_all_ranks_do_the_same_at_each_step_whenever_they_hear() -> None:
    chance = random.Random(5)
    ahead = 4
    zero, others = NamedStep(ahead), [NamedStep(ahead) for _ in range(3)]
    # What is on its way to each rank, and the step in which it arrives; never later than it holds.
    on_the_way: list[list[tuple[int, bytes]]] = [[] for _ in others]
    said: Switches = {}
    seen = []
    for step in range(200):
        if chance.random() < 0.1:
            said = chance.choice(({}, ON, SPLIT))
        wire = msgspec.json.encode(zero.say(step, said))
        for line in on_the_way:
            line.append((step + chance.randrange(ahead + 1), wire))
        for rank, line in zip(others, on_the_way, strict=True):
            for arrived in [one for one in line if one[0] <= step]:
                line.remove(arrived)
                rank.hear(msgspec.json.decode(arrived[1], type=Word))
        held = zero.at(step)
        assert all(rank.at(step) == held for rank in others)
        seen.append((said, held))
    assert [held for _, held in seen[ahead:]] == [said for said, _ in seen[:-ahead]]
    assert {len(held) for _, held in seen} == {0, 1, 2}
    assert not any(rank.missed for rank in (zero, *others))


def test_who_hears_nothing_for_a_step_is_off_and_says_so() -> None:
    rank = NamedStep(2)
    rank.hear(Word(2, dict(ON)))
    assert [rank.at(step) for step in range(4)] == [{}, {}, ON, {}]
    assert rank.missed == 1
    rank.hear(Word(3, dict(ON)))
    assert rank.missed == 2, "its step has begun: on another rank it holds already"


def test_what_is_kept_is_bounded() -> None:
    rank = NamedStep(1)
    for step in range(10 * MAX_STEPS_AHEAD):
        rank.hear(Word(step, dict(ON)))
    assert len(rank._heard) <= MAX_STEPS_AHEAD + 1
    with pytest.raises(ValueError, match="choose 0 to 64"):
        NamedStep(MAX_STEPS_AHEAD + 1)
