"""Alarms when one target's predictions stop being what they were: on errors, and on coverage.

Both bet against the claim that nothing changed and restart whenever they have lost (e-detectors).
While the claim holds no bet has an edge, so evidence of RUN_LENGTH arises by chance at most once in
so many outcomes on average. The first bets on where an outcome's standard score ranks among the
latest, whatever their distribution. The second bets on misses coming more often than they may.
Outcomes that come close together share their fate, which is no drift: evidence of slower or
quicker outcomes counts only once recent predictions are off by a material factor.
"""

from __future__ import annotations

import math
from enum import StrEnum

RUN_LENGTH = 20_000.0  # outcomes between false alarms, at least, on average
ACTIVE_OUTCOMES = 200  # for so many outcomes an alarm is shown as active
RANK_BET = 0.8  # of what is at stake, on an extreme rank
ALLOWED_MISSES = 0.12  # 90 % nominal, less the two points that the objective allows
SUSPECTED_MISSES = 0.30
MISS_GAIN = SUSPECTED_MISSES / ALLOWED_MISSES
COVERED_GAIN = (1.0 - SUSPECTED_MISSES) / (1.0 - ALLOWED_MISSES)
MATERIAL_SHIFT = math.log(1.15)


class DriftKind(StrEnum):
    """What changed."""

    SLOWER = "slower"  # outcomes take longer than they did beside the same predictions
    QUICKER = "quicker"
    UNCOVERED = "uncovered"  # intervals miss too often


class DriftAlarm:
    """Watches one target. Ranks lie in (0, 1)."""

    def __init__(self) -> None:
        # Two bets share the claim on errors, so each must win twice as much.
        self._slower, self._quicker = _Bet(2.0 * RUN_LENGTH), _Bet(2.0 * RUN_LENGTH)
        self._uncovered = _Bet(RUN_LENGTH)
        self._bets = {
            DriftKind.SLOWER: self._slower,
            DriftKind.QUICKER: self._quicker,
            DriftKind.UNCOVERED: self._uncovered,
        }

    @property
    def alarms(self) -> dict[DriftKind, int]:
        """How often each was raised; once for as long as it stays active."""
        return {kind: bet.alarms for kind, bet in self._bets.items()}

    def is_active(self, kind: DriftKind) -> bool:
        """Whether one of the latest ACTIVE_OUTCOMES outcomes raised this alarm."""
        return self._bets[kind].left > 0

    def add(self, rank: float, missed: bool, recent_shift: float) -> None:
        """One more outcome: its error's rank among the latest, and whether its interval missed.

        `recent_shift`: the median of the latest logs of actual over what the model predicted.
        """
        stake = RANK_BET * (2.0 * rank - 1.0)
        self._slower.settle(1.0 + stake, recent_shift > MATERIAL_SHIFT)
        self._quicker.settle(1.0 - stake, recent_shift < -MATERIAL_SHIFT)
        self._uncovered.settle(MISS_GAIN if missed else COVERED_GAIN, True)


class _Bet:
    __slots__ = ("alarms", "enough", "evidence", "left")

    def __init__(self, enough: float) -> None:
        self.enough = enough
        self.evidence = 0.0
        self.alarms = 0
        self.left = 0  # outcomes until the alarm ends

    def settle(self, gain: float, material: bool) -> None:
        evidence = self.evidence * gain if self.evidence > 1.0 else gain
        if self.left:
            self.left -= 1
        if evidence >= self.enough:
            evidence = self.enough
            if material:
                self.alarms += not self.left
                self.left = ACTIVE_OUTCOMES
                evidence = 0.0
        self.evidence = evidence
