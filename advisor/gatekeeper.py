"""Asks every gate each minute and tells the control plane; passes hazards on at once.

Pure and single-threaded, fed by the pipeline with every record. Evaluations follow ticks, so that
a replay makes the same reports, byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvready.advisor.canary_watch import CanaryWatch
from kvready.advisor.cell_evidence import Cell
from kvready.advisor.demotion import Burn, burn_checks
from kvready.advisor.forecast_writer import Moment
from kvready.advisor.gate_evidence import (
    TARGETS,
    CellEvidence,
    EngineEvidence,
    GateEvidence,
    SlowdownEvidence,
    TapEvidence,
)
from kvready.advisor.gate_signals import Signals
from kvready.advisor.gate_sources import (
    basis,
    engine_evidence,
    saving_evidence,
    slowdown_evidence,
    tap_evidence,
)
from kvready.advisor.gates import Row, Subject, report_of
from kvready.advisor.hazard_watch import Danger, HazardWatch
from kvready.advisor.ledger import Pair, Target
from kvready.advisor.outside import OBSERVER, SCHEDULER_STREAM
from kvready.advisor.policies import Hazard, Mode, Policy, PolicyState, Scope
from kvready.advisor.verdicts import Gate, GateReport, Verdict
from kvready.advisor.window_tracker import Key
from kvready.advisor.windows import MIN_REQUESTS, WindowSummary
from kvready.advisor.would_be import WouldBe, would_be
from kvready.collectors.records import (
    BatchFinished,
    BatchPlanned,
    EngineDescribed,
    Ingested,
    LoadChecked,
    TapStatus,
    Tick,
)

if TYPE_CHECKING:
    from kvready.advisor.control import ControlPlane
    from kvready.advisor.pipeline import Pipeline
    from kvready.collectors.records import AnyRecord

OWN = frozenset({Tick, TapStatus})  # what taps tell of themselves, and the recorder of time
HEARD = OWN | {EngineDescribed, LoadChecked, BatchPlanned, BatchFinished}
# After these a window says nothing of the policy.
UNCLEAN = (Hazard.STALL, Hazard.TELEMETRY_LOST, Hazard.MISMATCH)


class View(NamedTuple):
    """What all policies are judged by at one moment."""

    cells: dict[Cell, CellEvidence]
    bad: frozenset[Cell]
    bad_names: tuple[str, ...]
    taps: TapEvidence
    engine: EngineEvidence
    slowdown: SlowdownEvidence | None
    told: WouldBe
    burns: list[Burn]


class Gatekeeper:
    """One per pipeline."""

    def __init__(self, canaries: CanaryWatch) -> None:
        """`canaries`: windows with and without each policy, and their judges."""
        self._canaries = canaries
        self.signals = Signals()
        self.watch = HazardWatch()
        self.latest: dict[tuple[Policy, Scope, str], GateReport] = {}
        self.evaluations = 0
        self._rows: dict[tuple[Policy, Scope, str], tuple[Mode, Row]] = {}
        self._acts = False

    def before(self, item: Ingested) -> None:
        """A record is about to be taken."""
        self.signals.before(item.record, item.received_seconds)

    def settle(self, pair: Pair) -> None:
        """A forecast has its outcome, or will have none."""
        self.signals.settle(pair, not self._acts)

    def after(self, item: Ingested, pipeline: Pipeline) -> None:
        """A record was taken."""
        record = item.record
        if type(record) in HEARD:
            self._hear(record, pipeline, (item.ingest, item.received_seconds))
        if type(record) not in OWN:
            self.signals.deliveries.take(item.tap)

    def _hear(self, record: AnyRecord, pipeline: Pipeline, moment: Moment) -> None:
        signals, watch = self.signals, self.watch
        match record:
            case Tick():
                self._tick(pipeline, moment)
            case TapStatus():
                signals.deliveries.status(record, record.tap.startswith(OBSERVER))
                dangers = watch.news(record, SCHEDULER_STREAM in record.tap)
                self._face(dangers, pipeline, moment)
            case EngineDescribed():
                self._face(watch.described(record), pipeline, moment)
            case LoadChecked():
                signals.compared(record.mismatched)
                self._face(watch.checked(record), pipeline, moment)
            case BatchPlanned():
                watch.batch(record.rank, signals.now_seconds)
            case BatchFinished():
                watch.batch(record.rank, signals.now_seconds)
                signals.batch(record.rank, record.duration_seconds)

    def evaluate(self, pipeline: Pipeline, moment: Moment) -> list[GateReport]:
        """A report of each policy, scope and version, told to the control plane."""
        self.evaluations += 1
        view = self._view(pipeline)
        # All are judged by where policies stood before any of these reports moved one.
        judged = [
            (state, version, self._evidence(state, version, view, pipeline))
            for state in pipeline.control.underlying
            for version in filter(None, (state.version, state.next_version))
        ]
        found = [self._report(*one, pipeline, moment) for one in judged]
        keys = {(one.policy, one.scope, one.policy_version): one for one in found}
        self.latest = keys
        self._rows = {key: row for key, row in self._rows.items() if key in keys}
        for report in found:
            pipeline.control.judge(report, moment)
        return found

    def window(
        self, key: Key, window: WindowSummary, control: ControlPlane, moment: Moment
    ) -> None:
        """A window of a policy is told: clean ones forgive bad predictions, and settle.

        One in which next to nothing was served shows nothing, so that an idle night settles nobody.
        """
        is_clean = window.is_clean and not self._went_wrong(key)
        if not is_clean or window.requests >= MIN_REQUESTS:
            control.window(is_clean, moment, *key)

    def outside(self, policy: Policy) -> tuple[str, ...]:
        """Cells that a policy decides by and must leave alone now: their predictions stay bad."""
        listed = self.signals.bad_cells.listed
        return tuple(one.name for one in listed if one.target in TARGETS[policy])

    def _went_wrong(self, key: Key) -> bool:
        """Whether harm is proved by now, or its latest report found its predictions bad."""
        if self._canaries.judge(key).harmed:
            return True
        return any(
            check.gate is Gate.ACCURACY and check.verdict is Verdict.FAIL
            for told, report in self.latest.items()
            if told[:2] == key and report.policy_version == told[2]
            for check in report.checks
        )

    def _tick(self, pipeline: Pipeline, moment: Moment) -> None:
        states = pipeline.control.underlying
        acting = {state.policy for state in states if state.mode.acts}
        self._acts = bool(acting)
        if Policy.DEDUP in acting:
            self.signals.shared.helped()
        self._face(self.watch.tick(pipeline, self.signals.now_seconds), pipeline, moment)
        if self.signals.tick(pipeline, self.watch.is_stalled):
            self.evaluate(pipeline, moment)

    def _face(self, dangers: list[Danger], pipeline: Pipeline, moment: Moment) -> None:
        for danger in dangers:
            if danger.hazard is Hazard.ENGINE_UPGRADED:
                self.signals.forget(pipeline.totals)
            if danger.hazard in (Hazard.ENGINE_UPGRADED, Hazard.ENGINE_RESTARTED):
                self.signals.scores.forget()  # so that a pause lasts until there are enough again
                self._rows.clear()
            if danger.hazard in UNCLEAN:
                self._canaries.tracker.disturbed(danger.hazard)
            pipeline.control.hazard(danger.hazard, moment, danger.policy, note=danger.note)

    def _view(self, pipeline: Pipeline) -> View:
        signals = self.signals
        pending = pipeline.ledger.missed_and_open()
        return View(
            cells=signals.scores.evidence(signals.now_seconds, pending),
            bad=signals.bad_cells.cells,
            bad_names=tuple(one.name for one in signals.bad_cells.listed),
            taps=tap_evidence(pipeline, signals.deliveries),
            engine=engine_evidence(pipeline, self.watch.is_stalled),
            slowdown=slowdown_evidence(pipeline),
            told=would_be(pipeline),
            burns=signals.burns(pipeline),
        )

    def _evidence(
        self, state: PolicyState, version: str, view: View, pipeline: Pipeline
    ) -> GateEvidence:
        policy, key = state.policy, (state.policy, state.scope)
        is_in_force = version == state.version  # the one beside it only shadows
        judge = self._canaries.judge(key)
        targets = TARGETS[policy]
        own = [(cell, one) for cell, one in view.cells.items() if cell[0] in targets]
        return GateEvidence(
            policy=policy,
            mode=state.mode if is_in_force else Mode.SHADOW,
            cells=tuple(one for cell, one in own if cell not in view.bad),
            bad_cells=view.bad_names,
            left_out={
                target: sum(one.scored for cell, one in own if cell in view.bad)
                for target in targets
            },
            taps=view.taps,
            engine=view.engine,
            saving=saving_evidence(pipeline, view.told, policy),
            constraint=self.signals.constraints.evidence(policy),
            slowdown=view.slowdown,
            copies=self.signals.copies_since(state.since_seconds),
            burn=burn_checks(view.burns, (*targets, Target.TTFT)),
            harm=judge.harm_checks() if is_in_force else (),
            benefit=(judge.benefit_check(),) if is_in_force else (),
        )

    def _report(
        self,
        state: PolicyState,
        version: str,
        evidence: GateEvidence,
        pipeline: Pipeline,
        moment: Moment,
    ) -> GateReport:
        key = state.policy, state.scope, version
        mode, row = self._rows.get(key, (state.mode, Row()))
        if mode is not state.mode:
            row = Row()  # another mode asks other things
        self._rows[key] = state.mode, row
        subject = Subject(state.policy, state.scope, state.mode, version, *moment)
        versions = self.signals.scores.versions((*TARGETS[state.policy], Target.TTFT))
        return report_of(evidence, row, subject, basis(pipeline, versions, state.scope))
