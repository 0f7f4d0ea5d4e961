"""The windows of every policy as they end, and the judge of each that acts. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from kvready.advisor.canary import CanaryArms
from kvready.advisor.harm import HarmJudge
from kvready.advisor.modes import ASIDE, MAX_STATES, Transition
from kvready.advisor.policies import Policy, PolicyState
from kvready.advisor.window_tracker import Key, WindowTracker
from kvready.advisor.windows import WindowSummary

MAX_KEPT_WINDOWS = 1_024  # of each policy and scope, the latest

OnWindow = Callable[[Key, WindowSummary], None]


class CanaryWatch:
    """Judges anew from each move that decides whether a policy acts."""

    def __init__(
        self,
        states: Callable[[], Collection[PolicyState]],
        on_window: OnWindow | None = None,
    ) -> None:
        """`states`: where each policy stands; `on_window` hears of each window that is told."""
        self.arms = CanaryArms(states, lambda key: self.judge(key).suspects)
        self.tracker = WindowTracker(self._told, self.arms)
        self.on_window = on_window
        self._judges: dict[Key, HarmJudge] = {}
        self._windows: dict[Key, deque[WindowSummary]] = {}

    def judge(self, key: Key) -> HarmJudge:
        """The judge of a policy in a scope, since it last moved."""
        found = self._judges.get(key)
        return found if found is not None else HarmJudge(key[0])

    def windows(self, key: Key) -> Sequence[WindowSummary]:
        """The latest windows that were told, oldest first."""
        return tuple(self._windows.get(key, ()))

    def moved(self, transition: Transition) -> None:
        """A policy moved: what was paired before says nothing of what it does now."""
        if transition.trigger in ASIDE:
            return
        self._judges.pop((transition.policy, transition.scope), None)
        if transition.before.mode.acts or transition.after.mode.acts:
            self.tracker.begin_anew(transition.seconds, f"{transition.policy} moved")

    def _told(self, key: Key, window: WindowSummary) -> None:
        kept = self._windows.get(key)
        if kept is None:
            if len(self._windows) >= MAX_STATES:
                return
            kept = self._windows[key] = deque(maxlen=MAX_KEPT_WINDOWS)
        kept.append(window)
        judge = self._judges.get(key)
        if judge is None:
            judge = self._judges[key] = HarmJudge(Policy(key[0]))
        judge.add(window)
        if self.on_window is not None:
            self.on_window(key, window)
