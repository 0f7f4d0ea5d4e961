"""Readiness over HTTP: `POST /v1/readiness` and `GET /v1/models`."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from kvready.advisor import contract_schema
from kvready.advisor.model_cards import ModelCards, model_cards
from kvready.advisor.service import problems
from kvready.advisor.service.access import Access
from kvready.advisor.service.bodies import JSON, read_json
from kvready.advisor.service.description import REFERENCE, add_schemas, content
from kvready.advisor.service.readiness_desk import MAX_BODY_BYTES, ReadinessDesk
from kvready.advisor.service.sidecar import Sidecar

BODY_SECONDS = 5.0  # for a caller to send its question
CARDS_AGE_SECONDS = 3.0


def install(app: FastAPI, sidecar: Sidecar, access: Access) -> None:
    """Add the routes, and the contract's structs to the app's description."""
    desk = ReadinessDesk(sidecar)
    cards = _Cards(sidecar)
    router = APIRouter()

    @router.post(
        "/v1/readiness",
        summary="When will these be ready, and what should be done?",
        response_class=Response,
        responses={200: _answered("Answers"), **problems.READINESS},
        openapi_extra={"requestBody": {"required": True, **content(JSON, "Question")}},
    )
    async def readiness(request: Request) -> Response:
        access.check(request.headers.get("authorization"))
        body = await read_json(request, MAX_BODY_BYTES, BODY_SECONDS)
        trace = request.headers.get("traceparent", ""), request.headers.get("tracestate", "")
        try:
            return Response(await desk.answer(body, trace), media_type=JSON)
        except TimeoutError:
            raise HTTPException(
                504, "the sidecar is too busy to answer in time; ask less, or less often"
            ) from None

    @router.get(
        "/v1/models",
        summary="Each model, what it rests on, and how its intervals held",
        response_class=Response,
        responses={200: _answered("ModelCards"), **problems.UNAVAILABLE},
    )
    def models() -> Response:
        return Response(msgspec.json.encode(sidecar.ask(cards)), media_type=JSON)

    app.include_router(router)
    add_schemas(app, contract_schema.components(REFERENCE))


class _Cards:
    """Looked at again no more often than readers can notice. Ingest thread only."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._made: ModelCards | None = None
        self._made_seconds = 0.0

    def __call__(self) -> ModelCards:
        now = time.monotonic()
        if self._made is None or now - self._made_seconds > CARDS_AGE_SECONDS:
            pipeline = self._sidecar.pipeline
            self._made = model_cards(pipeline.ranks.values(), pipeline.ledger)
            self._made_seconds = now
        return self._made


def _answered(name: str) -> dict[str, Any]:
    return {"description": "Answered", **content(JSON, name)}
