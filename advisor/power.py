"""What a canary could tell of this traffic, and how long it takes: asked before one begins. Pure.

The traffic's own untreated windows are paired as they came, and pairs of neighbours drawn again in
blocks, with fresh coins, as a canary would draw them. The very tests that would judge it run on
them, with harm or benefit added. Figures are of 90 % power: so many of the draws have told by then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

import msgspec

from kvready.advisor.canary import Draw
from kvready.advisor.confidence import Evidence
from kvready.advisor.harm import BENEFITS, FALSE_HARMLESS, FALSE_PROMOTION, FALSE_ROLLBACK
from kvready.advisor.measures import LIMITS, Measure, differences, is_ratio, on_scale
from kvready.advisor.modes import MAX_CANARY_SECONDS
from kvready.advisor.policies import Policy
from kvready.advisor.windows import Arm, WindowSummary

POWER = 0.9
HARMS = (0.10, 0.25, 0.50)
EXPECTED_BENEFIT = 0.10  # of the mean TTFT, where nobody says what is hoped for
MIN_PAIRS = 6  # of untreated windows: fewer say nothing of what pairs differ by
BLOCK_PAIRS = 3  # drawn together, as they followed each other
REPLICATES = 100
MAX_PAIRS = 4_096  # followed in one draw
EFFECT_STEPS = 7  # of bisection for the detectable effect
MAX_EFFECT = 4.0  # on the scale of differences; beyond, whatever is told is told at once
SECONDS_PER_HOUR = 3_600.0


class Detection(msgspec.Struct, frozen=True):
    """How long one thing takes to be told. None: not within what a canary may last."""

    what: str
    pairs: int | None
    hours: float | None


class MeasurePower(msgspec.Struct, frozen=True):
    """One measure. `scatter`: of a pair's differences, as logarithms where they are ratios."""

    measure: Measure
    pairs: int  # of untreated windows that told it
    scatter: float
    harms: tuple[Detection, ...]
    harmless: Detection
    detectable: float | None  # the least harm found within a canary; a ratio less 1, or a share


class PowerPlan(msgspec.Struct, frozen=True):
    """A canary before it begins."""

    policy: Policy
    percent: int
    pair_seconds: float | None
    split_ratio: float  # of the pairs that have both arms
    usable_ratio: float | None  # of the pairs that were clean and full enough
    measures: tuple[MeasurePower, ...]
    benefit: Detection | None
    longest_hours: float  # that a canary may last
    refusals: tuple[str, ...]  # why it cannot conclude; empty: it can


def planned(
    windows: Sequence[WindowSummary],
    policy: Policy,
    percent: int,
    expected_benefit: float = EXPECTED_BENEFIT,
    seed: int = 1,
) -> PowerPlan:
    """What a canary of so many per cent could tell. `windows`: untreated ones, in their order."""
    pairs = list(_pairs(windows))
    seconds = fmean(two.end_seconds - one.begin_seconds for one, two in pairs) if pairs else None
    clean = [(one, two) for one, two in pairs if one.is_clean and two.is_clean]
    usable = [both for both in clean if differences(Measure.MEAN_TTFT, *both)]
    ratio = len(usable) / len(pairs) if pairs else None
    split_ratio = float(Draw(policy, "", percent).split_ratio)
    pace = seconds / split_ratio / ratio if seconds and ratio and split_ratio else None
    refusals = []
    if len(usable) < MIN_PAIRS:
        refusals.append(
            f"{len(usable)} pairs of clean windows with enough requests were seen; at least "
            f"{MIN_PAIRS} are needed: watch for longer"
        )
    measures = []
    benefit = None
    if pace is not None and not refusals:
        course = _Course(pace, random.Random(seed))
        found = _differences(usable, policy)
        for measure, limit in LIMITS[policy].items():
            seen = found[measure]
            if len(seen) < MIN_PAIRS:
                if limit.is_own:
                    refusals.append(f"{measure} was told by {len(seen)} pairs alone")
                continue
            measures.append(_measured(course, policy, measure, seen))
        benefit = course.benefit(found[Measure.MEAN_TTFT], expected_benefit)
        refusals += _unconcluded(measures, benefit)
    return PowerPlan(
        policy=policy,
        percent=percent,
        pair_seconds=seconds,
        split_ratio=split_ratio,
        usable_ratio=ratio,
        measures=tuple(measures),
        benefit=benefit,
        longest_hours=MAX_CANARY_SECONDS / SECONDS_PER_HOUR,
        refusals=tuple(refusals),
    )


class _Course:
    """Draws what a canary would see, until it would have told."""

    def __init__(self, pace_seconds: float, source: random.Random) -> None:
        self._pace = pace_seconds  # from one split pair that counts to the next
        self._source = source
        self._longest = min(MAX_PAIRS, int(MAX_CANARY_SECONDS / pace_seconds))

    def harm(self, seen: Sequence[float], measure: Measure, policy: Policy, harm: float) -> int:
        """Pairs until harm of a size is rolled back; beyond the longest: never."""
        limit = LIMITS[policy][measure]
        alpha = FALSE_ROLLBACK * limit.weight
        null = on_scale(measure, limit.tolerated)
        return self._told(seen, harm, null, alpha, restarts=True)

    def harmless(self, seen: Sequence[float], measure: Measure, policy: Policy) -> int:
        """Pairs until no harm at all is told from harm at the limit."""
        accepted = on_scale(measure, LIMITS[policy][measure].accepted)
        return self._told(seen, 0.0, -accepted, FALSE_HARMLESS)

    def benefit(self, seen: Sequence[float], expected: float) -> Detection:
        """Until a mean TTFT that is shorter by the share expected is proved to be shorter."""
        shift = -math.log1p(-expected)
        pairs = self._told(seen, shift, 0.0, FALSE_PROMOTION / len(BENEFITS))
        return self.detection(f"mean TTFT {expected:.0%} shorter", pairs)

    def detection(self, what: str, pairs: int) -> Detection:
        """Pairs as hours."""
        if pairs > self._longest:
            return Detection(what, None, None)
        return Detection(what, pairs, pairs * self._pace / SECONDS_PER_HOUR)

    def detects(self, pairs: int) -> bool:
        """Whether a canary lasts so long."""
        return pairs <= self._longest

    def _told(
        self,
        seen: Sequence[float],
        shift: float,
        null: float,
        alpha: float,
        restarts: bool = False,
    ) -> int:
        counts = sorted(
            self._first_told(seen, shift, Evidence(null, restarts), alpha)
            for _ in range(REPLICATES)
        )
        return counts[math.ceil(POWER * REPLICATES) - 1]

    def _first_told(
        self, seen: Sequence[float], shift: float, evidence: Evidence, alpha: float
    ) -> int:
        for number, drawn in enumerate(redrawn(seen, self._source), start=1):
            if number > self._longest:
                break
            evidence.add(drawn + shift)
            if evidence.proves(alpha):
                return number
        return self._longest + 1


def redrawn(seen: Sequence[float], source: random.Random) -> Iterator[float]:
    """Differences of pairs for ever: blocks of what was seen, each with a fresh coin."""
    while True:
        begin = source.randrange(len(seen))
        for offset in range(BLOCK_PAIRS):
            difference = seen[(begin + offset) % len(seen)]
            yield difference if source.random() < 0.5 else -difference


def _measured(
    course: _Course, policy: Policy, measure: Measure, seen: Sequence[float]
) -> MeasurePower:
    harms = tuple(
        course.detection(f"{harm:.0%} harm", course.harm(seen, measure, policy, _shift(harm)))
        for harm in HARMS
        if is_ratio(measure)
    )
    return MeasurePower(
        measure=measure,
        pairs=len(seen),
        scatter=math.sqrt(fmean(one * one for one in seen)),
        harms=harms,
        harmless=course.detection("no harm", course.harmless(seen, measure, policy)),
        detectable=_detectable(course, policy, measure, seen),
    )


def _detectable(
    course: _Course, policy: Policy, measure: Measure, seen: Sequence[float]
) -> float | None:
    low, high = 0.0, MAX_EFFECT if is_ratio(measure) else 1.0
    if not course.detects(course.harm(seen, measure, policy, high)):
        return None
    for _ in range(EFFECT_STEPS):
        middle = (low + high) / 2.0
        if course.detects(course.harm(seen, measure, policy, middle)):
            high = middle
        else:
            low = middle
    return math.expm1(high) if is_ratio(measure) else high


def _unconcluded(measures: Sequence[MeasurePower], benefit: Detection) -> Iterator[str]:
    for one in measures:
        if one.harmless.pairs is None:
            yield f"{one.measure}: that there is no harm would not be told in time"
    if benefit.pairs is None:
        yield f"{benefit.what} would not be told in time"


def _pairs(windows: Sequence[WindowSummary]) -> Iterator[tuple[WindowSummary, WindowSummary]]:
    for one, two in pairwise(windows):
        if one.pair == two.pair and one.arm is two.arm is Arm.CONTROL:
            yield one, two


def _differences(
    pairs: Sequence[tuple[WindowSummary, WindowSummary]], policy: Policy
) -> dict[Measure, list[float]]:
    """By measure; of tenants, the one that was told most often."""
    found: dict[Measure, list[float]] = {}
    for measure in LIMITS[policy]:
        named: dict[str, list[float]] = {}
        for one, two in pairs:
            for name, difference in differences(measure, one, two).items():
                named.setdefault(name, []).append(difference)
        found[measure] = max(named.values(), key=len, default=[])
    return found


def _shift(harm: float) -> float:
    return math.log1p(harm)
