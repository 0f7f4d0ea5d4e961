"""The bitwise gate of gpu_copy: gathered pages are the pages that per-page copies bring. Pure.

One mismatch is one too many. Before it acts there may be nothing to compare: not asked then.
"""

from __future__ import annotations

from kvready.advisor.gate_evidence import GateEvidence
from kvready.advisor.policies import Policy
from kvready.advisor.verdicts import Check, Gate, Verdict

MIN_CHECKED = 30  # copies of one in a thousand: a wrong one in ten would be found


def bitwise_checks(evidence: GateEvidence) -> tuple[Check, ...]:
    """None for policies that copy nothing."""
    if evidence.policy is not Policy.GPU_COPY:
        return ()
    copies = evidence.copies
    if not copies.checked and not evidence.mode.acts:
        return ()
    enough = copies.checked >= MIN_CHECKED or not evidence.mode.acts
    return (
        Check(
            gate=Gate.BITWISE,
            name="mismatched_loads",
            verdict=Verdict.FAIL if copies.mismatched else Verdict.PASS,
            value=copies.mismatched,
            at_most=0.0,
            unit="copies",
        ),
        Check(
            gate=Gate.BITWISE,
            name="checked_loads",
            verdict=Verdict.PASS if enough else Verdict.INCONCLUSIVE,
            value=copies.checked,
            at_least=MIN_CHECKED if evidence.mode.acts else 0.0,
            unit="copies",
        ),
    )
