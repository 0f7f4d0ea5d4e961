"""One policy's runs at one rate, over seeds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean

import msgspec

from kvready.advisor.whatif.pairing import Ratio, half_width, paired
from kvready.advisor.whatif.summary import Constraint, Summary


class Standing(msgspec.Struct, frozen=True):
    """Runs of one policy, one a seed, in order of seeds."""

    policy: str
    runs: tuple[Summary, ...]

    def average(self, of: Callable[[Summary], float | None]) -> float | None:
        """Mean over seeds of one figure; None where a run lacks it."""
        values = [of(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return mean(known) if known and len(known) == len(values) else None

    def figure(self, of: Callable[[Summary], float]) -> float:
        """Mean over seeds of a figure that every run has."""
        return mean(map(of, self.runs))

    def spread_over_seeds(self, of: Callable[[Summary], float | None]) -> float:
        """Half of the 90 % interval of that mean; 0 for a single seed."""
        return half_width([value for run in self.runs if (value := of(run)) is not None])

    @property
    def constraint(self) -> Constraint:
        """Of most runs."""
        told = [run.constraint for run in self.runs]
        return max(Constraint, key=told.count)

    @property
    def tier(self) -> bool:
        """A tier below HBM exists."""
        return self.runs[0].tier


def good_rate(run: Summary) -> float:
    """Requests inside their targets, per second."""
    return run.good_rate


def mean_ttft(run: Summary) -> float | None:
    """Seconds."""
    return run.ttft.mean


def output_rate(run: Summary) -> float:
    """Tokens per second."""
    return run.output_rate


def standings(runs: Iterable[Summary], order: Sequence[str]) -> list[Standing]:
    """By policy, in the order in which they were asked for."""
    by_policy: dict[str, list[Summary]] = {name: [] for name in order}
    for run in runs:
        by_policy[run.policy].append(run)
    return [
        Standing(name, tuple(sorted(members, key=lambda run: run.seed)))
        for name, members in by_policy.items()
        if members
    ]


def ratio(ours: Standing, base: Standing, of: Callable[[Summary], float | None]) -> Ratio | None:
    """Ours over the base's, paired by seed."""
    return paired(_by_seed(ours, of), _by_seed(base, of))


def _by_seed(one: Standing, of: Callable[[Summary], float | None]) -> Mapping[int, float]:
    return {run.seed: value for run in one.runs if (value := of(run)) is not None}
