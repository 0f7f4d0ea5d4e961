"""Every error that the API answers with, as problem+json (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kvready.advisor.service.models import Problem
from kvready.collectors.errors import ServiceError

MEDIA_TYPE = "application/problem+json"
UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"model": Problem, "description": "Not now"}}
REFUSED: dict[int | str, dict[str, Any]] = {
    422: {"model": Problem, "description": "A parameter is wrong"},
    **UNAVAILABLE,
}


def problem(status: int, detail: str) -> JSONResponse:
    """A problem document."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(body.model_dump(), status_code=status, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every error of `app` as a problem."""

    @app.exception_handler(ServiceError)
    async def unavailable(request: Request, error: ServiceError) -> JSONResponse:
        return problem(503, str(error))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        answer = problem(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        details = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return problem(422, "; ".join(details))
