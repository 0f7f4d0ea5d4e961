"""Runs of a what-if: every policy at every rate with every seed, each a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kvready.advisor.whatif.card import card
from kvready.advisor.whatif.recipes import Recipe, made
from kvready.advisor.whatif.scenario import Scenario
from kvready.advisor.whatif.simulate import simulate
from kvready.advisor.whatif.summary import Summary, Targets, summarize
from kvready.collectors.errors import SettingsError

MAX_RUNS = 10_000


class Job(msgspec.Struct, frozen=True):
    """One run. `rate` None: as the trace has it."""

    recipe: Recipe
    rate: float | None
    seed: int
    scenario: Scenario
    targets: Targets
    machine: str


def planned(
    recipe: Recipe,
    rates: Sequence[float | None],
    seeds: int,
    scenarios: Sequence[Scenario],
    targets: Targets,
    machine: str,
) -> list[Job]:
    """All jobs, those on equal requests side by side. Raises `SettingsError` where too many."""
    count = len(rates) * seeds * len(scenarios)
    if count > MAX_RUNS:
        raise SettingsError(
            f"{count:,} runs: at most {MAX_RUNS:,}; name fewer rates, seeds or policies"
        )
    return [
        Job(recipe, rate, seed, scenario, targets, machine)
        for rate in rates
        for seed in range(seeds)
        for scenario in scenarios
    ]


def run_job(job: Job, progress: Callable[[float], None] | None = None) -> Summary:
    """One run, from its recipe to its figures. Depends on the job alone."""
    workload = made(job.recipe, job.rate, job.seed)
    outcome = simulate(workload, job.scenario, job.seed, progress)
    conditions = card(job.scenario, workload, outcome.requests, job.targets, job.seed, job.machine)
    return summarize(outcome, job.scenario, job.targets, job.seed, conditions, job.rate)
