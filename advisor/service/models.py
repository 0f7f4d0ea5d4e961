"""The shapes that the API answers with."""

from __future__ import annotations

import msgspec
from pydantic import BaseModel, Field

from kvready.advisor.contradictions import Contradiction, Kind
from kvready.advisor.copy_model import CopyCalibration
from kvready.advisor.drift import DriftKind
from kvready.advisor.inventory import InventoryCount
from kvready.advisor.ledger import Pair, PairState, Target
from kvready.advisor.load_priors import PriorKind
from kvready.advisor.savings import Candidate, Saving, Verdict
from kvready.advisor.service.otel_counts import ExportCounts, Fate, Result, Signal
from kvready.advisor.service.policy_view import ControlStatus, PolicyModel
from kvready.collectors.collector import Coverage
from kvready.collectors.records import CopyMethod, TapState, Tier


class Problem(BaseModel):
    """What went wrong, as RFC 9457 spells it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Alive(BaseModel):
    """The process answers."""

    status: str = "alive"


class Ready(BaseModel):
    """Every configured tap delivers."""

    status: str = "ready"
    taps: list[str]


class TapStatusModel(BaseModel):
    """What a tap can and cannot see, now."""

    tap: str
    level: str
    state: TapState
    stability: str
    records: int
    messages: int
    gaps: int
    decode_errors: int
    dropped: int
    quiet_seconds: float | None = Field(description="None: nothing has arrived yet.")
    blind_to: list[str]
    refused: dict[str, int] = Field(description="What could not be read, by reason.")
    unknown: dict[str, int] = Field(description="What a later version added, by name; skipped.")
    quarantine: list[str] = Field(description="Outlines of the latest that could not be read.")
    keyless_blocks: int = Field(description="Blocks that got no content key, though wanted.")

    @classmethod
    def of(cls, coverage: Coverage, now_seconds: float) -> TapStatusModel:
        """A coverage as the API shows it."""
        last = coverage.last_received_seconds
        return cls(
            tap=coverage.tap,
            level=coverage.level,
            state=coverage.state,
            stability=coverage.stability,
            records=coverage.records,
            messages=coverage.messages,
            gaps=coverage.gaps,
            decode_errors=coverage.decode_errors,
            dropped=coverage.dropped,
            quiet_seconds=None if last is None else max(now_seconds - last, 0.0),
            blind_to=list(coverage.blind_to),
            refused=coverage.refused,
            unknown=coverage.unknown,
            quarantine=list(coverage.quarantine),
            keyless_blocks=coverage.keyless_blocks,
        )


class IngestStatus(BaseModel):
    """How the sidecar keeps up."""

    records: int
    queued: int
    dropped: int
    lag_seconds: float


class RecordingStatus(BaseModel):
    """Whether what is seen is kept."""

    active: bool
    records: int
    written_bytes: int
    problem: str


class InventoryStatus(BaseModel):
    """What can be found where, now."""

    degraded: bool
    live_blocks: dict[Tier, int]
    counts: dict[InventoryCount, int] = Field(description="What was odd in the events.")


class RequestsStatus(BaseModel):
    """Requests that could not be followed."""

    shed: int = Field(description="Forgotten alive, for the bound.")
    unknown: int = Field(description="Records of requests that arrived before we did.")
    shed_records: int = Field(description="Records of ranks beyond the bound.")


class ContradictionModel(BaseModel):
    """Two sources that cannot both be right, with the evidence."""

    kind: Kind
    evidence: str
    active: bool = Field(description="Whether it held at the last scrape.")
    since_seconds: float
    last_seconds: float

    @classmethod
    def of(cls, found: Contradiction) -> ContradictionModel:
        """A contradiction as the API shows it."""
        return cls(
            kind=found.kind,
            evidence=found.evidence,
            active=found.active,
            since_seconds=found.since_seconds,
            last_seconds=found.last_seconds,
        )


class DriftModel(BaseModel):
    """Predictions of one target that stopped being what they were."""

    target: Target
    kind: DriftKind
    alarms: int = Field(description="How often, so far.")


class CopyCalibrationModel(BaseModel):
    """One mover in one direction, beside what was believed of it."""

    source: Tier
    destination: Tier
    method: CopyMethod | None = Field(description="None: the engine does not tell.")
    evidence: PriorKind
    copies: int
    factor: float = Field(description="Fitted time over that of the link profile.")
    overhead_seconds: float = Field(description="What the engine adds to each copy.")
    scale: float = Field(description="By which the latest copies were slower than that.")
    stale: bool = Field(description="Whether a link profile is off by more than a factor of two.")

    @classmethod
    def of(cls, found: CopyCalibration) -> CopyCalibrationModel:
        """A calibration as the API shows it."""
        return cls(
            source=found.source,
            destination=found.destination,
            method=found.method,
            evidence=found.evidence,
            copies=found.copies,
            factor=found.factor,
            overhead_seconds=found.overhead_seconds,
            scale=found.scale,
            stale=found.stale,
        )


class CalibrationStatus(BaseModel):
    """Whose figures loads are forecast from, and how far the engine is from them."""

    evidence: PriorKind
    profile: str = Field(description="The link profile's name; empty without one.")
    calibration_id: str
    movers: list[CopyCalibrationModel]


class SavingModel(BaseModel):
    """What a policy would have saved, in seconds; counts only where its verdict is `shown`."""

    policy: Candidate = Field(description="`engine` is the placebo: the engine's own policy.")
    verdict: Verdict
    episodes: int
    requests: int
    ttft: dict[str, float | None] = Field(description="Summed over requests, with 90 % bounds.")
    busy: dict[str, float | None] = Field(description="Of the engine, with 90 % bounds.")

    @classmethod
    def of(cls, saving: Saving) -> SavingModel:
        """As the API tells it."""
        return cls(
            policy=saving.candidate,
            verdict=saving.verdict,
            episodes=saving.episodes,
            requests=saving.requests,
            ttft=msgspec.to_builtins(saving.ttft),
            busy=msgspec.to_builtins(saving.busy),
        )


class TelemetryStatus(BaseModel):
    """What is exported over OTLP, and how that fares."""

    endpoint: str
    exports: dict[Signal, dict[Result, int]]
    rejected: dict[Signal, int] = Field(description="Points and spans that the collector refused.")
    quiet_seconds: dict[Signal, float] = Field(description="Since the latest that was delivered.")
    problems: dict[Signal, str] = Field(description="Of the latest export; empty: none.")
    spans: dict[Fate, int] = Field(description="Of sampled decisions, by what became of them.")
    waiting_spans: int

    @classmethod
    def of(cls, endpoint: str, waiting_spans: int, counts: ExportCounts) -> TelemetryStatus:
        """Counts as the API shows them."""
        exports = counts.exports()
        return cls(
            endpoint=endpoint,
            exports={one: {end: exports[one, end] for end in Result} for one in Signal},
            rejected=counts.rejections(),
            quiet_seconds=counts.quiet_seconds(),
            problems={one: counts.problem(one) for one in Signal},
            spans=counts.fates(),
            waiting_spans=waiting_spans,
        )


class Status(BaseModel):
    """What runs, what it sees, and how far it goes."""

    version: str
    level: str
    evidence: str = Field(description="What kind of facts these are: measured, or simulated.")
    replayed: str | None = Field(description="The recording shown, when no engine is attached.")
    engine: dict[str, str | int | bool] | None
    taps: list[TapStatusModel]
    inventory: InventoryStatus
    requests: RequestsStatus
    ingest: IngestStatus
    recording: RecordingStatus
    contradictions: list[ContradictionModel]
    drifts: list[DriftModel] = Field(description="Alarms that the latest outcomes raised.")
    policies: list[PolicyModel]
    control: ControlStatus
    would_be_savings: list[SavingModel]
    calibration: CalibrationStatus
    telemetry: TelemetryStatus | None = Field(description="None: nothing is exported over OTLP.")


class PairModel(BaseModel):
    """A forecast and what really happened."""

    target: Target
    subject: str
    shape_cell: str
    state: PairState
    made_seconds: float
    starts_seconds: float
    p50_seconds: float
    low_seconds: float
    high_seconds: float
    nominal_coverage: float
    actual_seconds: float | None
    signed_error_seconds: float | None
    covered: bool | None
    bad: bool | None
    missed: bool
    model_version: str
    leans_on_degraded: bool

    @classmethod
    def of(cls, pair: Pair) -> PairModel:
        """A pair as the API shows it."""
        forecast = pair.forecast
        return cls(
            target=forecast.target,
            subject=forecast.subject,
            shape_cell=forecast.shape_cell,
            state=pair.state,
            made_seconds=forecast.made_seconds,
            starts_seconds=forecast.starts_seconds,
            p50_seconds=forecast.p50_seconds,
            low_seconds=forecast.low_seconds,
            high_seconds=forecast.high_seconds,
            nominal_coverage=forecast.nominal_coverage,
            actual_seconds=pair.actual_seconds,
            signed_error_seconds=pair.signed_error_seconds,
            covered=pair.covered,
            bad=pair.bad,
            missed=pair.missed,
            model_version=forecast.model_version,
            leans_on_degraded=forecast.leans_on_degraded,
        )
