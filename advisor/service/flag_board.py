"""What the flags of policies rest on at this moment, with a revision that rises with each change.

A view is made in the ingest thread, where states are; but while the kill switch is held nothing is
asked of it, so that a kill works whatever else hangs or is broken. Revision and look at the switch
are one step: an answer from before a kill is always of a lower revision than one from after it.
"""

from __future__ import annotations

import asyncio
import threading
import uuid

import msgspec

from kvready.advisor.flags import Assignment
from kvready.advisor.policies import ORDER, Overlay, Policy, PolicyState, Scope
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.verdicts import GateReport

LEASE_SECONDS = 2.0
ANSWER_SECONDS = 0.75  # less than a hook waits


class FlagView(msgspec.Struct, frozen=True):
    """All that every flag follows from."""

    states: tuple[PolicyState, ...] = ()
    killed_by: tuple[str, ...] = ()
    assigned: dict[tuple[Policy, Scope], Assignment] = {}
    reports: dict[str, GateReport] = {}  # those on which policies act
    outside: dict[Policy, tuple[str, ...]] = {}  # cells whose predictions are persistently bad

    def assignment(self, state: PolicyState) -> Assignment | None:
        """Whom a state treats, where that is known."""
        return self.assigned.get((state.policy, state.scope))


class FlagBoard:
    """One per sidecar and life of it, which `boot_id` names."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.boot_id = uuid.uuid4().hex
        self._sidecar = sidecar
        self._lock = threading.Lock()
        self._revision = 0
        self._told: object = None  # what the revision stands for

    async def look(self) -> tuple[FlagView, int]:
        """The view of now and its revision. Raises `ServiceError`, or TimeoutError when busy."""
        told = self._killed()
        if told is not None:
            return told
        future = self._sidecar.submit(self._seen)
        return await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_SECONDS)

    def _seen(self) -> tuple[FlagView, int]:
        """In the ingest thread."""
        pipeline = self._sidecar.pipeline
        control, canaries = pipeline.control, pipeline.canaries
        window = canaries.tracker.window
        # Where nothing can be commanded, nothing acts: a recording's policies are history.
        acting = [s for s in control.states if _acts(s)] if self._sidecar.desk else []
        assigned = {}
        for state in acting:
            drawn = canaries.arms.assigned(state, window)
            if drawn is not None:
                assigned[state.policy, state.scope] = drawn
        found = (control.reports.by_id(state.report_id) for state in acting)
        reports = {report.report_id: report for report in found if report is not None}
        outside = {policy: pipeline.gates.outside(policy) for policy in ORDER}
        view = FlagView(tuple(control.states), control.killed_by, assigned, reports, outside)
        with self._lock:  # the look and the number are one step
            held_by = self._held_by()
            return self._numbered(
                msgspec.structs.replace(view, killed_by=held_by or view.killed_by)
            )

    def _killed(self) -> tuple[FlagView, int] | None:
        """The answer of a held kill switch; None where nothing holds it."""
        with self._lock:
            held_by = self._held_by()
            return self._numbered(FlagView(killed_by=held_by)) if held_by else None

    def _held_by(self) -> tuple[str, ...]:
        desk = self._sidecar.desk
        return tuple(map(str, desk.kill_switch.held_by)) if desk else ()

    def _numbered(self, view: FlagView) -> tuple[FlagView, int]:
        if view.killed_by:
            said: object = view.killed_by
        else:
            said = ([_told(s) for s in view.states], view.assigned, view.outside)
        if said != self._told:
            self._told = said
            self._revision += 1
        return view, self._revision


def _acts(state: PolicyState) -> bool:
    return state.mode.acts and state.overlay is Overlay.NONE


def _told(state: PolicyState) -> tuple[object, ...]:
    """What of a state a flag follows from, or tells."""
    return (state.policy, state.scope, state.mode, state.overlay, state.revision, state.report_id)
