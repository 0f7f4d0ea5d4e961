"""What a planner asked for, checked and turned into jobs; and their results into a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvready.advisor.whatif.comparison import Report, reported
from kvready.advisor.whatif.machines import Machine, Rates, profiled_machine, published_machine
from kvready.advisor.whatif.presets import (
    PAGE_TOKENS,
    Sizes,
    assumed,
    assumed_of_all,
    is_ideal,
    scenario,
)
from kvready.advisor.whatif.questions import Initial, Order, Questions
from kvready.advisor.whatif.recipes import Recipe, made
from kvready.advisor.whatif.scenario import EngineLimits
from kvready.advisor.whatif.steps_between import steps_between
from kvready.advisor.whatif.summary import CountedFrom, Summary, Targets
from kvready.advisor.whatif.sweep import Job, planned
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import OverlapMode
from kvready.kernels.model_source import model_from
from kvready.kernels.profile import read_profile
from kvready.kernels.profile_source import PUBLISHED_PREFIX
from kvready.kernels.published import published_profile

GIB = 1 << 30
DEFAULT_POLICIES = "recompute,per-page,fast-copies,strata,oracle"
DEFAULT_MACHINE = "h200"
MAX_RATES = 32
SMALLEST_BLOCK = 16  # tokens that a shape's cache counts in, however small a page is


class Asked(msgspec.Struct, frozen=True):
    """A planner's options."""

    trace: Path | None = None
    shape: str | None = None
    requests: int = 0  # 0: all
    order: Order = Order.SHUFFLED
    initial: Initial = Initial.COLD
    rates: str = ""
    model: str = "llama-3.1-8b"
    tensor_parallel: int = 1
    machine: str | None = None  # None: DEFAULT_MACHINE, or the profile's
    profile: str | None = None
    gpu: str | None = None
    hbm_gib: float | None = None
    host_gib: float | None = None
    disk_gib: float = 0.0
    policies: str = DEFAULT_POLICIES
    ttft_seconds: float = 5.0
    tokens_per_second: float | None = None
    counted_from: CountedFrom = CountedFrom.ARRIVAL
    page_tokens: int = PAGE_TOKENS
    overlap: OverlapMode = OverlapMode.LAYERWISE
    in_flight: int = 0
    seeds: int = 1


class Study(NamedTuple):
    """Jobs, and what their report says beside their results."""

    jobs: list[Job]
    policies: tuple[str, ...]
    assumed: dict[str, tuple[str, ...]]

    def report(self, runs: Sequence[Summary]) -> Report:
        """From the results of all jobs."""
        ideals = frozenset(filter(is_ideal, self.policies))
        return reported(runs, self.policies, steps_between(self.policies), ideals, self.assumed)


def studied(asked: Asked) -> Study:
    """All jobs. Raises errors of `KvreadyError` or `KernelError` that name the option to mend."""
    policies = _names(asked.policies)
    machine = _machine(asked)
    sizes = _sizes(asked)
    engine = EngineLimits(overlap=asked.overlap, in_flight_requests=asked.in_flight)
    shape = model_from(asked.model)
    scenarios = [
        scenario(
            shape, machine, name, sizes, asked.page_tokens, asked.tensor_parallel, engine=engine
        )
        for name in policies
    ]
    rates = _rates(asked)
    recipe = _recipe(asked)
    _check_seeds(asked, recipe, rates)
    targets = Targets(asked.ttft_seconds, asked.tokens_per_second, asked.counted_from)
    told = {name: assumed(name, machine, sizes, Rates.SUSTAINED) for name in policies}
    return Study(
        planned(recipe, rates, asked.seeds, scenarios, targets, machine.name),
        policies,
        {"": assumed_of_all(machine, sizes), **told},
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise SettingsError("--compare names no policy; say for example --compare per-page,strata")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"--compare names {', '.join(twice)} twice; once is enough")
    return names


def _machine(asked: Asked) -> Machine:
    if asked.profile is None:
        if asked.gpu is not None:
            raise SettingsError("--gpu goes with --profile; a --machine has its own")
        return published_machine(asked.machine or DEFAULT_MACHINE)
    if asked.machine is not None:
        raise SettingsError("--machine and --profile contradict each other; give one")
    if asked.gpu is None:
        raise SettingsError("a link profile says nothing of compute: name the GPU with --gpu")
    if asked.profile.startswith(PUBLISHED_PREFIX):
        profile = published_profile(asked.profile.removeprefix(PUBLISHED_PREFIX))
    else:
        profile = read_profile(
            Path(asked.profile)
        )  # of any machine: this is a plan, not a forecast
    return profiled_machine(profile, asked.gpu)


def _sizes(asked: Asked) -> Sizes:
    def size(gib: float) -> int:
        return int(gib * GIB)

    if asked.hbm_gib is not None and asked.hbm_gib <= 0:
        raise SettingsError("--hbm-gib 0 leaves no place to compute; give some, or leave it out")
    return Sizes(
        None if asked.hbm_gib is None else size(asked.hbm_gib),
        None if asked.host_gib is None else size(asked.host_gib),
        size(asked.disk_gib),
    )


def _rates(asked: Asked) -> list[float | None]:
    if not asked.rates.strip():
        if asked.shape is not None:
            raise SettingsError("say how many requests come a second: --rate 2, or --rate 1,2,4")
        return [None]
    rates: list[float | None] = []
    for text in asked.rates.split(","):
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if not 0.0 < rate < math.inf:
            raise SettingsError(f"--rate {text.strip()!r}: give numbers above 0, with commas")
        rates.append(rate)
    if len(set(rates)) < len(rates) or len(rates) > MAX_RATES:
        raise SettingsError(f"--rate: give up to {MAX_RATES} different numbers")
    return rates


def _recipe(asked: Asked) -> Recipe:
    if (asked.trace is None) is (asked.shape is None):
        raise SettingsError("name either a TRACE to replay or a --workload to draw")
    if asked.shape is not None:
        questions = Questions(
            queries_per_second=1.0,
            order=asked.order,
            initial=asked.initial,
            queries=asked.requests,
            block_tokens=max(asked.page_tokens, SMALLEST_BLOCK),
        )
        return Recipe(shape=asked.shape, questions=questions)
    if asked.order is not Order.SHUFFLED or asked.initial is not Initial.COLD:
        raise SettingsError("--order and --initial shape a --workload; a trace is as it is")
    return Recipe(trace=str(asked.trace), first=asked.requests, block_tokens=asked.page_tokens)


def _check_seeds(asked: Asked, recipe: Recipe, rates: Sequence[float | None]) -> None:
    """Make the first requests here, so that what is wrong with them is told before any run."""
    first = made(recipe, rates[0], 0)
    if asked.seeds > 1 and made(recipe, rates[0], 1).requests == first.requests:
        raise SettingsError(
            "this trace replays alike for every seed, so that several tell nothing of chance; "
            "leave --seeds out"
        )
