"""Every check that a gate may ask, by name: what metrics can label. Pure."""

from __future__ import annotations

from kvready.advisor.constraint import Constraint
from kvready.advisor.demotion import PAIRS
from kvready.advisor.gate_evidence import TARGETS
from kvready.advisor.measures import Measure, is_ratio
from kvready.advisor.policies import Finding
from kvready.advisor.verdicts import Check, Gate

_TARGETS = tuple(dict.fromkeys(target for used in TARGETS.values() for target in used))
_NAMES = {
    Gate.DATA: (
        *(f"{target}_pairs" for target in _TARGETS),
        "completeness",
        "taps_not_whole",
        "contradictions",
        "stale_calibrations",
        "stalls",
        "engine_described",
    ),
    Gate.ACCURACY: (
        *(
            f"{target}_{figure}"
            for target in _TARGETS
            for figure in ("coverage", "median_error", "bias", "judged_share", "in_scope")
        ),
        "interference_width",
        *(f"bad_prediction_burn_{pair.name}" for pair in PAIRS if pair.takes_back),
    ),
    Gate.BENEFIT: (
        *Finding,
        *(f"bound_by_{one}" for one in Constraint if one is not Constraint.NONE),
        "placebo",
        "would_be_ttft_saving",
        "would_be_busy_saving",
        "canary_mean_ttft_ratio",
    ),
    Gate.HARM: (
        "canary_harm",
        *(f"canary_{one}_{'ratio' if is_ratio(one) else 'difference'}" for one in Measure),
    ),
    Gate.BITWISE: ("mismatched_loads", "checked_loads"),
}

CHECK_NAMES = tuple(f"{gate}:{name}" for gate, names in _NAMES.items() for name in names)


def check_name(check: Check) -> str:
    """One check among all: two gates may ask for the same figure."""
    return f"{check.gate}:{check.name}"
