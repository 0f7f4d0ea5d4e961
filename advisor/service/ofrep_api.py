"""Flags of policies over the OpenFeature Remote Evaluation Protocol (OFREP), with a lease.

A hook asks again every half second; what it was told holds for the lease and no longer, counted
from when it asked. The three headers are on 200 and on 304: without them an answer says nothing.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from kvready.advisor.flags import Flag, Subject, evaluate
from kvready.advisor.hooks.flag_client import (
    BOOT_HEADER,
    LEASE_HEADER,
    OUTSIDE,
    OUTSIDE_SEPARATOR,
    REVISION_HEADER,
)
from kvready.advisor.policies import ORDER, Scope
from kvready.advisor.service.access import Access
from kvready.advisor.service.bodies import JSON, KIB, read_json
from kvready.advisor.service.description import add_schemas, content
from kvready.advisor.service.flag_board import LEASE_SECONDS, FlagBoard, FlagView
from kvready.advisor.service.ofrep_schema import SCHEMAS, responses
from kvready.advisor.service.rate import RateLimit
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.verdicts import GateReport
from kvready.collectors.errors import ServiceError

MAX_BODY_BYTES = 16 * KIB
BODY_SECONDS = 2.0
MAX_NAME_CHARACTERS = 256
PER_SECOND, BURST = 50.0, 200  # of one address: 25 hooks that poll twice a second
MAX_HASH = 2**64


class FlagError(Exception):
    """What is wrong with an evaluation, as OFREP names it."""

    def __init__(self, code: str, says: str, status: int = 400, key: str | None = None) -> None:
        super().__init__(says)
        self.code = code
        self.says = says
        self.status = status
        self.key = key


def install(app: FastAPI, sidecar: Sidecar, access: Access) -> None:
    """Add the routes."""
    board = FlagBoard(sidecar)
    rate = RateLimit(PER_SECOND, BURST)
    router = APIRouter(prefix="/ofrep/v1/evaluate/flags", tags=["flags"])
    body = {"requestBody": {"required": True, **content(JSON, "FlagQuestion")}}

    async def asked(request: Request) -> Subject:
        rate.check(request)
        access.check(request.headers.get("authorization"))
        return subject_of(await read_json(request, MAX_BODY_BYTES, BODY_SECONDS))

    async def look() -> tuple[FlagView, int]:
        try:
            return await board.look()
        except (TimeoutError, ServiceError) as error:
            says = str(error) or "the sidecar is too busy to answer in time"
            raise FlagError("GENERAL", f"{says}; what was held runs out", 503) from None

    @router.post("", summary="All policies' flags", response_class=Response,
                 responses=responses("FlagAnswers", 304), openapi_extra=body)  # fmt: skip
    async def flags(request: Request) -> Response:
        subject = await asked(request)
        view, revision = await look()
        headers = _headers(board, revision)
        headers["ETag"] = _etag(board, revision, subject)
        if headers["ETag"] in _tags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        found = [_told(_flag(policy, view, subject), view) for policy in ORDER]
        metadata = {
            "boot_id": board.boot_id, "revision": revision, "lease_seconds": LEASE_SECONDS
        }  # fmt: skip
        return _json({"flags": found, "metadata": metadata}, headers)

    @router.post("/{key}", summary="One policy's flag", response_class=Response,
                 responses=responses("FlagAnswer", 404), openapi_extra=body)  # fmt: skip
    async def flag(key: str, request: Request) -> Response:
        subject = await asked(request)
        if key not in ORDER:
            says = f"{key[:MAX_NAME_CHARACTERS]!r} is no flag; there are {', '.join(ORDER)}"
            raise FlagError("FLAG_NOT_FOUND", says, 404, key[:MAX_NAME_CHARACTERS])
        view, revision = await look()
        found = _told(_flag(key, view, subject), view)
        found["metadata"] |= {"boot_id": board.boot_id, "revision": revision}
        return _json(found, _headers(board, revision))

    @app.exception_handler(FlagError)
    async def wrong(request: Request, error: FlagError) -> Response:
        document = {"errorCode": error.code, "errorDetails": error.says}
        if error.key is not None:
            document["key"] = error.key
        return _json(document, {"Cache-Control": "no-store"}, error.status)

    app.include_router(router)
    add_schemas(app, SCHEMAS)


def subject_of(body: bytes) -> Subject:
    """Who asks. Raises `FlagError`."""
    try:
        question = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise FlagError("PARSE_ERROR", f"this is no JSON: {error}") from None
    context = question.get("context", {}) if isinstance(question, dict) else None
    if not isinstance(context, dict):
        raise FlagError("INVALID_CONTEXT", "send an object with an object as its context")
    key = context.get("targetingKey")
    if key is None or key == "":
        raise FlagError("TARGETING_KEY_MISSING", "name who asks in context.targetingKey")
    names = [key] + [context.get(part, "*") for part in Scope.__struct_fields__]
    if not all(isinstance(n, str) and 0 < len(n) <= MAX_NAME_CHARACTERS for n in names):
        raise FlagError(
            "INVALID_CONTEXT",
            "targetingKey, engine, pool and request_class are texts of 1 to "
            f"{MAX_NAME_CHARACTERS} characters",
        )
    return Subject(Scope(*names[1:]), _group(context.get("prefix_group")))


def _group(given: object) -> int | None:
    """A hash of 64 bits, as a number, or as text where numbers are doubles."""
    if given is None:
        return None
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < MAX_HASH:
        return int(text)
    raise FlagError("INVALID_CONTEXT", "prefix_group is a hash of 64 bits, as a number or digits")


def _flag(key: str, view: FlagView, subject: Subject) -> Flag:
    policy = next(one for one in ORDER if one == key)
    return evaluate(policy, view.states, view.killed_by, subject, view.assignment)


def _told(flag: Flag, view: FlagView) -> dict[str, Any]:
    """A flag in OFREP's words; metadata are texts, numbers and booleans alone."""
    metadata: dict[str, str | float | bool] = {
        "says": flag.says, "lease_seconds": LEASE_SECONDS
    }  # fmt: skip
    if flag.split is not None:
        metadata["split_seed"] = flag.split.seed
        metadata["split_treated_ratio"] = flag.split.treated_ratio
    if outside := view.outside.get(flag.policy):
        metadata[OUTSIDE] = OUTSIDE_SEPARATOR.join(outside)
    if flag.state is not None:
        state = flag.state
        metadata |= {
            "mode": state.mode.value,
            "overlay": state.overlay.value,
            "policy_version": state.version,
            "state_revision": state.revision,
            "since_seconds": state.since_seconds,
            "forced": state.forced,
        }
        report = view.reports.get(state.report_id)
        if report is not None:
            metadata |= _evidence(report)
    return {
        "key": flag.policy.value,
        "value": flag.is_on,
        "reason": flag.reason.value,
        "variant": "on" if flag.is_on else "off",
        "metadata": metadata,
    }


def _evidence(report: GateReport) -> dict[str, str | float]:
    """On what it acts. What the report does not say is left out."""
    told: dict[str, str | float] = {
        "gate_verdict_id": report.report_id,
        "gate_verdict": report.verdict.value,
        "evidence_end_seconds": report.made_seconds,
        "evidence_end_ingest": report.made_ingest,
        "model_version": " ".join(report.model_versions),
        "calibration_id": report.calibration_id,
        "engine_version": report.engine_version,
    }
    return {name: value for name, value in told.items() if value != ""}


def _headers(board: FlagBoard, revision: int) -> dict[str, str]:
    return {
        "Cache-Control": "no-store",
        BOOT_HEADER: board.boot_id,
        REVISION_HEADER: str(revision),
        LEASE_HEADER: str(LEASE_SECONDS),
    }


def _etag(board: FlagBoard, revision: int, subject: Subject) -> str:
    asked = sha256(msgspec.json.encode(subject)).hexdigest()[:16]
    return f'"{board.boot_id}.{revision}.{asked}"'


def _tags(header: str) -> set[str]:
    """The tags that a caller holds. `*` is none: nobody holds whatever there is."""
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def _json(document: object, headers: dict[str, str], status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, headers, JSON)
