"""What a minute of /metrics says about an engine, and the one thing to change next.

Pure: scrapes in, findings out. What a page does not tell stays unknown; what its version counts
wrongly is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kvready.advisor.counter_change import (
    Quantile,
    Shot,
    histogram_increment,
    increment,
    is_one_life,
    quantile,
)
from kvready.advisor.levels import OBSERVER_FLAG, Step, level_now, next_step
from kvready.collectors.collector import Level
from kvready.collectors.metrics_page import EngineReading, FetchStage, MetricsPage, Refused
from kvready.collectors.records import Tier
from kvready.collectors.surfaces import Surfaces

COMPUTED = "computed"
UNPLACED = "another tier"
ATTACH = "nothing in the engine; run `kvready attach`, since its observer is there"
MIN_SHOTS = 2
READY_SHARE_LIMIT = 0.2  # of the time that requests spend on a load, done and not scheduled
COMPUTED_SHARE_WORTH_A_TIER = 0.3


class Source(msgspec.Struct, frozen=True):
    """Prompt tokens that came from one place."""

    source: str
    tokens: float
    tokens_per_second: float
    share: float


class Copies(msgspec.Struct, frozen=True):
    """Copies between host memory and HBM. Seconds add up over copies, which may overlap."""

    payload_bytes: float
    copy_seconds: float

    @property
    def bytes_per_second(self) -> float | None:
        """What a copy got while it ran; None where none ran."""
        return self.payload_bytes / self.copy_seconds if self.copy_seconds > 0 else None


class Change(msgspec.Struct, frozen=True):
    """The one thing to change next. `is_finding`: traffic is hurt now, not merely unseen."""

    change: str
    because: str
    adds: str
    is_finding: bool = False


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """All that a look found. None: the page does not tell."""

    url: str
    version: str | None
    model: str
    seconds: float
    scrapes: int
    restarted: bool
    idle: bool
    stalled: bool
    requests: float | None  # that got their first token
    prompt: tuple[Source, ...]
    loads: Copies | None
    stores: Copies | None
    load_bytes_per_second: float | None
    reference_bytes_per_second: float | None
    reference_origin: str  # whose figure that is; empty without one
    running: float | None  # means over the scrapes
    waiting: float | None
    deferred: float | None
    fetching: dict[FetchStage, float] | None
    ready_share: float | None
    held: float | None  # requests held while their blocks were on the way
    held_seconds: float | None
    block_life_p50: Quantile | None  # of sampled blocks that were evicted meanwhile
    ttft_p50: Quantile | None
    ttft_p95: Quantile | None
    refused: tuple[Refused, ...]
    level: Level | None
    change: Change | None
    next_level: Step | None

    @property
    def found(self) -> bool:
        """Whether something hurts."""
        return self.stalled or (self.change is not None and self.change.is_finding)


def look(
    surfaces: Surfaces,
    shots: Sequence[Shot],
    reference_bytes_per_second: float | None = None,
    reference_origin: str = "",
) -> Look:
    """Sum up two scrapes or more of one engine."""
    assert len(shots) >= MIN_SHOTS
    first, last = shots[0].page, shots[-1].page
    seconds = shots[-1].at_seconds - shots[0].at_seconds
    whole = is_one_life(shots)
    prompt = _prompt(first, last, seconds) if whole else ()
    ttft = histogram_increment(first, last, lambda e: e.ttft_seconds) if whole else None
    held = histogram_increment(first, last, lambda e: e.lookup_held_seconds) if whole else None
    lives = histogram_increment(first, last, lambda e: e.block_lifetime_seconds) if whole else None
    loads = _copies(first, last, "load") if whole else None
    fetching = _stages(shots)
    requests = None if ttft is None else ttft.count
    gained = sum(source.tokens for source in prompt)
    waits = _mean(shots, lambda e: e.waiting)
    runs = _mean(shots, lambda e: e.running)
    idle = whole and not gained and not requests and not waits and not runs
    found = Look(
        url=surfaces.url,
        version=surfaces.version,
        model=", ".join(surfaces.models) or "unknown",
        seconds=seconds,
        scrapes=len(shots),
        restarted=not whole,
        idle=idle,
        stalled=_stalled(shots, gained, requests),
        requests=requests,
        prompt=prompt,
        loads=loads,
        stores=_copies(first, last, "store") if whole else None,
        load_bytes_per_second=loads.bytes_per_second if loads else None,
        reference_bytes_per_second=reference_bytes_per_second,
        reference_origin=reference_origin,
        running=runs,
        waiting=waits,
        deferred=_mean(shots, lambda e: e.deferred),
        fetching=fetching,
        ready_share=_ready_share(fetching),
        held=None if held is None else held.count,
        held_seconds=None if held is None else held.total,
        block_life_p50=None if lives is None else quantile(lives, 0.5),
        ttft_p50=None if ttft is None else quantile(ttft, 0.5),
        ttft_p95=None if ttft is None else quantile(ttft, 0.95),
        refused=last.refused,
        level=level_now(surfaces),
        change=None,
        next_level=next_step(surfaces),
    )
    return msgspec.structs.replace(found, change=_change(found, last))


def _prompt(first: MetricsPage, last: MetricsPage, seconds: float) -> tuple[Source, ...]:
    """Prompt tokens by where their KV came from. Shares are of what the page tells."""
    gained: dict[str, float] = {}
    for tier in Tier:
        tokens = increment(first, last, lambda e, tier=tier: e.hit_tokens.get(tier))  # type: ignore[misc]
        if tokens is not None:
            gained[tier.value] = tokens
    tokens = increment(first, last, lambda e: e.unplaced_hit_tokens)
    if tokens:
        gained[UNPLACED] = tokens
    computed = increment(first, last, lambda e: e.computed_tokens)
    if computed is None:
        whole = increment(first, last, lambda e: e.prompt_tokens)
        # Without the hits, what was computed cannot be told from what was found.
        if whole is not None and Tier.HBM in gained:
            computed = max(whole - sum(gained.values()), 0.0)
    if computed is not None:
        gained[COMPUTED] = computed
    total = sum(gained.values())
    return tuple(
        Source(name, tokens, tokens / seconds, tokens / total if total else 0.0)
        for name, tokens in gained.items()
    )


def _copies(first: MetricsPage, last: MetricsPage, direction: str) -> Copies | None:
    moved = increment(first, last, lambda e: getattr(e, f"{direction}_bytes"))
    spent = increment(first, last, lambda e: getattr(e, f"{direction}_seconds"))
    return None if moved is None or spent is None else Copies(moved, spent)


def _mean(shots: Sequence[Shot], of: Callable[[EngineReading], float | None]) -> float | None:
    """A gauge summed over engines, averaged over scrapes; None where any scrape lacks it."""
    totals = []
    for shot in shots:
        values = [of(engine) for engine in shot.page.engines.values()]
        told = [value for value in values if value is not None]
        if not told or len(told) != len(values):
            return None
        totals.append(sum(told))
    return sum(totals) / len(totals)


def _stages(shots: Sequence[Shot]) -> dict[FetchStage, float] | None:
    means = {
        stage: _mean(shots, lambda e, s=stage: None if e.fetching is None else e.fetching[s])  # type: ignore[misc]
        for stage in FetchStage
    }
    told = {stage: mean for stage, mean in means.items() if mean is not None}
    return told if len(told) == len(means) else None


def _ready_share(fetching: dict[FetchStage, float] | None) -> float | None:
    """Of the time that requests spent on a load: how much of it was done and not scheduled."""
    total = sum(fetching.values()) if fetching else 0.0
    return fetching[FetchStage.COMPLETED_WAITING] / total if fetching and total else None


def _stalled(shots: Sequence[Shot], gained: float, requests: float | None) -> bool:
    """Requests wait, none runs, nothing moves, throughout."""
    waits = [any(e.waiting and not e.running for e in shot.page.engines.values()) for shot in shots]
    return all(waits) and not gained and not requests


def _change(found: Look, page: MetricsPage) -> Change | None:
    if found.restarted or found.stalled or found.idle:
        return None
    shapes = [engine.cache for engine in page.engines.values() if engine.cache is not None]
    computed = next((s.share for s in found.prompt if s.source == COMPUTED), None)
    if any(shape.prefix_caching is False for shape in shapes):
        return Change(
            "--enable-prefix-caching",
            "prefix caching is off: every prompt is computed whole",
            "hits; how many, only trying shows",
            is_finding=True,
        )
    if found.ready_share is not None and found.ready_share >= READY_SHARE_LIMIT:
        return Change(
            ATTACH if found.level is Level.OBSERVER else OBSERVER_FLAG,
            f"{found.ready_share:.0%} of the time that requests spent on loads they were done and "
            "not scheduled",
            "why: which batch each of them waited for",
            is_finding=True,
        )
    if computed is not None and computed >= COMPUTED_SHARE_WORTH_A_TIER and not page.offloads:
        return Change(
            "--kv-offloading-size GIB",
            f"{computed:.0%} of the prompt tokens were computed, and there is no host tier",
            f"host hits for at most that share; how much of it was ever seen before, level "
            f"{Level.KV_EVENTS} shows first",
        )
    step = found.next_level
    return None if step is None else Change(step.change, step.because, step.adds)
