"""Whose facts these are: an engine's, or those of a simulated one. The two are never mixed."""

from __future__ import annotations

from kvready.advisor.contract import Evidence
from kvready.collectors.names import SIMULATED_ENGINE, SIMULATED_RELEASE
from kvready.collectors.records import CountersScraped, EngineDescribed


def is_simulated(engine: EngineDescribed | None, counters: CountersScraped | None = None) -> bool:
    """Whether any surface said that no engine stands behind it."""
    if engine is not None and engine.engine == SIMULATED_ENGINE:
        return True
    return counters is not None and counters.engine_version.endswith(SIMULATED_RELEASE)


def seen_of(engine: EngineDescribed | None, evidence: Evidence = Evidence.MEASURED) -> Evidence:
    """The kind of evidence that an engine's own outcomes are; other kinds stay what they are."""
    if evidence is Evidence.MEASURED and is_simulated(engine):
        return Evidence.SIMULATED
    return evidence
