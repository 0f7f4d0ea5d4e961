"""Workloads as recipes: small enough to be sent to another process, which makes the requests."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from kvready.advisor.whatif.questions import Questions
from kvready.advisor.whatif.synthetic import documents
from kvready.advisor.whatif.traces import CUT_BLOCK_TOKENS, Reading, read_workload
from kvready.advisor.whatif.workload import Workload


class Recipe(msgspec.Struct, frozen=True):
    """A file of requests, or a published shape; the rate and the seed come with each run."""

    trace: str = ""  # path; empty: a shape
    first: int = 0  # requests of a file; 0: all
    block_tokens: int = CUT_BLOCK_TOKENS  # of a file that names no blocks
    shape: str = ""
    questions: Questions | None = None  # of a shape; its rate does not count


@lru_cache(maxsize=2)
def made(recipe: Recipe, rate: float | None, seed: int) -> Workload:
    """The requests. Equal arguments give equal ones. Raises `WorkloadError`."""
    if recipe.questions is not None:
        asked = recipe.questions
        if rate is not None:
            asked = msgspec.structs.replace(asked, queries_per_second=rate)
        return documents(recipe.shape, asked, seed)
    reading = Reading(
        first=recipe.first, seed=seed, spread_seed=seed, block_tokens=recipe.block_tokens
    )
    workload = read_workload(Path(recipe.trace), reading=reading)
    return workload if rate is None else at_rate(workload, rate)


def mean_rate(workload: Workload) -> float | None:
    """Arrivals per second that do not wait for another request; None: all at one moment."""
    arrivals = [one.arrived_seconds for one in workload.requests if not one.after]
    span = max(arrivals) - min(arrivals) if len(arrivals) > 1 else 0.0
    return (len(arrivals) - 1) / span if span else None


def at_rate(workload: Workload, rate: float) -> Workload:
    """The same requests in the same order, their arrivals stretched evenly to another mean rate.

    Users think as long as before.
    """
    now = mean_rate(workload)
    if now is None:
        return workload
    first = workload.requests[0].arrived_seconds
    stretch = now / rate
    moved = tuple(
        msgspec.structs.replace(
            one, arrived_seconds=first + (one.arrived_seconds - first) * stretch
        )
        for one in workload.requests
    )
    note = f"arrivals stretched by {stretch:.3g} to {rate:g} requests/s"
    return msgspec.structs.replace(workload, requests=moved, notes=(*workload.notes, note))
