"""The page's routes: the document, the part of it that is renewed, and its own files."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from kvready.advisor.audit_chain import AuditEntry
from kvready.advisor.ledger import Target
from kvready.advisor.report import Report
from kvready.advisor.service import problems
from kvready.advisor.service.access import Access
from kvready.advisor.service.audit import tail
from kvready.advisor.service.models import Status
from kvready.advisor.service.page import Looked, render_live, render_page, render_without
from kvready.advisor.service.page_audit import SHOWN_ENTRIES
from kvready.advisor.service.page_facts import facts
from kvready.advisor.service.page_files import FILES, FOLDER
from kvready.advisor.service.policy_desk import KILL_FILE
from kvready.advisor.service.sidecar import Sidecar
from kvready.collectors.errors import ServiceError

# Its own files and answers, and nothing else: no inline script or style, no frame around it.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
FRESH = GUARDS | {"cache-control": "no-store"}
# Who looks holds no connection between two looks: there are few, and hooks and scrapers need them.
LOOKED = FRESH | {"connection": "close"}
KEPT = GUARDS | {"cache-control": "public, max-age=31536000, immutable"}
ANSWERS: dict[int | str, dict[str, Any]] = problems.REFUSED | {
    503: {"description": "Nothing can be looked at now", "content": {"text/html": {}}}
}
NEVER = float("-inf"), "", b"", ""
LOOK_SECONDS = 1.0  # however many look at the page, it is made so often
# A report over a full ledger takes a good part of a second of the ingest thread: pages that stay
# open make one so rarely that it costs no more than this share.
REPORT_SHARE = 1 / 30


def install(
    app: FastAPI,
    sidecar: Sidecar,
    access: Access,
    status: Callable[[], Status],
    report: Callable[[], Report],
) -> None:
    """Add the routes. `status` and `report` are asked in the ingest thread."""
    kept = _KeptReport(report)
    looks = _Looks(sidecar, access, lambda: (status(), kept()))

    @app.get("/", summary="What is going on, for a person on call", response_class=HTMLResponse,
             responses=ANSWERS)  # fmt: skip
    def page(request: Request, target: Target = Target.TTFT) -> HTMLResponse:
        try:
            return HTMLResponse(render_page(looks.look(request, target)), headers=FRESH)
        except ServiceError as error:
            return HTMLResponse(render_without(str(error), looks.kill_file), 503, FRESH)

    @app.get("/page/live", include_in_schema=False)
    def live(request: Request, target: Target = Target.TTFT) -> HTMLResponse:
        packed = looks.live(request, target)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return HTMLResponse(packed, headers=LOOKED | {"content-encoding": "gzip"})
        return HTMLResponse(gzip.decompress(packed), headers=LOOKED)

    @app.get(f"/{FOLDER}/{{name}}", include_in_schema=False)
    def file(name: str) -> Response:
        found = FILES.get(f"{FOLDER}/{name}")
        if found is None:
            raise HTTPException(404, "no such file; reload the page")
        return Response(found.content, media_type=found.media_type, headers=KEPT)


class _KeptReport:
    """A report, made again only after many times what making it took."""

    def __init__(self, make: Callable[[], Report]) -> None:
        self._make = make
        self._made: Report | None = None
        self._again_seconds = 0.0

    def __call__(self) -> Report:
        """In the ingest thread."""
        began = time.monotonic()
        if self._made is None or began > self._again_seconds:
            self._made = self._make()
            ended = time.monotonic()
            self._again_seconds = ended + (ended - began) / REPORT_SHARE
        return self._made


class _Looks:
    """Makes the page at most every LOOK_SECONDS for each target and kind of reader."""

    def __init__(
        self, sidecar: Sidecar, access: Access, read: Callable[[], tuple[Status, Report]]
    ) -> None:
        self._sidecar = sidecar
        self._access = access
        self._read = read
        self._lock = threading.Lock()
        self._made: dict[tuple[Target, bool], tuple[float, str, bytes, str]] = {}
        self._tail: tuple[str, list[AuditEntry]] = ("", [])  # the audit's head, and what led there

    def look(self, request: Request, target: Target) -> Looked:
        """What there is to see for this caller. Raises `ServiceError`."""
        return self._look(target, self._may_read(request))

    def live(self, request: Request, target: Target) -> bytes:
        """The same rendered and packed, a moment old at most; a failure is kept as long.

        What moves a policy is written to the audit: then it is made anew at once.
        """
        key = target, self._may_read(request)
        with self._lock:
            head = self._head
            made_seconds, made_head, made, problem = self._made.get(key, NEVER)
            if head != made_head or time.monotonic() - made_seconds > LOOK_SECONDS:
                try:
                    made, problem = gzip.compress(render_live(self._look(*key)).encode(), 1), ""
                except ServiceError as error:
                    made, problem = b"", str(error)
                self._made[key] = (time.monotonic(), head, made, problem)
        if problem:
            raise ServiceError(problem)
        return made

    @property
    def _head(self) -> str:
        desk = self._sidecar.desk
        return desk.keeper.audit.chain.head if desk else ""

    @property
    def kill_file(self) -> str | None:
        """What switches policies off without the API; None where nobody can, or there are none."""
        desk = self._sidecar.desk
        return str(desk.folder / KILL_FILE) if desk and self._access.takes_changes else None

    def _may_read(self, request: Request) -> bool:
        """Whether evidence and audit are for this caller, as `/v1/policies` decides it."""
        try:
            self._access.check(request.headers.get("authorization"))
        except HTTPException:
            return False
        return True

    def _look(self, target: Target, may_read: bool) -> Looked:
        seen = self._sidecar.ask(lambda: facts(self._sidecar, *self._read(), target))
        entries, problem = self._audit() if may_read else ([], "")
        return Looked(
            facts=seen,
            audit=entries,
            audit_problem=problem,
            may_read=may_read,
            takes_changes=self._access.takes_changes,
            wall_seconds=time.time(),
        )

    def _audit(self) -> tuple[list[AuditEntry], str]:
        desk, head = self._sidecar.desk, self._head
        if desk is None:
            return [], ""
        if head != self._tail[0]:
            try:
                self._tail = head, tail(desk.folder, SHOWN_ENTRIES)
            except OSError as error:
                return [], f"The audit cannot be read: {error.strerror}."
        return self._tail[1], ""
