"""What the page shows, read between two records so that all of it is of one moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvready.advisor.gate_signals import Signals
from kvready.advisor.ledger import Pair, Target
from kvready.advisor.minute_sums import WindowSum
from kvready.advisor.report import Report
from kvready.advisor.service.gate_view import LONG_MINUTES
from kvready.advisor.service.models import Status
from kvready.advisor.service.policy_changes import PolicyChanges
from kvready.advisor.service.policy_models import PolicyDetail
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.verdicts import GateReport

NEWEST_PAIRS = 80  # of the target that is looked at, each shown
HISTORY_PAIRS = 2_000  # of it; as many of them are shown, evenly chosen, as a picture holds
HISTORY_SHOWN = 120


class PageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One moment. Lists are not changed once they are here."""

    status: Status
    report: Report
    target: Target  # whose predictions are looked at
    pairs: list[Pair]  # of it, newest first, with an outcome
    history: list[Pair]  # the same further back, each so many-th
    overdue: int  # of it: past their bound, without one
    hours: Mapping[Target, WindowSum]
    objective: float  # the share of forecasts that must be good
    now_seconds: float  # event time
    policies: list[PolicyDetail]
    gates: list[GateReport | None]  # in the same order: of the version in force
    takes_commands: bool


def facts(sidecar: Sidecar, status: Status, report: Report, target: Target) -> PageFacts:
    """In the ingest thread."""
    pipeline = sidecar.pipeline
    control, signals = pipeline.control, pipeline.gates.signals
    ledger = pipeline.ledger
    recent = ledger.recent(target, HISTORY_PAIRS)
    pairs = [pair for pair in recent if pair.actual_seconds is not None]
    return PageFacts(
        status=status,
        report=report,
        target=target,
        pairs=pairs[:NEWEST_PAIRS],
        history=pairs[:: -(-len(pairs) // HISTORY_SHOWN) or 1],
        overdue=sum(forecast.target is target for forecast in ledger.missed_and_open()),
        hours=_hours(signals),
        objective=signals.objective,
        now_seconds=control.now_seconds,
        policies=PolicyChanges(sidecar).details(),
        gates=[control.reports.of(state, state.version) for state in control.states],
        takes_commands=sidecar.desk is not None,
    )


def _hours(signals: Signals) -> dict[Target, WindowSum]:
    now = signals.now_seconds
    return {target: sums.window(LONG_MINUTES, now) for target, sums in signals.sums.items()}
