"""What a doctor works with: the evidence of a short watch, and the findings that come of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvready.advisor.levels import Step
from kvready.collectors.collector import Coverage, Level
from kvready.collectors.metrics_page import MetricsPage
from kvready.collectors.records import TapStatus, Tier
from kvready.collectors.surfaces import Surfaces


class Severity(StrEnum):
    """How much a finding matters. A note is none: it is good to know and costs nothing here."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """Something that hurts or blinds, by a name that stays the same between versions."""

    id: str
    severity: Severity
    what: str
    evidence: str
    cost: str
    fix: str


class TapEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one tap delivered of one rank during the watch."""

    tap: str
    rank: int
    address: str = ""
    coverage: Coverage | None = None  # None: it could not be opened, see `problem`
    problem: str = ""
    seen: dict[Tier, int] = {}  # facts about each tier
    placeholders: dict[Tier, int] = {}  # stores that do not say what they hold
    news: tuple[TapStatus, ...] = ()
    unsupported: str = ""  # why its KV state is none that we can judge


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered. Pages None: the engine shows no metrics."""

    surfaces: Surfaces
    seconds: float
    before: MetricsPage | None
    after: MetricsPage | None
    kv_taps: tuple[TapEvidence, ...] = ()
    observer_taps: tuple[TapEvidence, ...] = ()
    observer_wanted: bool = False  # the user named its folder


class CoverageRow(msgspec.Struct, frozen=True):
    """One tap's view of one rank: a word or figure a tier."""

    tap: str
    rank: int
    state: str
    tiers: dict[Tier, str]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that a doctor says."""

    url: str
    version: str | None
    model: str
    seconds: float
    level: Level | None
    busy: bool  # enough happened to tell a silent tap from an idle engine
    coverage: tuple[CoverageRow, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    next_level: Step | None
