"""Policies over HTTP: where they stand for whoever may ask, commands for whoever has the token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from kvready.advisor.modes import NEEDS, Need, Refusal
from kvready.advisor.policies import Mode, Policy
from kvready.advisor.service import problems
from kvready.advisor.service.access import Access, Role
from kvready.advisor.service.audit import tail
from kvready.advisor.service.bodies import JSON, KIB, read_json
from kvready.advisor.service.change_headers import idempotency_key, revision_of, tag_of
from kvready.advisor.service.description import add_schemas, content
from kvready.advisor.service.policy_changes import KeyReused, PolicyChanges, changed, digest_of
from kvready.advisor.service.policy_desk import PolicyDesk
from kvready.advisor.service.policy_models import (
    ActionChange,
    AuditEntries,
    Change,
    Changed,
    GateReports,
    KillState,
    Lack,
    ModeChange,
    Policies,
    RefusedProblem,
    Said,
    policy_of,
)
from kvready.advisor.service.policy_view import control_status
from kvready.advisor.service.rate import RateLimit
from kvready.advisor.service.sidecar import Sidecar
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.records import PolicyCommanded

MAX_BODY_BYTES = 16 * KIB
BODY_SECONDS = 5.0
ANSWER_SECONDS = 5.0
MAX_ENTRIES = 1_000
MAX_REPORTS = 100
PER_SECOND, BURST = 2.0, 30  # commands of one address

T = TypeVar("T")
M = TypeVar("M", bound=Said)
Limit = Annotated[int, Query(ge=1, le=MAX_ENTRIES)]
ReportLimit = Annotated[int, Query(ge=1, le=MAX_REPORTS)]

# What an operator may do: nothing of it lets a policy act that did not.
OPERATORS = frozenset({PolicyAction.PAUSE, PolicyAction.TRY})
SUMMARIES = {
    "/policies/{policy}": "Set a policy's mode",
    "/policies/{policy}/{action}": "Pause, resume, clear, try or adopt",
    "/kill": "Switch every policy off, now",
    "/revive": "Let go of the kill switch",
}


def install(app: FastAPI, sidecar: Sidecar, access: Access) -> None:
    """Add the routes."""
    router = APIRouter(prefix="/v1", tags=["policies"])
    _add_reads(router, sidecar, access)
    _Commands(sidecar, access).add_to(router)
    app.include_router(router)
    models = (ModeChange, ActionChange, Said)
    template = "#/components/schemas/{model}"
    add_schemas(app, {m.__name__: m.model_json_schema(ref_template=template) for m in models})


def _add_reads(router: APIRouter, sidecar: Sidecar, access: Access) -> None:
    changes = PolicyChanges(sidecar)

    def may_ask(request: Request) -> None:
        access.check(request.headers.get("authorization"))

    @router.get("/policies", summary="Where policies stand, on what, and what they lack to go on",
                responses=problems.READS)  # fmt: skip
    def policies(request: Request) -> Policies:
        may_ask(request)
        control = sidecar.pipeline.control
        return sidecar.ask(
            lambda: Policies(
                policies=changes.details(), control=control_status(control, sidecar.desk)
            )
        )

    @router.get("/audit", summary="What happened to policies, newest first",
                responses=problems.READS)  # fmt: skip
    def audit(request: Request, policy: Policy | None = None, limit: Limit = 100) -> AuditEntries:
        may_ask(request)
        if sidecar.desk is None:
            return AuditEntries(head="", entries=[])
        head = sidecar.desk.keeper.audit.chain.head
        try:
            found = tail(sidecar.desk.folder, MAX_ENTRIES if policy else limit)
        except OSError as error:
            raise HTTPException(503, f"the audit cannot be read: {error.strerror}") from None
        found = [one for one in found if policy is None or one.policy == policy][-limit:]
        return AuditEntries(head=head, entries=[msgspec.to_builtins(e) for e in reversed(found)])

    @router.get("/gates", summary="Gate reports, newest first", responses=problems.READS)
    def gates(request: Request, policy: Policy, limit: ReportLimit = 10) -> GateReports:
        may_ask(request)
        desk = sidecar.desk
        found = sidecar.ask(lambda: desk.keeper.reports(policy, limit)) if desk else []
        return GateReports(reports=[msgspec.to_builtins(report) for report in found])


class _Commands:
    """Routes that change something."""

    def __init__(self, sidecar: Sidecar, access: Access) -> None:
        self._sidecar = sidecar
        self._access = access
        self._changes = PolicyChanges(sidecar)
        self._rate = RateLimit(PER_SECOND, BURST)

    def add_to(self, router: APIRouter) -> None:
        """Add them."""

        self._add(router.put, "/policies/{policy}", self.set_mode, ModeChange, Changed)
        self._add(router.post, "/policies/{policy}/{action}", self.act, ActionChange, Changed)
        self._add(router.post, "/kill", self.kill, Said, KillState)
        self._add(router.post, "/revive", self.revive, Said, KillState)

    def _add(
        self,
        method: Callable[..., Any],
        path: str,
        handler: Callable[..., Any],
        asked: type[Said],
        answered: type[Changed | KillState],
    ) -> None:
        method(
            path,
            summary=SUMMARIES[path],
            response_model=answered,
            responses=problems.CHANGES,
            openapi_extra={"requestBody": {"required": True, **content(JSON, asked.__name__)}},
        )(handler)

    async def set_mode(self, policy: str, request: Request) -> Response:
        """A mode, up to advise for an operator."""
        role = self._role(request)
        revision = revision_of(request, is_wanted=True)
        key = idempotency_key(request, is_wanted=True)
        raw, asked = await self._body(request, ModeChange)
        if asked.mode.acts or asked.forced:
            self._is_at_least(request, Role.ADMIN)
        said = _command(_known(policy), PolicyAction.SET, asked, role, revision, asked.mode)
        return await self._done(request, raw, key, said, asked.dry_run)

    async def act(self, policy: str, action: str, request: Request) -> Response:
        """Something else that a person may want of one policy."""
        role = self._role(request)
        known = _known(policy)
        wanted = next((a for a in PolicyAction if a == action and a is not PolicyAction.SET), None)
        if wanted is None:
            raise HTTPException(404, "a policy can be paused, resumed, cleared, tried and adopted")
        self._is_at_least(request, Role.OPERATOR if wanted in OPERATORS else Role.ADMIN)
        revision = revision_of(request, is_wanted=False)
        key = idempotency_key(request, is_wanted=wanted is not PolicyAction.PAUSE)
        raw, asked = await self._body(request, ActionChange)
        if asked.forced:
            self._is_at_least(request, Role.ADMIN)
        said = _command(known, wanted, asked, role, revision, None, asked.version)
        return await self._done(request, raw, key, said, asked.dry_run)

    async def kill(self, request: Request) -> Response:
        """At once, and not through the ingest thread: it works whatever else hangs."""
        role = self._role(request)
        desk = self._commanded_desk()
        _, asked = await self._body(request, Said)
        held_by = await asyncio.to_thread(desk.kill, _actor(role, asked), asked.reason)
        says = "every policy is off; hooks hear of it within a lease"
        return _answer(KillState(held_by=[str(h) for h in held_by], says=says).model_dump_json())

    async def revive(self, request: Request) -> Response:
        """Once for each key: a call that is sent again does not undo a later kill."""
        role = self._role(request)
        self._is_at_least(request, Role.ADMIN)
        key = idempotency_key(request, is_wanted=True)
        desk = self._commanded_desk()
        raw, asked = await self._body(request, Said)
        digest = digest_of(b"POST", b"revive", raw)

        def revived() -> Response:
            before = self._changes.kept(key, digest)
            if before is not None:
                return _replayed(before)
            held_by = self._changes.revive(desk, _actor(role, asked), asked.reason)
            files = ", ".join(map(str, desk.kill_switch.holding_files()))
            says = f"still held by {', '.join(held_by)} {files}".rstrip()
            if not held_by:
                says = (
                    "nothing holds it; what acted is in advise, and starts by nothing but a person"
                )
            document = KillState(held_by=held_by, says=says).model_dump_json()
            self._changes.keep(key, digest, msgspec.json.encode(("", document)))
            return _answer(document)

        return await self._asked(revived)

    async def _done(
        self, request: Request, raw: bytes, key: str, said: PolicyCommanded, dry_run: bool
    ) -> Response:
        match = request.headers.get("if-match", "")
        digest = digest_of(request.method.encode(), request.url.path.encode(), match.encode(), raw)

        def answered() -> Response:
            before = self._changes.kept(key, digest)
            if before is not None:
                return _replayed(before)
            outcome = self._changes.command(said, dry_run)
            if isinstance(outcome, Refusal):
                return _refused(outcome)
            now_seconds = self._sidecar.pipeline.control.now_seconds
            tag = tag_of(outcome.after.revision)
            document = changed(outcome, now_seconds, dry_run).model_dump_json()
            if not dry_run:
                self._changes.keep(key, digest, msgspec.json.encode((tag, document)))
            return _answer(document, tag)

        self._commanded_desk()
        return await self._asked(answered)

    async def _asked(self, question: Callable[[], T]) -> T:
        future = self._sidecar.submit(question)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_SECONDS)
        except TimeoutError:
            raise HTTPException(
                504,
                "the sidecar is too busy to answer in time, and may still do it; ask again with "
                "the same Idempotency-Key to learn what became of it",
            ) from None
        except KeyReused:
            raise HTTPException(
                422, "this Idempotency-Key was used for another command; make a new one"
            ) from None

    async def _body(self, request: Request, model: type[M]) -> tuple[bytes, M]:
        raw = await read_json(request, MAX_BODY_BYTES, BODY_SECONDS)
        try:
            return raw, model.model_validate_json(raw)
        except ValidationError as error:
            details = (
                f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()
            )
            raise HTTPException(422, "; ".join(details)) from None

    def _role(self, request: Request) -> Role:
        self._rate.check(request)
        return self._access.check_change(request.headers.get("authorization"), Role.OPERATOR)

    def _is_at_least(self, request: Request, least: Role) -> None:
        self._access.check_change(request.headers.get("authorization"), least)

    def _commanded_desk(self) -> PolicyDesk:
        if self._sidecar.desk is None:
            raise HTTPException(409, "nothing can be commanded here: no engine is attached")
        return self._sidecar.desk


def _known(policy: str) -> Policy:
    known = policy_of(policy)
    if known is None:
        raise HTTPException(404, f"no such policy; there are {', '.join(Policy)}")
    return known


def _command(
    policy: Policy,
    action: PolicyAction,
    asked: Change,
    role: Role,
    revision: int | None,
    mode: Mode | None,
    version: str = "",
) -> PolicyCommanded:
    return PolicyCommanded(
        action=action,
        policy=policy.value,
        actor=_actor(role, asked),
        reason=asked.reason,
        mode=mode.value if mode else "",
        version=version,
        engine=asked.engine,
        pool=asked.pool,
        request_class=asked.request_class,
        forced=asked.forced,
        revision=revision,
    )


def _actor(role: Role, asked: Said) -> str:
    """The token proves the role; the name is the caller's word."""
    return f"{role}/{asked.actor}" if asked.actor else role.value


def _refused(refusal: Refusal) -> Response:
    status = 412 if Need.REVISION in refusal.lacks else 409
    document = RefusedProblem(
        type=problems.TYPE_PREFIX + "refused",
        title="Precondition Failed" if status == 412 else "Conflict",
        status=status,
        detail=refusal.says,
        lacks=[Lack(need=need, says=NEEDS[need]) for need in refusal.lacks],
    )
    headers = {"ETag": tag_of(refusal.state.revision)} if refusal.state else None
    return Response(document.model_dump_json(), status, headers, problems.MEDIA_TYPE)


def _answer(document: str, tag: str = "") -> Response:
    return Response(document, 200, {"ETag": tag} if tag else None, JSON)


def _replayed(kept: bytes) -> Response:
    tag, document = msgspec.json.decode(kept, type=tuple[str, str])
    answer = _answer(document, tag)
    answer.headers["Idempotent-Replayed"] = "true"
    return answer
