"""A claim, the paper's figure, ours, and whether the two agree. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.whatif.suite.measures import Measured
from kvready.advisor.whatif.suite.ranges import Claim, Kind
from kvready.advisor.whatif.suite.reasons import REASONS

WIDE = 1.5  # high over low beyond which being covered says little


class Verdict(StrEnum):
    """Of a prediction; nothing else has one."""

    COVERED = "covered"
    MISSED = "missed"


class Row(msgspec.Struct, frozen=True):
    """One line of the table. Shares are fractions where the unit is %."""

    name: str
    claim: str
    kind: Kind
    paper: str
    ours: float | None
    range: tuple[float, float] | None  # over all settings and readings
    verdict: Verdict | None
    why: str
    unit: str = ""
    held: str = ""  # of an order: in how many settings
    accepted: tuple[float, float] | None = None  # what counts as the paper's


def row(claim: Claim, found: Measured | None, missing: str = "") -> Row:
    """Beside what was measured; None: it could not be, for a reason."""
    kind = claim.kind if found is not None else Kind.NOT_TESTABLE
    if found is None:
        found = Measured()
    verdict = judged(claim, found) if kind is Kind.PREDICTION else None
    span = None if found.low is None or found.high is None else (found.low, found.high)
    return Row(
        claim.name,
        claim.claim,
        kind,
        claim.paper,
        found.middle,
        span,
        verdict,
        "; ".join(filter(None, (claim.why, missing, *_why(claim, found, verdict)))),
        claim.unit,
        "" if found.held is None else f"{found.held} of {found.settings}",
        None if claim.low is None or claim.high is None else (claim.low, claim.high),
    )


def judged(claim: Claim, found: Measured) -> Verdict:
    """By the rule of the file: intervals touch; an order holds in the middle and in most."""
    if found.held is not None:
        held = bool(found.holds) and 2 * found.held > found.settings
        return Verdict.COVERED if held else Verdict.MISSED
    if found.low is None or found.high is None or claim.low is None or claim.high is None:
        return Verdict.MISSED
    touch = found.low <= claim.high and claim.low <= found.high
    return Verdict.COVERED if touch else Verdict.MISSED


def _why(claim: Claim, found: Measured, verdict: Verdict | None) -> list[str]:
    told = [f"counts as met: {claim.accepts}"] if claim.accepts and verdict else []
    if claim.doubt:
        told.append(f"the paper disagrees with itself: {claim.doubt}")
    if found.unread:
        told.append(f"{found.unread} readings have no value: a curve lies above the TTFT level")
    if verdict is None:
        return told
    low, high = found.low, found.high
    if verdict is Verdict.COVERED and low is not None and high is not None:
        if low > 0.0 and high / low > WIDE:
            told.append("a wide range, so a weak agreement")
    elif low is not None and claim.high is not None:
        told.append("ours is above in all of them" if low > claim.high else "ours is below in all")
    reason = REASONS.get(claim.name)
    if reason is not None and reason.verdict == verdict.value:
        told.append(reason.text)
    return told
