"""Which policies of a comparison differ by one thing, so that its worth can be told. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvready.advisor.whatif.presets import GATHER, PER_PAGE, Baseline, parsed
from kvready.advisor.whatif.scenario import QueueOrder
from kvready.advisor.whatif.verdict import Step


def steps_between(policies: Sequence[str]) -> list[Step]:
    """What each policy adds to others beside it, in the order of the policies."""
    return [step for name in policies for step in _steps(name, policies)]


def _steps(name: str, policies: Sequence[str]) -> Iterator[Step]:
    base, chosen = parsed(name)
    if not base.tiers:
        return
    smaller: list[tuple[int, str, frozenset[str]]] = []
    for other in policies:
        beside, fewer = parsed(other)
        if not beside.tiers:
            if fewer == chosen and base.order is beside.order:
                yield Step(name, other, "a tier below HBM", tier=True)
        elif _bare(base) == _bare(beside) and fewer < chosen:
            smaller.append((len(fewer), other, fewer))
        elif fewer == chosen and other != name:
            yield from _one_change(name, base, other, beside)
    if smaller:
        _, other, fewer = max(smaller, key=lambda one: one[0])
        yield Step(name, other, ", ".join(sorted(chosen - fewer)))


def _one_change(name: str, base: Baseline, other: str, beside: Baseline) -> Iterator[Step]:
    if _bare(base)._replace(mover=PER_PAGE) == _bare(beside) and base.mover == GATHER:
        yield Step(name, other, "a gather")
    if _bare(base)._replace(order=QueueOrder.FCFS) == _bare(beside) and base != beside:
        yield Step(name, other, base.order.value.replace("_", " ") + " order")


def _bare(base: Baseline) -> Baseline:
    """Without the policies, and without what is only said of it."""
    return base._replace(strata=frozenset(), assumed=())
