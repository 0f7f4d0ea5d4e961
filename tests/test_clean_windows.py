"""Clean windows of serving: what they settle, what they forgive, and what does not count as one."""

from __future__ import annotations

import random

from story import prefill
from test_gatekeeper import Acting

from kvready.advisor.modes import CLEAN_WINDOWS, SETTLED_WINDOWS, Trigger
from kvready.advisor.policies import Hazard, Mode, Policy
from kvready.advisor.window_tracker import MIN_ENDED
from kvready.collectors.records import PoliciesRestored, Tick

QUICK_SECONDS = 0.05
SLOW_SECONDS = 5.0


class Served(Acting):
    """Dedup is enforced, and requests come."""

    def __init__(self) -> None:
        super().__init__(Policy.DEDUP)
        self.now = 1.0

    def serve(
        self, seconds: int, every: int = 1, took: tuple[float, ...] = (QUICK_SECONDS,)
    ) -> None:
        """One request each so many seconds; which of `took` it takes nothing tells beforehand."""
        draw = random.Random(self.now)
        for _ in range(seconds):
            self.tell(self.now, Tick(self.now, 1e6 + self.now), tap="recorder")
            if every and int(self.now) % every == 0:
                self._one(f"r{self.now}", self.now + 0.1, draw.choice(took))
            self.now += 1.0

    def _one(self, name: str, begin: float, took: float) -> None:
        self.arrives(begin, name, [int(begin)], prompt=200)
        self.batch(begin, begin + took, prefill(name, 200))
        self.scheduled(begin, name)
        self.first_token(begin + took, name)
        self.finished(begin + took, name)

    @property
    def triggers(self) -> list[Trigger]:
        return [move.trigger for move in self.moves if move.policy is Policy.DEDUP]


def test_what_is_enforced_through_enough_clean_windows_is_settled_once() -> None:
    story = Served()
    story.serve(MIN_ENDED + 10 * (SETTLED_WINDOWS + 2))
    assert story.triggers == [Trigger.SETTLED]
    assert story.state().clean_windows >= SETTLED_WINDOWS
    assert story.state().mode is Mode.ENFORCE


def test_windows_in_which_nothing_was_served_settle_nobody() -> None:
    story = Served()
    story.serve(MIN_ENDED + 5)
    before = story.state().clean_windows
    story.serve(20 * SETTLED_WINDOWS, every=0)
    assert story.state().clean_windows <= before + 1, "the one that was under way"
    assert Trigger.SETTLED not in story.triggers


def test_bad_predictions_are_forgiven_after_clean_windows_and_not_while_they_go_on() -> None:
    story = Served()
    while Hazard.BAD_PREDICTIONS not in story.triggers and story.now < 1_500:
        story.serve(8, every=8, took=(QUICK_SECONDS, SLOW_SECONDS))
    assert story.state().mode is Mode.ADVISE
    story.serve(240, every=8, took=(QUICK_SECONDS, SLOW_SECONDS))
    assert story.state().clean_windows == 0, "they are as bad as before"
    assert Trigger.FORGIVEN not in story.triggers
    healed = story.now
    while Trigger.FORGIVEN not in story.triggers and story.now < healed + 1_500:
        story.serve(10, every=2)
    assert story.triggers[-1] is Trigger.FORGIVEN
    assert story.state().held_by == ""
    assert story.state().clean_windows >= CLEAN_WINDOWS


def test_a_start_says_from_which_seed_and_shares_arms_are_drawn() -> None:
    one, other, again = Served(), Served(), Served()
    for story, seed in ((one, "a"), (other, "b"), (again, "a")):
        said = PoliciesRestored(
            policies=(), canary_seed=seed, canary_percent=20, control_percent=10
        )
        story.says(said)
        assert story.pipeline.canaries.arms.shares.treated_percent(Mode.ENFORCE) == 90
    draws = [story.pipeline.canaries.arms.draws() for story in (one, other, again)]
    assert draws[0] == draws[2] != draws[1]


def test_shares_that_no_sidecar_would_say_are_refused_whole() -> None:
    story = Served()
    before = story.pipeline.canaries.arms.draws()
    story.says(PoliciesRestored(policies=(), canary_seed="a", control_percent=0))
    assert story.pipeline.canaries.arms.draws() == before
    assert story.pipeline.refused_records == 1
