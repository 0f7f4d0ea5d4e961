"""What a policy would have saved, by episodes, and whether that can be believed.

An episode's saving is the difference of two rolls of one model. How wrong such a difference is, the
placebo tells: the engine's own policy as we know it, rolled in the same episodes, should save
nothing. Until its interval covers zero no saving of any policy is shown (design law 10).
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import NamedTuple

import msgspec

WINDOW_EPISODES = 256  # the latest, of each policy
MIN_EPISODES = 8  # fewer tell nothing of the placebo's scatter
NORMAL_90 = 1.645  # standard errors to either side
MIN_DELAY_HITS = 8  # opportunities seen before the engine is said to share by itself
NATIVE_SHARE = 0.05  # of what could be computed twice; less is: it never is


class Candidate(StrEnum):
    """A policy that is rolled forward beside what happened."""

    DEDUP = "dedup"
    BALANCE = "balance"
    PLACEBO = "engine"  # the engine's own


class Verdict(StrEnum):
    """What is said of a policy's saving."""

    SHOWN = "shown"
    NO_EPISODES = "no_episodes"  # it never decided otherwise: no benefit expected
    UNPROVEN = "unproven"  # the placebo does not read zero
    TOO_FEW = "too_few"  # episodes
    NATIVE = "native"  # the engine does it by itself


class Difference(NamedTuple):
    """What one episode would have saved. Seconds; negative: it would have cost so much."""

    ttft_seconds: float  # summed over its requests
    busy_seconds: float
    wrong_ttft_seconds: float  # what the placebo saved in this very episode
    wrong_busy_seconds: float
    requests: int


class Bounded(msgspec.Struct, frozen=True):
    """A sum of seconds with its 90 % interval; no bounds where too little is known."""

    seconds: float
    low_seconds: float | None = None
    high_seconds: float | None = None

    @property
    def covers_zero(self) -> bool:
        """Whether nothing at all is within the bounds."""
        if self.low_seconds is None or self.high_seconds is None:
            return False
        return self.low_seconds <= 0.0 <= self.high_seconds


class Saving(msgspec.Struct, frozen=True):
    """Of one candidate over its latest episodes."""

    candidate: Candidate
    verdict: Verdict
    episodes: int
    requests: int
    ttft: Bounded
    busy: Bounded

    @property
    def name(self) -> str:
        """For a person."""
        return "placebo" if self.candidate is Candidate.PLACEBO else self.candidate


class Savings:
    """Differences by candidate."""

    def __init__(self) -> None:
        self._differences: dict[Candidate, deque[Difference]] = {
            candidate: deque(maxlen=WINDOW_EPISODES) for candidate in Candidate
        }

    def add(self, candidate: Candidate, difference: Difference) -> None:
        """One more episode in which this one decided otherwise; the placebo is in all of them."""
        self._differences[candidate].append(difference)

    @property
    def needs_placebos(self) -> bool:
        """Whether too few episodes tell yet how wrong such differences are."""
        return len(self._differences[Candidate.PLACEBO]) < MIN_EPISODES

    def savings(
        self, relative_error: float, delay_hits: int, duplicate_share: float
    ) -> list[Saving]:
        """All candidates, the placebo first; `relative_error`: of the model that costs batches."""
        placebo = self._placebo()
        reads_zero = placebo.verdict is Verdict.SHOWN
        is_native = delay_hits >= MIN_DELAY_HITS and duplicate_share < NATIVE_SHARE
        placebos = self._differences[Candidate.PLACEBO]
        wrong_ttft = _mean_square([one.ttft_seconds for one in placebos])
        wrong_busy = _mean_square([one.busy_seconds for one in placebos])
        found = [placebo]
        for candidate in (Candidate.DEDUP, Candidate.BALANCE):
            episodes = self._differences[candidate]
            ttft = [(one.ttft_seconds, one.wrong_ttft_seconds) for one in episodes]
            busy = [(one.busy_seconds, one.wrong_busy_seconds) for one in episodes]
            saved = _saved(ttft, wrong_ttft, relative_error)
            if not episodes:
                verdict = Verdict.NO_EPISODES
            elif not reads_zero:
                verdict = Verdict.UNPROVEN
            else:
                verdict = Verdict.SHOWN if len(episodes) >= MIN_EPISODES else Verdict.TOO_FEW
            # Behind a long queue little is computed twice by an engine that would do it.
            saves = verdict is Verdict.SHOWN and (saved.low_seconds or 0.0) > 0.0
            if candidate is Candidate.DEDUP and is_native and not saves:
                verdict = Verdict.NATIVE
            saving = Saving(
                candidate,
                verdict,
                len(episodes),
                sum(one.requests for one in episodes),
                saved,
                _saved(busy, wrong_busy, relative_error),
            )
            found.append(saving)
        return found

    def _placebo(self) -> Saving:
        episodes = self._differences[Candidate.PLACEBO]
        ttft = _scattered([difference.ttft_seconds for difference in episodes])
        busy = _scattered([difference.busy_seconds for difference in episodes])
        reads_zero = ttft.covers_zero and busy.covers_zero
        verdict = Verdict.SHOWN if reads_zero else Verdict.UNPROVEN
        if len(episodes) < MIN_EPISODES:
            verdict = Verdict.TOO_FEW if episodes else Verdict.NO_EPISODES
        requests = sum(difference.requests for difference in episodes)
        return Saving(Candidate.PLACEBO, verdict, len(episodes), requests, ttft, busy)


def _saved(
    episodes: list[tuple[float, float]], mean_square: float, relative_error: float
) -> Bounded:
    """The sum; an episode is as wrong as its own placebo or as placebos are on average, whichever
    is more, and as the model is of what was saved."""
    total = sum(saved for saved, _ in episodes)
    variance = sum(
        max(wrong**2, mean_square) + (relative_error * saved) ** 2 for saved, wrong in episodes
    )
    reach = NORMAL_90 * math.sqrt(variance)
    return Bounded(total, total - reach, total + reach)


def _mean_square(values: list[float]) -> float:
    return sum(value**2 for value in values) / len(values) if values else 0.0


def _scattered(episodes: list[float]) -> Bounded:
    """The sum, by how its terms scatter."""
    count, total = len(episodes), sum(episodes)
    if count < MIN_EPISODES:
        return Bounded(total)
    mean = total / count
    variance = sum((one - mean) ** 2 for one in episodes) / (count - 1)
    reach = NORMAL_90 * math.sqrt(count * variance)
    return Bounded(total, total - reach, total + reach)
