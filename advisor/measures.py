"""What a policy may harm, and how two windows are compared by it. Pure.

Durations are compared as logarithms of their ratio, after the grace that every judgement of a wait
gives: a busy pair of windows weighs no more than a quiet one, and a millisecond more of nothing is
no harm. Shares are compared as they are.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from kvready.advisor.policies import Policy
from kvready.advisor.windows import WindowSummary

GRACE_SECONDS = 0.025  # on both sides of a ratio of waits
TOKEN_GRACE_SECONDS = 0.001  # of times per output token


class Measure(StrEnum):
    """One figure of a window; more of it is worse."""

    MEAN_TTFT = "mean_ttft"
    OVER_TARGET = "over_target"
    FOLLOWER_P99 = "follower_p99"
    OUTPUT_TOKEN = "output_token"
    STARVED = "starved_p99"
    TENANT = "tenant_ttft"


class Limit(msgspec.Struct, frozen=True):
    """How much harm is called harm. Ratios to the control, or a difference of shares.

    `weight`: the part of the false-alarm budget that this measure may use up.
    """

    tolerated: float  # proved to be above: rolled back
    accepted: float  # proved to be below: no harm
    weight: float
    is_own: bool = False  # without it the policy cannot be judged


# 1.05 and 1.10 of the time per output token: a gather costs decode "under 10 %" (Strata, section
# 4.2). A tail of a window is a single request: wide limits, or no canary would ever conclude.
LIMITS: dict[Policy, dict[Measure, Limit]] = {
    Policy.DEDUP: {
        Measure.MEAN_TTFT: Limit(1.0, 1.10, 0.3, True),
        Measure.OVER_TARGET: Limit(0.0, 0.02, 0.2),
        Measure.FOLLOWER_P99: Limit(1.0, 1.25, 0.3, True),
        Measure.TENANT: Limit(1.0, 1.25, 0.2),
    },
    Policy.BALANCE: {
        Measure.MEAN_TTFT: Limit(1.0, 1.10, 0.3, True),
        Measure.OVER_TARGET: Limit(0.0, 0.02, 0.2),
        Measure.STARVED: Limit(1.0, 1.25, 0.3, True),
        Measure.TENANT: Limit(1.0, 1.25, 0.2),
    },
    Policy.GPU_COPY: {
        Measure.MEAN_TTFT: Limit(1.0, 1.10, 0.3, True),
        Measure.OVER_TARGET: Limit(0.0, 0.02, 0.2),
        Measure.OUTPUT_TOKEN: Limit(1.05, 1.10, 0.3, True),
        Measure.TENANT: Limit(1.0, 1.25, 0.2),
    },
}


def is_ratio(measure: Measure) -> bool:
    """Whether two windows are compared by their ratio."""
    return measure is not Measure.OVER_TARGET


def on_scale(measure: Measure, limit: float) -> float:
    """A limit as differences are: the logarithm of a ratio."""
    return math.log(limit) if is_ratio(measure) else limit


def as_told(measure: Measure, difference: float) -> float:
    """A difference as a person reads it: the ratio of a ratio."""
    return math.exp(min(difference, 700.0)) if is_ratio(measure) else difference


def differences(
    measure: Measure, control: WindowSummary, treated: WindowSummary
) -> dict[str, float]:
    """Treated less control, by tenant where the measure is one of tenants. Missing: unknown."""
    if measure is Measure.TENANT:
        both = control.tenant_ttft_seconds.keys() & treated.tenant_ttft_seconds.keys()
        return {
            name: _log_ratio(
                control.tenant_ttft_seconds[name], treated.tenant_ttft_seconds[name], GRACE_SECONDS
            )
            for name in sorted(both)
        }
    before, after = _figure(measure, control), _figure(measure, treated)
    if before is None or after is None:
        return {}
    if not is_ratio(measure):
        return {"": after - before}
    grace = TOKEN_GRACE_SECONDS if measure is Measure.OUTPUT_TOKEN else GRACE_SECONDS
    return {"": _log_ratio(before, after, grace)}


def _figure(measure: Measure, window: WindowSummary) -> float | None:
    match measure:
        case Measure.MEAN_TTFT:
            return window.mean_ttft_seconds
        case Measure.OVER_TARGET:
            return window.over_target_ratio
        case Measure.FOLLOWER_P99:
            return window.follower_p99_seconds
        case Measure.OUTPUT_TOKEN:
            return window.output_token_p50_seconds
        case Measure.STARVED:
            return window.starved_p99_seconds
        case Measure.TENANT:
            return None


def _log_ratio(before: float, after: float, grace: float) -> float:
    return math.log((after + grace) / (before + grace))
