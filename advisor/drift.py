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
MATERIAL_SHIFT = math.log(1.15)


class DriftKind(StrEnum):
    """What changed."""

    SLOWER = "slower"  # outcomes take longer than they did beside the same predictions
    QUICKER = "quicker"
    UNCOVERED = "uncovered"  # intervals miss too often


class DriftAlarm:
    """Watches one target. Ranks lie in (0, 1)."""

    def __init__(self) -> None:
        self.alarms: dict[DriftKind, int] = dict.fromkeys(DriftKind, 0)
        self._evidence: dict[DriftKind, float] = dict.fromkeys(DriftKind, 0.0)
        self._left: dict[DriftKind, int] = dict.fromkeys(DriftKind, 0)

    def is_active(self, kind: DriftKind) -> bool:
        """Whether one of the latest ACTIVE_OUTCOMES outcomes raised this alarm."""
        return self._left[kind] > 0

    def add(self, rank: float, missed: bool, recent_shift: float) -> None:
        """One more outcome: its error's rank among the latest, and whether its interval missed.

        `recent_shift`: the median of the latest logs of actual over what the model predicted.
        """
        bet = RANK_BET * (2.0 * rank - 1.0)
        # Two bets share the claim, so each must win twice as much.
        self._bet(DriftKind.SLOWER, 1.0 + bet, 2.0 * RUN_LENGTH, recent_shift > MATERIAL_SHIFT)
        self._bet(DriftKind.QUICKER, 1.0 - bet, 2.0 * RUN_LENGTH, recent_shift < -MATERIAL_SHIFT)
        if missed:
            gain = SUSPECTED_MISSES / ALLOWED_MISSES
        else:
            gain = (1.0 - SUSPECTED_MISSES) / (1.0 - ALLOWED_MISSES)
        self._bet(DriftKind.UNCOVERED, gain, RUN_LENGTH, True)

    def _bet(self, kind: DriftKind, gain: float, enough: float, material: bool) -> None:
        evidence = min(max(self._evidence[kind], 1.0) * gain, enough)
        self._left[kind] = max(0, self._left[kind] - 1)
        if evidence >= enough and material:
            self.alarms[kind] += not self._left[kind]  # one alarm as long as it stays active
            self._left[kind] = ACTIVE_OUTCOMES
            evidence = 0.0
        self._evidence[kind] = evidence
