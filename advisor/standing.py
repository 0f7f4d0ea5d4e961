"""What a move lacks, given the gate reports at hand and where the other policies stand. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from kvready.advisor.modes import (
    CLEAN_WINDOWS,
    FINDING_DAYS,
    MAX_STATES,
    REPORT_SECONDS,
    SETTLED_WINDOWS,
    Kind,
    Need,
    Row,
)
from kvready.advisor.policies import ORDER, Hazard, Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.scopes import effective
from kvready.advisor.verdicts import Gate, GateReport, Verdict

MAX_REPORTS = 2 * MAX_STATES  # the latest of the version in force, and of the next


class Ask(msgspec.Struct, frozen=True):
    """Who wants a move, and with how much weight."""

    kind: Kind
    reason: str = ""
    forced: bool = False
    revision: int | None = None


class Facts(msgspec.Struct, frozen=True):
    """What a move is judged by, beside the state itself."""

    now_seconds: float
    moved_ingest: int  # of the state's last move
    states: Collection[PolicyState]
    reports: Reports
    is_killed: bool
    is_failing: bool


class Reports:
    """The latest gate report of each policy, scope and version."""

    def __init__(self) -> None:
        self._latest: dict[tuple[Policy, Scope, str], GateReport] = {}

    def keep(self, report: GateReport) -> None:
        """Take a report; the oldest goes where there are too many."""
        key = (report.policy, report.scope, report.policy_version)
        self._latest.pop(key, None)
        self._latest[key] = report
        while len(self._latest) > MAX_REPORTS:
            del self._latest[next(iter(self._latest))]

    def of(self, state: PolicyState, version: str) -> GateReport | None:
        """The latest of one version in a state's scope."""
        return self._latest.get((state.policy, state.scope, version))

    def by_id(self, report_id: str) -> GateReport | None:
        """One of the latest by its id."""
        return next((one for one in self._latest.values() if one.report_id == report_id), None)

    def forget(self) -> None:
        """None of them speaks of what runs now."""
        self._latest.clear()


def unmet(row: Row, state: PolicyState, ask: Ask, facts: Facts) -> tuple[Need, ...]:
    """What a move lacks. A force with a reason stands in for what is forcible."""
    needs = row.always if ask.forced and ask.reason.strip() else row.forcible + row.always
    lacks = [need for need in needs if not _is_met(need, state, ask, facts)]
    if ask.revision is not None and ask.revision != state.revision:
        lacks.append(Need.REVISION)
    return tuple(lacks)


def current_report(state: PolicyState, version: str, facts: Facts) -> GateReport | None:
    """The report that speaks of a version as it stands now, if there is one."""
    report = facts.reports.of(state, version)
    if report is None or report.mode is not state.mode:
        return None
    if report.made_ingest <= facts.moved_ingest:
        return None
    age_seconds = facts.now_seconds - report.made_seconds
    return report if age_seconds <= REPORT_SECONDS else None


def is_data_current(report: GateReport | None) -> bool:
    """Whether a report saw enough to judge by, and nothing that failed."""
    if report is None or report.verdict in (Verdict.FAIL, Verdict.ERROR):
        return False
    data = [check.verdict for check in report.checks if check.gate is Gate.DATA]
    return bool(data) and all(verdict is Verdict.PASS for verdict in data)


def is_settled(state: PolicyState | None, now_seconds: float) -> bool:
    """Whether the next policy need not wait for this one."""
    if state is None:
        return False
    if state.finding and now_seconds - state.finding_seconds <= FINDING_DAYS * 86_400:
        return True
    return (
        state.mode is Mode.ENFORCE
        and state.overlay is Overlay.NONE
        and state.clean_windows >= SETTLED_WINDOWS
    )


def _is_met(need: Need, state: PolicyState, ask: Ask, facts: Facts) -> bool:
    match need:
        case Need.REASON:
            return ask.kind is Kind.AUTO or bool(ask.reason.strip())
        case Need.GATE:
            report = current_report(state, state.version, facts)
            return report is not None and report.verdict is Verdict.PASS
        case Need.NEXT_GATE:
            report = current_report(state, state.next_version, facts)
            return report is not None and report.verdict is Verdict.PASS
        case Need.DATA:
            return is_data_current(current_report(state, state.version, facts))
        case Need.ORDER:
            return all(
                is_settled(effective(facts.states, earlier, state.scope), facts.now_seconds)
                for earlier in _before(state.policy)
            )
        case Need.COOLED:
            return facts.now_seconds >= state.cooldown_until_seconds
        case Need.CLEAN:
            bad = state.held_by == Hazard.BAD_PREDICTIONS
            return not bad or state.clean_windows >= CLEAN_WINDOWS
        case Need.ALIVE:
            return not facts.is_killed
        case Need.KEPT:
            return not facts.is_failing
        case _:
            return True


def _before(policy: Policy) -> Iterable[Policy]:
    return ORDER[: ORDER.index(policy)]
