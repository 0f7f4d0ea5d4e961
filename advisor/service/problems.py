"""Every error that the API answers with, as problem+json (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kvready.advisor.service.description import add_schemas, content
from kvready.advisor.service.models import Problem
from kvready.collectors.errors import QuestionError, QuestionFault, ServiceError

TYPE_PREFIX = "urn:kvready:problem:"
STATUS = {
    QuestionFault.MALFORMED: 422,
    QuestionFault.CONTENT_KEYS_OFF: 422,
    QuestionFault.TOO_LARGE: 413,
    QuestionFault.NOT_YET: 503,
}
RETRY_SECONDS = 1
MEDIA_TYPE = "application/problem+json"


def _described(texts: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Responses of these statuses, for a route's description."""
    body = content(MEDIA_TYPE, Problem.__name__)
    return {status: {"description": text, **body} for status, text in texts.items()}


UNAVAILABLE = _described({503: "Not now"})
REFUSED = _described({422: "A parameter is wrong", 503: "Not now"})
_CALLER = {
    401: "The token is missing or wrong",
    403: "No token is set that could do this, or yours may not",
}
READS = _described({**_CALLER, 422: "A parameter is wrong", 503: "Not now"})
CHANGES = _described(
    {
        **_CALLER,
        400: "A header is malformed, or the body ended early",
        404: "No such policy or action",
        408: "The body came too slowly",
        409: "The policy lacks what this move needs; `lacks` names it",
        412: "The policy is of another revision by now",
        413: "The body is too large",
        415: "Not JSON",
        422: "The body is malformed, or the key was used for another command",
        428: "If-Match or Idempotency-Key is missing",
        429: "Too many calls; Retry-After says when to come again",
        503: "Not now",
        504: "Too busy to answer in time; the same key tells later what became of it",
    }
)
READINESS = _described(
    {
        400: "The question ended early",
        401: "The token is missing or wrong",
        403: "No token is set, and one is needed beyond loopback",
        408: "The question came too slowly",
        413: "Too much at once",
        415: "Not JSON",
        422: "The question is malformed, or names blocks by their content where keys are off",
        503: "Not now",
        504: "Too busy to answer in time",
    }
)


def of_question(error: QuestionError) -> Problem:
    """What is wrong with a question, as a document."""
    status = STATUS[error.fault]
    return Problem(
        type=TYPE_PREFIX + error.fault,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=str(error),
    )


def problem(status: int, detail: str) -> JSONResponse:
    """A problem document."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(body.model_dump(), status_code=status, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every error of `app` as a problem."""
    add_schemas(app, {Problem.__name__: Problem.model_json_schema()})

    @app.exception_handler(ServiceError)
    async def unavailable(request: Request, error: ServiceError) -> JSONResponse:
        return problem(503, str(error))

    @app.exception_handler(QuestionError)
    async def unanswerable(request: Request, error: QuestionError) -> JSONResponse:
        body = of_question(error)
        headers = {"retry-after": str(RETRY_SECONDS)} if body.status == 503 else None
        return JSONResponse(body.model_dump(), body.status, headers, MEDIA_TYPE)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        answer = problem(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        details = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return problem(422, "; ".join(details))
