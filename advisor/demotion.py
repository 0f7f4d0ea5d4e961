"""How fast predictions use up what may be bad of them, and when that takes a policy back. Pure.

A burn of 1 uses the budget up exactly. Two windows must agree, a long one (it matters) and a short
one (it still goes on): the pairs of the SRE workbook, chapter 5, with the factors of our design.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvready.advisor.ledger import Target
from kvready.advisor.minute_sums import MinuteSums, WindowSum
from kvready.advisor.verdicts import Check, Gate, Verdict

OBJECTIVE = 0.95  # of forecasts good
SHADOW_LESS = 0.02  # than the last shadow days, where those did not reach it
LEAST_OBJECTIVE = 0.80
MIN_SHADOW_PAIRS = 500
MIN_SHADOW_MINUTES = 24 * 60
MIN_PAIRS = 50  # in the long window
MIN_MINUTES = 10  # of it, with pairs
# Where the budget is more than a sixth no burn of 6 exists: nearly all bad is enough then.
NEARLY_ALL = 0.90


class BurnPair(NamedTuple):
    """Two windows, in minutes, and the burn that both must reach."""

    name: str
    burn: float
    long_minutes: int
    short_minutes: int
    takes_back: bool = True  # else it is only told


PAIRS = (
    BurnPair("1h_5m", 6.0, 60, 5),
    BurnPair("6h_30m", 3.0, 360, 30),
    BurnPair("3d_6h", 1.0, 4_320, 360, takes_back=False),
)


class Burn(NamedTuple):
    """One target against one pair of windows."""

    target: Target
    pair: BurnPair
    burn: float | None  # of the better of both windows; None: too little is known
    limit: float
    long: WindowSum

    @property
    def is_burning(self) -> bool:
        """Whether both windows are at the limit or beyond it."""
        return self.burn is not None and self.burn >= self.limit


def objective(shadow: WindowSum) -> float:
    """The share of forecasts that must be good: 95 %, or what shadow days showed, less 2 points.

    The latter only where it is less, and never less than 80 %.
    """
    if shadow.pairs < MIN_SHADOW_PAIRS or shadow.minutes < MIN_SHADOW_MINUTES:
        return OBJECTIVE
    shown = 1.0 - shadow.share - SHADOW_LESS
    return min(OBJECTIVE, max(LEAST_OBJECTIVE, shown))


def burns(
    sums: Mapping[Target, MinuteSums],
    pending: Mapping[Target, int],
    aim: float,
    now_seconds: float,
) -> list[Burn]:
    """Every target by every pair. `pending`: overdue forecasts that are bad by now."""
    budget = 1.0 - aim
    found = []
    for target, own in sums.items():
        late = pending.get(target, 0)
        for pair in PAIRS:
            long = _with(own.window(pair.long_minutes, now_seconds), late)
            short = _with(own.window(pair.short_minutes, now_seconds), late)
            told = long.pairs >= MIN_PAIRS and long.minutes >= MIN_MINUTES
            burn = min(long.share, short.share) / budget if told else None
            found.append(Burn(target, pair, burn, min(pair.burn, NEARLY_ALL / budget), long))
    return found


def burn_checks(found: list[Burn], targets: tuple[Target, ...]) -> tuple[Check, ...]:
    """For each pair that takes policies back, the target that burns most."""
    checks = []
    for pair in PAIRS:
        if not pair.takes_back:
            continue
        told = [one for one in found if one.pair is pair and one.target in targets]
        known = [one for one in told if one.burn is not None]
        worst = max(known, key=lambda one: one.burn or 0.0, default=None)
        verdict, note = (
            Verdict.INCONCLUSIVE,
            f"fewer than {MIN_PAIRS} outcomes in {MIN_MINUTES} min",
        )
        if worst is not None:
            verdict = Verdict.FAIL if worst.is_burning else Verdict.PASS
            note = f"{worst.target}: {worst.long.bad} of {worst.long.pairs} bad in the long window"
        checks.append(
            Check(
                gate=Gate.ACCURACY,
                name=f"bad_prediction_burn_{pair.name}",
                verdict=verdict,
                value=worst.burn if worst else None,
                at_most=worst.limit if worst else pair.burn,
                unit="ratio",
                note=note,
            )
        )
    return tuple(checks)


def _with(window: WindowSum, late: int) -> WindowSum:
    return WindowSum(window.pairs + late, window.bad + late, window.minutes)
