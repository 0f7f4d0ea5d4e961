"""The data gate: enough was seen, all of it arrived, and it speaks of what runs now. Pure.

Too little is doubt. What is broken or out of date is an error: no figure of it may be believed.
"""

from __future__ import annotations

from kvready.advisor.gate_evidence import TARGETS, GateEvidence
from kvready.advisor.verdicts import Check, Gate, Verdict

MIN_PAIRS = 100  # of each target that the policy uses
MIN_COMPLETENESS = 0.999  # of what taps should have delivered in the last hour
MAX_NAMED = 4


def data_checks(evidence: GateEvidence) -> tuple[Check, ...]:
    """Each figure against its limit."""
    checks = []
    for target in TARGETS[evidence.policy]:
        scored = evidence.scored(target)
        checks.append(
            Check(
                gate=Gate.DATA,
                name=f"{target}_pairs",
                verdict=Verdict.PASS if scored >= MIN_PAIRS else Verdict.INCONCLUSIVE,
                value=scored,
                at_least=MIN_PAIRS,
                unit="pairs",
            )
        )
    return (*checks, _completeness(evidence), *_broken(evidence), _version(evidence))


def _completeness(evidence: GateEvidence) -> Check:
    taps = evidence.taps
    sent = taps.records + taps.lost
    share = taps.records / sent if sent else None
    verdict = Verdict.INCONCLUSIVE
    if share is not None:
        verdict = Verdict.PASS if share >= MIN_COMPLETENESS else Verdict.ERROR
    return Check(
        gate=Gate.DATA,
        name="completeness",
        verdict=verdict,
        value=share,
        at_least=MIN_COMPLETENESS,
        unit="ratio",
        note=f"{taps.lost:,} lost of {sent:,} in the last hour",
    )


def _broken(evidence: GateEvidence) -> list[Check]:
    """What makes figures wrong, each of which must not be."""
    found = {
        "taps_not_whole": evidence.taps.doubtful,
        "contradictions": evidence.taps.contradictions,
        "stale_calibrations": evidence.engine.stale_calibrations,
        "stalls": ("no batch runs",) if evidence.engine.is_stalled else (),
    }
    return [
        Check(
            gate=Gate.DATA,
            name=name,
            verdict=Verdict.ERROR if which else Verdict.PASS,
            value=len(which),
            at_most=0.0,
            note=", ".join(which[:MAX_NAMED]),
        )
        for name, which in found.items()
    ]


def _version(evidence: GateEvidence) -> Check:
    engine = evidence.engine
    verdict = Verdict.PASS if engine.version else Verdict.INCONCLUSIVE
    return Check(
        gate=Gate.DATA,
        name="engine_described",
        verdict=verdict,
        value=float(bool(engine.version)),
        at_least=1.0,
        note=engine.version or "no tap has described the engine: attach the observer (level 3)",
    )
