"""The benefit gate: the policy would relieve what this engine is bound by, and save waiting. Pure.

Until a policy acts, its would-be saving is asked for, and the placebo that proves the machinery.
Once it acts it changes both, so that windows with and without it are compared instead.
"""

from __future__ import annotations

from kvready.advisor.gate_evidence import GateEvidence, SavingEvidence
from kvready.advisor.policies import Finding, Policy
from kvready.advisor.savings import Verdict as Saved
from kvready.advisor.verdicts import Check, Gate, Verdict

MIN_MINUTES = 10  # of serving, before its constraint is named
MINUTES_FOR_FINDING = 60  # before a policy is said to have nothing to do
MIN_BOUND = 0.10  # of those minutes, bound by what the policy relieves
MIN_BATCHES = 1_000  # compared, before a policy that never differs is said to have nothing to do


def benefit_checks(evidence: GateEvidence) -> tuple[tuple[Check, ...], Finding | None]:
    """The checks, and why the policy has nothing to do here where that is so."""
    finding = _given(evidence)
    if finding is not None:
        return (_nothing_to_do(finding, _why(evidence, finding)),), finding
    if evidence.mode.acts:
        return evidence.benefit or (_untold(),), None
    bound = _constraint(evidence)
    saving, idle = _saving(evidence)
    checks = (bound, *_placebo(evidence.saving), *saving)
    is_idle = Verdict.FAIL in (bound.verdict, idle)
    return checks, Finding.NO_BENEFIT if is_idle else None


def _given(evidence: GateEvidence) -> Finding | None:
    """What the engine itself settles."""
    engine = evidence.engine
    if not engine.supported_kv_state:
        return Finding.NO_HOOK
    if evidence.policy is Policy.GPU_COPY and engine.gathers_itself and not evidence.mode.acts:
        return Finding.NATIVE
    is_native = evidence.saving is not None and evidence.saving.verdict is Saved.NATIVE
    if is_native and not evidence.mode.acts:
        return Finding.NATIVE
    if evidence.policy is not Policy.DEDUP and engine.version and not engine.has_lower_tier:
        return Finding.NO_BENEFIT
    return None


def _why(evidence: GateEvidence, finding: Finding) -> str:
    if finding is Finding.NO_HOOK:
        return "KV state of several kinds: nothing is predicted, so that nothing may act"
    if finding is Finding.NO_BENEFIT:
        return "there is no tier below HBM to load from"
    if evidence.policy is Policy.GPU_COPY:
        return "the engine gathers its loads itself"
    return "the engine does it by itself: delay hits are not computed twice"


def _nothing_to_do(finding: Finding, why: str) -> Check:
    return Check(Gate.BENEFIT, str(finding), Verdict.FAIL, None, note=why)


def _untold() -> Check:
    note = "no pair of windows with and without it yet"
    return Check(Gate.BENEFIT, "canary_mean_ttft_ratio", Verdict.INCONCLUSIVE, None, None, 1.0,
                 "ratio", note)  # fmt: skip


def _constraint(evidence: GateEvidence) -> Check:
    seen = evidence.constraint
    share = seen.bound_minutes / seen.minutes if seen.minutes else None
    verdict = Verdict.INCONCLUSIVE
    if share is not None and seen.minutes >= MIN_MINUTES and share >= MIN_BOUND:
        verdict = Verdict.PASS
    elif share is not None and seen.minutes >= MINUTES_FOR_FINDING and share < MIN_BOUND:
        verdict = Verdict.FAIL
    return Check(
        gate=Gate.BENEFIT,
        name=f"bound_by_{seen.relieves}",
        verdict=verdict,
        value=share,
        at_least=MIN_BOUND,
        unit="ratio",
        note=f"{seen.bound_minutes} of {seen.minutes} minutes of serving",
    )


def _placebo(saving: SavingEvidence | None) -> tuple[Check, ...]:
    """The engine's own policy, rolled as a candidate: it must save nothing (design law 10)."""
    if saving is None:
        return ()
    verdict = {
        Saved.SHOWN: Verdict.PASS,
        Saved.UNPROVEN: Verdict.ERROR,
    }.get(saving.placebo, Verdict.INCONCLUSIVE)
    ttft = saving.placebo_ttft
    note = "too few episodes"
    if ttft.low_seconds is not None and ttft.high_seconds is not None:
        note = f"{ttft.low_seconds:+.2f} to {ttft.high_seconds:+.2f} s must cover 0"
    return (Check(Gate.BENEFIT, "placebo", verdict, ttft.seconds, unit="seconds", note=note),)


def _saving(evidence: GateEvidence) -> tuple[tuple[Check, ...], Verdict]:
    """The lower bound of what would be saved; and FAIL where it is surely nothing."""
    saving = evidence.saving
    name = "would_be_ttft_saving"
    if saving is None or saving.verdict is Saved.NO_EPISODES:
        batches = saving.batches if saving else 0
        is_long = evidence.constraint.minutes >= MINUTES_FOR_FINDING and batches >= MIN_BATCHES
        verdict = Verdict.FAIL if is_long else Verdict.INCONCLUSIVE
        note = (saving.note if saving else "") or (
            f"it never decided otherwise in {batches:,} batches"
        )
        return (Check(Gate.BENEFIT, name, verdict, None, 0.0, None, "seconds", note),), verdict
    ttft, busy = saving.ttft, saving.busy
    low, high = ttft.low_seconds, ttft.high_seconds
    verdict = Verdict.INCONCLUSIVE
    if saving.verdict is Saved.SHOWN and low is not None and high is not None:
        if low > 0.0:
            verdict = Verdict.PASS
        elif high < 0.0:
            verdict = Verdict.FAIL
    note = saving.note or f"sum {ttft.seconds:+.2f} s; {saving.verdict}"
    checks = [Check(Gate.BENEFIT, name, verdict, low, 0.0, None, "seconds", note)]
    if saving.verdict is Saved.SHOWN and busy.high_seconds is not None:
        costs = busy.high_seconds < 0.0
        told = Verdict.FAIL if costs else Verdict.PASS
        name, note = "would_be_busy_saving", "its upper bound"
        checks.append(
            Check(Gate.BENEFIT, name, told, busy.high_seconds, 0.0, None, "seconds", note)
        )
    return tuple(checks), Verdict.PASS
