"""The API: reads from the sidecar's state, and commands to policies for who has the token."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from kvready.advisor.inventory import InventoryCount
from kvready.advisor.ledger import Target
from kvready.advisor.report import Report, build_report, seen_drifts
from kvready.advisor.service import ofrep_api, page_api, policy_api, problems, readiness_api
from kvready.advisor.service.access import Access
from kvready.advisor.service.calls import Announced
from kvready.advisor.service.exposition import Exposition
from kvready.advisor.service.models import (
    Alive,
    CalibrationStatus,
    ContradictionModel,
    CopyCalibrationModel,
    DriftModel,
    IngestStatus,
    InventoryStatus,
    PairModel,
    Ready,
    RecordingStatus,
    RequestsStatus,
    SavingModel,
    Status,
    TapStatusModel,
    TelemetryStatus,
)
from kvready.advisor.service.policy_view import control_status, policy_models
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.version import VERSION
from kvready.advisor.would_be import would_be
from kvready.collectors.collector import Coverage
from kvready.collectors.records import TapState, Tier

MAX_PAIRS = 1_000
# A report over a full ledger takes 0.25 s of the ingest thread, however many look at the page.
REPORT_AGE_SECONDS = 3.0


def create_app(sidecar: Sidecar) -> FastAPI:
    """The API over one sidecar, which must be started and stopped by whoever made it."""
    app = FastAPI(
        title="kvready",
        version=VERSION,
        summary="Will this KV prefix be ready for attention in time?",
        docs_url=None,
        redoc_url=None,
    )
    problems.install(app)
    exposition = Exposition(sidecar.take_snapshot)
    report_desk = _ReportDesk(sidecar)

    @app.get("/livez", summary="Does the process answer?")
    def livez() -> Alive:
        return Alive()

    @app.get("/readyz", summary="Does every tap deliver?", responses=problems.UNAVAILABLE)
    def readyz() -> Ready:
        coverages = sidecar.ask(sidecar.coverages)
        refused = sidecar.recorder.refused
        texts = (
            what_is_missing(c, sidecar.advice.get(c.tap, ""), refused.get(c.tap, ""))
            for c in coverages
        )
        missing = [text for text in texts if text]
        if missing:
            return problems.problem(503, "; ".join(missing))  # type: ignore[return-value]
        return Ready(taps=[coverage.tap for coverage in coverages])

    @app.get("/metrics", summary="Prometheus or OpenMetrics text", response_class=Response,
             responses=problems.UNAVAILABLE)  # fmt: skip
    def metrics(request: Request) -> Response:
        body, content_type = exposition.render(request.headers.get("accept", ""))
        return Response(body, media_type=None, headers={"content-type": content_type})

    @app.get("/v1/status", summary="What runs and what it sees", responses=problems.UNAVAILABLE)
    def status() -> Status:
        return sidecar.ask(lambda: _status(sidecar))

    @app.get("/v1/pairs", summary="Forecasts and outcomes, newest first",
             responses=problems.REFUSED)  # fmt: skip
    def pairs(
        target: Target | None = None, limit: Annotated[int, Query(ge=1, le=MAX_PAIRS)] = 100
    ) -> list[PairModel]:
        newest = sidecar.ask(lambda: list(sidecar.pipeline.ledger.recent(target, limit)))
        return [PairModel.of(pair) for pair in newest]

    @app.get("/v1/report", summary="Predicted against actual, waits and hits",
             response_class=JSONResponse, responses=problems.UNAVAILABLE)  # fmt: skip
    def report() -> Response:
        body = msgspec.json.encode(sidecar.ask(report_desk))
        return Response(body, media_type="application/json")

    access = Access(sidecar.settings.api)
    page_api.install(app, sidecar, access, lambda: _status(sidecar), report_desk)
    readiness_api.install(app, sidecar, access)
    policy_api.install(app, sidecar, access)
    ofrep_api.install(app, sidecar, access)
    app.add_middleware(Announced, calls=sidecar.calls)
    return app


def what_is_missing(coverage: Coverage, advice: str, refused: str = "") -> str:
    """Why a tap does not deliver, or nothing when it does. An idle engine's tap does."""
    if coverage.state is TapState.CLOSED:
        return f"tap {coverage.tap} is not connected: check {advice}"
    if coverage.state is TapState.SILENT and refused:
        return f"tap {coverage.tap} is silent: what arrived could not be read: {refused}"
    if coverage.state is TapState.SILENT:
        return f"tap {coverage.tap} is silent: check {advice}"
    return ""


class _ReportDesk:
    """Builds reports in the ingest thread, and not more often than readers can notice."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._built: Report | None = None
        self._built_seconds = 0.0

    def __call__(self) -> Report:
        """The report, at most REPORT_AGE_SECONDS old."""
        now = time.monotonic()
        if self._built is None or now - self._built_seconds > REPORT_AGE_SECONDS:
            replayed = self._sidecar.replayed
            pipeline = self._sidecar.pipeline
            self._built = (
                build_report(pipeline, replayed.evidence, replayed.conditions)
                if replayed
                else build_report(pipeline)
            )
            self._built_seconds = now
        return self._built


def _status(sidecar: Sidecar) -> Status:
    now = time.monotonic()
    pipeline, recorder, intake = sidecar.pipeline, sidecar.recorder, sidecar.intake
    engine = pipeline.engine
    replayed, telemetry = sidecar.replayed, sidecar.telemetry
    return Status(
        version=VERSION,
        level=sidecar.level,
        evidence=replayed.evidence if replayed else pipeline.evidence,
        replayed=replayed.recording if replayed else None,
        engine=None if engine is None else msgspec.to_builtins(engine),
        taps=[TapStatusModel.of(coverage, now) for coverage in sidecar.coverages()],
        inventory=InventoryStatus(
            degraded=pipeline.inventory.degraded,
            live_blocks={tier: pipeline.inventory.live_blocks(tier) for tier in Tier},
            counts={count: pipeline.inventory.counts[count] for count in InventoryCount},
        ),
        requests=RequestsStatus(
            shed=sum(rank.requests.shed for rank in pipeline.ranks.values()),
            unknown=sum(rank.requests.unknown for rank in pipeline.ranks.values()),
            shed_records=pipeline.shed_records,
        ),
        ingest=IngestStatus(
            records=recorder.ingested,
            queued=len(intake),
            dropped=sum(intake.dropped.values()),
            lag_seconds=intake.lag_seconds,
        ),
        recording=RecordingStatus(
            active=recorder.recording.active,
            records=recorder.recording.records,
            written_bytes=recorder.recording.written_bytes,
            problem=recorder.recording.problem,
        ),
        contradictions=[
            ContradictionModel.of(found) for found in pipeline.outside.contradictions.found.values()
        ],
        drifts=[
            DriftModel(target=drift.target, kind=drift.kind, alarms=drift.alarms)
            for drift in seen_drifts(pipeline)
            if drift.active
        ],
        policies=policy_models(pipeline.control),
        control=control_status(pipeline.control, sidecar.desk),
        would_be_savings=[SavingModel.of(one) for one in would_be(pipeline).savings],
        calibration=CalibrationStatus(
            evidence=pipeline.priors.kind,
            profile=pipeline.priors.name,
            calibration_id=pipeline.priors.calibration_id,
            movers=[CopyCalibrationModel.of(one) for one in pipeline.calibrations],
        ),
        telemetry=telemetry
        and TelemetryStatus.of(telemetry.endpoint, telemetry.waiting_spans, sidecar.exports),
    )
