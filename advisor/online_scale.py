"""A factor that follows how pace drifts: slowly past noise, at once after a shift."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

GAIN = 0.1  # of each error: an average over the last ten or so
LARGEST_STEP = math.log(1.5)  # an outlier moves the scale by no more than GAIN of this
SHIFT_RUN = 6  # errors in a row on one side: by chance once in 32
SHIFT_ERROR = math.log(1.25)  # and in the middle larger than this,
SHIFT_OVER_USUAL = 2.0  # and than so many times the usual error: noise makes runs as well
USUAL_GAIN = 0.05
LARGEST_SCALE = math.log(100.0)


class OnlineScale:
    """Multiplies predictions by `value`. Robust: the median of a run decides what a shift is."""

    def __init__(self) -> None:
        self.value = 1.0
        self.shifts = 0
        self._log = 0.0
        self._usual = SHIFT_ERROR / SHIFT_OVER_USUAL  # size of an error, of late
        self._run: deque[float] = deque(maxlen=SHIFT_RUN)

    def learn(self, predicted_seconds: float, actual_seconds: float) -> None:
        """Take in an outcome beside its prediction before scaling."""
        if predicted_seconds <= 0.0 or actual_seconds <= 0.0:
            return
        error = math.log(actual_seconds / predicted_seconds) - self._log
        self._run.append(error)
        self._usual += USUAL_GAIN * (min(abs(error), LARGEST_STEP) - self._usual)
        if self._has_shifted():
            self._move(median(self._run))
            self._run.clear()
            self.shifts += 1
        else:
            self._move(GAIN * max(-LARGEST_STEP, min(LARGEST_STEP, error)))

    def _has_shifted(self) -> bool:
        if len(self._run) < SHIFT_RUN:
            return False
        one_side = min(self._run) > 0.0 or max(self._run) < 0.0
        return one_side and abs(median(self._run)) > max(
            SHIFT_ERROR, SHIFT_OVER_USUAL * self._usual
        )

    def _move(self, by: float) -> None:
        self._log = max(-LARGEST_SCALE, min(LARGEST_SCALE, self._log + by))
        self.value = math.exp(self._log)
