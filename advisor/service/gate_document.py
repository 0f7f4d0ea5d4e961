"""`docs/gates.md`, written from the limits that the gates hold figures against."""

from __future__ import annotations

import math

from kvready.advisor import (
    bad_cells,
    cell_evidence,
    constraint,
    demotion,
    gate_accuracy,
    gate_benefit,
    gate_bitwise,
    gate_data,
    gates,
    hazard_watch,
)
from kvready.advisor.gate_evidence import TARGETS
from kvready.advisor.measures import LIMITS, Measure, is_ratio
from kvready.advisor.minute_sums import MINUTE_SECONDS
from kvready.advisor.policies import ORDER, Policy

Row = tuple[str, str, str]


def gates_page() -> str:
    """The whole page, after its note."""
    return "\n".join(
        (
            "# Gates",
            "",
            *_verdicts(),
            *_table("Data", _data()),
            *_table("Accuracy", _accuracy()),
            *_table("Benefit", _benefit()),
            *_table("Harm", _harm()),
            *_table("Bitwise (gpu_copy)", _bitwise()),
            *_bad_cells(),
            *_hazards(),
            *_proof(),
        )
    )


def _verdicts() -> list[str]:
    judged = [
        f"* `{policy}`: {', '.join(f'`{target}`' for target in TARGETS[policy])}"
        + (", per mover, and what loads cost decode batches" if policy is Policy.GPU_COPY else "")
        for policy in ORDER
    ]
    return [
        f"Every {MINUTE_SECONDS:.0f} s of event time each policy is judged, in each of its scopes, "
        "and so is a version that shadows beside it. `kvready gate report` shows the latest "
        "verdicts, `GET /v1/gates` all that are kept, `kvready explain VERDICT` one in words.",
        "",
        "A verdict is `pass`, `fail`, `inconclusive` or `error` (the evidence itself is broken). "
        "Failures beat errors, errors beat doubt, doubt beats passes. What may be chance must "
        f"come up again: a failure counts when the same check fails {gates.FAILURES_IN_A_ROW} "
        f"times in a row, a pass when all checks pass {gates.PASSES_IN_A_ROW} times in a row. "
        "Measured harm and wrong bytes are sure already and count at once. Doubt neither promotes "
        "nor takes back.",
        "",
        "Judged are the forecasts that the policy decides by:",
        "",
        *judged,
        "",
        f"in each shape cell the latest {cell_evidence.MAX_OUTCOMES} outcomes of a day. An "
        "outcome that is overdue counts as outside its range, and as wrong as it is by then.",
        "",
    ]


def _table(title: str, rows: list[Row]) -> list[str]:
    return [
        f"## {title}",
        "",
        "| check | passes | otherwise |",
        "|---|---|---|",
        *(f"| {name} | {passes} | {otherwise} |" for name, passes, otherwise in rows),
        "",
    ]


def _data() -> list[Row]:
    return [
        ("`TARGET_pairs`", f"at least {gate_data.MIN_PAIRS} outcomes in scope", "open"),
        (
            "`completeness`",
            f"at least {gate_data.MIN_COMPLETENESS:.1%} of records of the last hour arrived",
            "error. A lost message counts as one record",
        ),
        ("`taps_not_whole`", "no tap has an unhealed gap or is silent", "error"),
        ("`contradictions`", "no two sources contradict each other", "error"),
        ("`stale_calibrations`", "no link profile is off by more than twice", "error"),
        ("`stalls`", "requests do not wait while no batch runs", "error"),
        ("`engine_described`", "the engine said what it is", "open"),
    ]


def _accuracy() -> list[Row]:
    worst = f"of the worst cell with outcomes at {gate_accuracy.MIN_CELL_PAIRS} moments"
    fails = f"fails beyond doubt (one-sided {gate_accuracy.ALPHA:.1%}), else open"
    return [
        (
            "`TARGET_coverage`",
            f"at least {gate_accuracy.MIN_COVERAGE:.0%} inside ranges of 90 %, {worst}",
            fails,
        ),
        (
            "`TARGET_median_error`",
            f"median off by at most x{math.exp(gate_accuracy.MAX_MEDIAN_ERROR):.2f}, {worst}",
            fails,
        ),
        (
            "`TARGET_bias`",
            f"median to one side by at most x{math.exp(gate_accuracy.MAX_BIAS):.2f}, {worst}",
            fails,
        ),
        (
            "`TARGET_judged_share`",
            f"at least {gate_accuracy.MIN_JUDGED:.0%} of outcomes lie in such cells",
            "open",
        ),
        (
            "`TARGET_in_scope`",
            f"at least {gate_accuracy.MIN_IN_SCOPE:.0%} of outcomes lie outside bad cells",
            "fails",
        ),
        (
            "`interference_width`",
            "the 95 % interval of what loads cost decode batches is at most "
            f"x{gate_accuracy.MAX_SLOWDOWN_WIDTH:.2f} wide (gpu_copy)",
            "open",
        ),
        *(
            (
                f"`bad_prediction_burn_{pair.name}`",
                f"bad predictions burn less than {pair.burn:g} times their budget in "
                f"{pair.long_minutes} or in {pair.short_minutes} minutes",
                "fails",
            )
            for pair in demotion.PAIRS
            if pair.takes_back
        ),
    ]


def _benefit() -> list[Row]:
    return [
        (
            "`bound_by_link`, `bound_by_compute`",
            f"at least {gate_benefit.MIN_BOUND:.0%} of the last {constraint.KEPT_MINUTES} minutes "
            f"of serving were (copies active {constraint.LINK_SHARE:.0%} of the minute with "
            f"exposed loads; a batch running {constraint.COMPUTE_SHARE:.0%} of it)",
            f"fails after {gate_benefit.MINUTES_FOR_FINDING} minutes, with the finding "
            "`no_benefit`. Not asked of what acts: it relieves what it is asked for",
        ),
        (
            "`placebo`",
            "the engine's own policy, rolled as a candidate, saves nothing: its interval covers 0",
            "error: no saving is believed",
        ),
        (
            "`would_be_ttft_saving`",
            "the lower 90 % bound of what would be saved is above 0",
            "fails where the upper one is below, else open",
        ),
        ("`would_be_busy_saving`", "it does not surely cost engine time", "fails"),
        (
            "`canary_mean_ttft_ratio`",
            "once it acts: windows with it are proved to be better",
            "open",
        ),
        (
            "`native`, `no_hook`, `no_benefit`",
            "never: the policy has nothing to do here, and counts as settled",
            "fails",
        ),
    ]


def _harm() -> list[Row]:
    measures = dict.fromkeys(m for own in LIMITS.values() for m in own)
    return [
        (
            f"`canary_{m}_{'ratio' if is_ratio(m) else 'difference'}`",
            f"proved to be below {_limits(m, accepted=True)}",
            f"fails where proved to be above {_limits(m, accepted=False)}, else open",
        )
        for m in measures
    ]


def _limits(measure: Measure, *, accepted: bool) -> str:
    found = {
        own[measure].accepted if accepted else own[measure].tolerated
        for own in LIMITS.values()
        if measure in own
    }
    return ", ".join(f"{limit:g}" for limit in sorted(found))


def _bitwise() -> list[Row]:
    return [
        ("`mismatched_loads`", "no compared load had other bytes than its pages", "fails"),
        (
            "`checked_loads`",
            f"once it acts: at least {gate_bitwise.MIN_CHECKED} loads were compared",
            "open",
        ),
    ]


def _bad_cells() -> list[str]:
    return [
        "## Bad predictions and bad cells",
        "",
        f"The objective is {demotion.OBJECTIVE:.0%} good forecasts, or what the last seven days "
        f"without anything acting showed less {100 * demotion.SHADOW_LESS:.0f} points where that "
        f"is less, and never below {demotion.LEAST_OBJECTIVE:.0%}. A burn needs "
        f"{demotion.MIN_PAIRS} outcomes in {demotion.MIN_MINUTES} minutes of its long window; "
        "stalled minutes are left out. Where the budget is so large that a burn cannot be "
        f"reached, {demotion.NEARLY_ALL:.0%} bad is enough.",
        "",
        f"A shape cell that stands out in {bad_cells.BAD_WINDOWS} of its last "
        f"{bad_cells.LAST_WINDOWS} windows of {bad_cells.WINDOW_SECONDS / 60:.0f} minutes "
        f"(false-discovery rate {bad_cells.FALSE_DISCOVERIES:.0%}, windows with outcomes at fewer "
        f"than {bad_cells.MIN_PAIRS} moments not counted) is listed with examples and stays "
        "outside every policy's scope until it no longer does. What is told at one moment hangs "
        "together, as all do who wait for one leader: it counts once where a share is judged "
        "beyond doubt.",
        "",
    ]


def _hazards() -> list[str]:
    return [
        "## What does not wait for a gate",
        "",
        "| what | when |",
        "|---|---|",
        "| wrong bytes | a compared load differed from its pages |",
        "| engine restarted, upgraded | its stream begins anew; it says another version |",
        "| known hazard | its version is known to go wrong, and the policy would make it worse |",
        f"| telemetry lost | taps are not whole for {hazard_watch.LOST_SECONDS:.0f} s |",
        f"| stall | requests wait and no batch is heard of for {hazard_watch.STALL_SECONDS:.0f} s, "
        f"or {hazard_watch.STALL_STEPS:.0f} usual steps where those are longer |",
        "",
        "What follows from each is in [policies.md](policies.md).",
        "",
    ]


def _proof() -> list[str]:
    return [
        "## Proving a verdict",
        "",
        "A report is named by a digest of all that it says. `kvready evidence make RECORDING OUT` "
        "puts the verdicts of a recording and every record up to them into one file, with what "
        "the models started from; `kvready evidence verify OUT` replays it and says whether the "
        "same bytes come out, or where they differ. A verdict that a sidecar kept is proved from "
        "the recording that it was writing, whole from its start: `--report ID`. With `--slice` "
        "the part is judged by itself. Damaged and shortened bundles are named, not believed. "
        "Equal bytes are promised within one version of kvready and one platform.",
        "",
    ]
