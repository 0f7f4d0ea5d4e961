"""All of it: from the claims to runs, from runs to rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from kvready.advisor.version import VERSION
from kvready.advisor.whatif.jobs import run_each
from kvready.advisor.whatif.machines import GATHER_DECODE_SLOWDOWN, GATHER_PREFILL_SLOWDOWN
from kvready.advisor.whatif.neighbours import SystemPrompt, neighbour_share
from kvready.advisor.whatif.suite.cases import GROUPS, SIMULATED, case_name, cases
from kvready.advisor.whatif.suite.measures import Measured, Points, measured, only
from kvready.advisor.whatif.suite.ranges import Claim, Ranges, ranges, settings
from kvready.advisor.whatif.suite.rows import Row, row
from kvready.advisor.whatif.suite.runs import Task, run_task
from kvready.advisor.whatif.traces import read_workload
from kvready.kernels.published import published_profile

TRACES = Path("examples/traces")
NO_TRACE = "needs examples/traces: run it in a clone of the repository"
NEIGHBOUR_SECONDS, NEIGHBOUR_TOKENS = 1.0, 6_000
NORMAL_95 = 1.96

Told = Callable[[float], None]


class Size(msgspec.Struct, frozen=True):
    """Smaller than whole, where somebody only wants to see it run."""

    queries: int = 0  # of each group; 0: all
    design: str = ""  # of all groups; empty: each its own


WHOLE = Size()


class Held(msgspec.Struct, frozen=True):
    """A simulator held against a paper."""

    evidence: str
    paper: str
    rows: tuple[Row, ...]
    rule: str
    unknowns: dict[str, str]
    held_fixed: dict[str, str]
    corrections: dict[str, str]
    version: str


def tasks(size: Size = WHOLE, traces: Path = TRACES) -> list[Task]:
    """All runs, the longest first."""
    known = ranges()
    found = []
    for case in cases(known.claims):
        group = GROUPS[case.group]
        if group.trace and not (traces / group.trace).is_file():
            continue
        for setting in settings(known, size.design or group.design):
            found.append(Task(case, setting, traces, size.queries))
    return found


def held(workers: int, told: Told, size: Size = WHOLE, traces: Path = TRACES) -> Held:
    """Runs it all. Raises `WorkloadError`."""
    known, todo = ranges(), tasks(size, traces)
    results = run_each(run_task, todo, workers, told)
    by_case: dict[str, list[int]] = {}
    for number, task in enumerate(todo):
        by_case.setdefault(task.case.name, []).append(number)
    runs: Points = {
        name: [results[number] for number in numbers] for name, numbers in by_case.items()
    }
    rows = tuple(_row(claim, runs, known, traces) for claim in known.claims)
    return Held(
        "simulated",
        "Strata (OSDI 2026)",
        rows,
        " ".join(known.rule.text.split()),
        _unknowns(known),
        known.held_fixed,
        known.corrections,
        VERSION,
    )


def _row(claim: Claim, runs: Points, known: Ranges, traces: Path) -> Row:
    if not claim.measure:
        return row(claim, Measured())
    if claim.measure in SIMULATED:
        if not all(case_name(of) in runs for of in claim.of):
            return row(claim, None, NO_TRACE)
        return row(claim, measured(claim, runs, known.readings))
    if claim.measure == "neighbour_share":
        trace = traces / claim.of[0]
        return row(claim, _neighbours(trace)) if trace.is_file() else row(claim, None, NO_TRACE)
    if claim.measure == "published":
        return _published(claim)
    return row(claim, only(CONSTANTS[claim.measure]))


CONSTANTS: Mapping[str, float] = {
    "prefill_slowdown": GATHER_PREFILL_SLOWDOWN,
    "decode_slowdown": GATHER_DECODE_SLOWDOWN,
}


def _published(claim: Claim) -> Row:
    """As the link profile has it: it is the one model of what copies cost."""
    profile, name = claim.of
    found = next(one for one in published_profile(profile).claims if one.name == name)
    return row(claim, only(found.ours), found.reading)


def _neighbours(trace: Path) -> Measured:
    """By every meaning of a system prompt, with the error of a sample of that size."""
    workload = read_workload(trace)
    requests = len(workload.requests)
    shares = {
        what: neighbour_share(workload, NEIGHBOUR_SECONDS, NEIGHBOUR_TOKENS, what)
        for what in SystemPrompt
    }
    low, high = min(shares.values()), max(shares.values())

    def error(share: float) -> float:
        return NORMAL_95 * math.sqrt(share * (1.0 - share) / requests)

    return Measured(
        shares[SystemPrompt.GLOBAL], max(low - error(low), 0.0), min(high + error(high), 1.0)
    )


def _unknowns(known: Ranges) -> dict[str, str]:
    told = {
        name.replace("_", " "): f"{one.low} | {one.middle} | {one.high}: {one.reason}"
        for name, one in known.unknowns.items()
    }
    levels = ", ".join(f"{level:g}" for level in known.readings.ttft_seconds)
    starts = " or ".join(known.readings.counted_from)
    return told | {"TTFT level": f"{levels} s, counted from {starts}; not published"}
