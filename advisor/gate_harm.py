"""The harm gate: what acts must be proved harmless, and what harms is told at once. Pure."""

from __future__ import annotations

from kvready.advisor.gate_evidence import GateEvidence
from kvready.advisor.verdicts import Check, Gate, Verdict


def harm_checks(evidence: GateEvidence) -> tuple[Check, ...]:
    """Of windows with and without it. What does not act cannot harm, and is not asked."""
    if not evidence.mode.acts:
        return ()
    note = "no pair of windows with and without it yet"
    untold = Check(Gate.HARM, "canary_harm", Verdict.INCONCLUSIVE, None, note=note)
    return evidence.harm or (untold,)
