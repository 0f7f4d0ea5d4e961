"""Readiness over HTTP: `POST /v1/readiness` and `GET /v1/models`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kvready.advisor import contract_schema
from kvready.advisor.model_cards import ModelCards, model_cards
from kvready.advisor.service import problems
from kvready.advisor.service.access import Access
from kvready.advisor.service.description import REFERENCE, add_schemas, content
from kvready.advisor.service.readiness_desk import MAX_BODY_BYTES, ReadinessDesk
from kvready.advisor.service.sidecar import Sidecar

BODY_SECONDS = 5.0  # for a caller to send its question
CARDS_AGE_SECONDS = 3.0
JSON = "application/json"


def install(app: FastAPI, sidecar: Sidecar) -> None:
    """Add the routes, and the contract's structs to the app's description."""
    access = Access(sidecar.settings.api)
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
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise HTTPException(415, f"send the question as {JSON}")
        try:
            body = await asyncio.wait_for(_body_of(request), BODY_SECONDS)
        except TimeoutError:
            raise HTTPException(408, f"the question took over {BODY_SECONDS:g} s") from None
        try:
            return Response(await desk.answer(body), media_type=JSON)
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


async def _body_of(request: Request) -> bytes:
    parts = bytearray()
    try:
        async for part in request.stream():
            parts += part
            if len(parts) > MAX_BODY_BYTES:
                raise HTTPException(
                    413, f"the question is over {MAX_BODY_BYTES >> 20} MiB; ask in parts"
                )
    except ClientDisconnect:
        raise HTTPException(400, "the question ended early; send it whole") from None
    return bytes(parts)


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
