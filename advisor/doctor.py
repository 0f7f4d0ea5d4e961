"""From evidence to named findings: what hurts, what blinds, what it costs and what to change.

Every check is a function of the evidence alone. A check that lacks evidence stays silent: an idle
engine is not ill.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvready.advisor.diagnosis import (
    CoverageRow,
    Diagnosis,
    Evidence,
    Finding,
    Severity,
    TapEvidence,
)
from kvready.advisor.endpoint_checks import endpoint_findings
from kvready.advisor.engine_checks import engine_findings
from kvready.advisor.levels import level_now, next_step
from kvready.advisor.tap_checks import tap_findings
from kvready.collectors.metrics_page import EngineReading, Reading, Refused
from kvready.collectors.records import Tier

MIN_REQUESTS = 2
MIN_BLOCKS = 4
ASSUMED_BLOCK_TOKENS = 32
METRICS_TAP = "metrics"


def diagnose(evidence: Evidence) -> Diagnosis:
    """All findings, worst first, and what is seen of each tier of each rank."""
    surfaces = evidence.surfaces
    found = sorted(_findings(evidence), key=lambda finding: list(Severity).index(finding.severity))
    return Diagnosis(
        url=surfaces.url,
        version=surfaces.version,
        model=", ".join(surfaces.models) or "unknown",
        seconds=evidence.seconds,
        level=level_now(surfaces),
        busy=bool(busy_ranks(evidence)),
        coverage=tuple(_rows(evidence)),
        findings=tuple(one for one in found if one.severity is not Severity.NOTE),
        notes=tuple(one for one in found if one.severity is Severity.NOTE),
        next_level=next_step(surfaces),
    )


def busy_ranks(evidence: Evidence) -> frozenset[int]:
    """Ranks that computed blocks and answered requests while they were watched."""
    before, after = evidence.before, evidence.after
    if before is None or after is None:
        return frozenset()
    both = before.engines.keys() & after.engines.keys()
    return frozenset(rank for rank in both if _was_busy(before.engines[rank], after.engines[rank]))


def _was_busy(before: EngineReading, after: EngineReading) -> bool:
    if before.ttft_seconds is None or after.ttft_seconds is None:
        return False
    computed = _grown(before.computed_tokens, after.computed_tokens)
    if computed is None:
        computed = _grown(before.prompt_tokens, after.prompt_tokens)
    block_tokens = after.cache.block_tokens if after.cache is not None else None
    return (
        computed is not None
        and computed >= MIN_BLOCKS * (block_tokens or ASSUMED_BLOCK_TOKENS)
        and after.ttft_seconds.count - before.ttft_seconds.count >= MIN_REQUESTS
    )


def _grown(before: Reading, after: Reading) -> float | None:
    both_told = isinstance(before, float) and isinstance(after, float)
    return after - before if both_told else None  # type: ignore[operator]


def _findings(evidence: Evidence) -> Iterator[Finding]:
    yield from engine_findings(evidence)
    yield from endpoint_findings(evidence)
    yield from tap_findings(evidence, busy_ranks(evidence))


def _rows(evidence: Evidence) -> Iterator[CoverageRow]:
    page = evidence.after
    for rank, engine in sorted(page.engines.items()) if page is not None else ():
        yield CoverageRow(METRICS_TAP, rank, "live", {t: _counted(engine, t) for t in Tier})
    for tap in (*evidence.kv_taps, *evidence.observer_taps):
        state = _state(tap, tap in evidence.observer_taps)
        yield CoverageRow(tap.tap, tap.rank, state, {t: _seen(tap, t) for t in Tier})


def _counted(engine: EngineReading, tier: Tier) -> str:
    reading = engine.hit_tokens.get(tier)
    if isinstance(reading, Refused):
        return "refused"
    return "unknown" if reading is None else f"{reading:,.0f} tokens"


def _seen(tap: TapEvidence, tier: Tier) -> str:
    if tap.coverage is None:
        return "-"
    count = tap.seen.get(tier, 0)
    return f"{count:,}" if count else "nothing"


def _state(tap: TapEvidence, is_observer: bool) -> str:
    if tap.coverage is None:
        return "cannot open"
    if is_observer and not tap.coverage.messages:
        return "nothing yet"  # it shows itself by its first message
    return tap.coverage.state.value
