"""A day of one policy, in simulated time: dedup goes from shadow to enforce, does harm, and falls.

A simulated engine serves documents that several users ask at once: LooGLE's lengths, four questions
each on average (as many as L-Eval has of its documents), back to back as in Strata's experiment on
cache distance. The sidecar's own parts watch it, judge it and keep what they decide, as
`kvready serve` does: recorder, pipeline, gates, audit, store. A person promotes dedup whenever its
gate passes, and never forces. In the afternoon, with half the load and dedup settled, who is first
to bring a document becomes slow: who is held for it waits as long, others compute by themselves.

    python examples/policies/day.py --out build/day
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvready.advisor.audit_chain import AuditEntry, Chain
from kvready.advisor.control import Control
from kvready.advisor.evidence_bundle import Verified, make_bundle, verify_bundle
from kvready.advisor.flags import Assignment, Flag, Subject, evaluate
from kvready.advisor.ledger import Target
from kvready.advisor.modes import SETTLED_WINDOWS, Transition
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.policies import MODES, Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.service.audit import tail, verify
from kvready.advisor.service.policy_desk import PolicyDesk
from kvready.advisor.settings import Settings
from kvready.advisor.shape_cells import inflight_cell, told_cell
from kvready.advisor.verdicts import GateReport, Verdict
from kvready.advisor.version import VERSION
from kvready.advisor.whatif.sim_engine.clock import Clock
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.faults import Fault, FaultName, Faults
from kvready.advisor.whatif.sim_engine.machine import SimMachine, vllm_like
from kvready.advisor.whatif.sim_engine.recorded import (
    ORIGIN_SECONDS,
    ORIGIN_WALL_SECONDS,
    RecordedSink,
)
from kvready.advisor.whatif.sim_engine.workloads import drawn
from kvready.advisor.whatif.workload import Workload
from kvready.advisor.window_tracker import Key
from kvready.advisor.windows import WindowSummary
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.names import SIMULATED_ENGINE, CopyMethod
from kvready.collectors.recorder import Recorder
from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter
from kvready.collectors.records import AnyRecord, PolicyCommanded

WORKLOAD = "loogle:min_distance:4"
MODEL, MACHINE, HBM_GIB, HOST_GIB, PAGE_TOKENS = "llama-3.1-8b", "h200", 16.0, 32.0, 32
RATE = 2.6  # requests a second: without dedup batches run nearly all the time
MORNING_SECONDS = 2_400.0  # from then on half as much is asked
MOST_SECONDS = 6_000.0  # then the day is over, wherever it stands
CONTROL_PERCENT = 20  # left alone once it is enforced: harm is told sooner than with 5
LOOK_SECONDS = 1.0  # between two looks of the person
AFTER_SECONDS = 60.0  # of serving after the roll-back
EVERYWHERE = Scope()
SUBJECT = Scope(engine=SIMULATED_ENGINE)
PERSON = "on-call"
MAX_ENTRIES = 1_000  # of the audit, that are looked at


class Obeys:
    """The engine's switches, as the flags say at this moment; OFF where they do not."""

    copy_method = CopyMethod.DMA_PER_PAGE
    balance = False

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._asked: tuple[PolicyState, int | None] | None = None
        self._assigned: Assignment | None = None

    @property
    def dedup(self) -> bool:
        """Whether anybody may be held."""
        flag = self._flag(None)
        return flag.is_on or flag.split is not None

    def may_hold(self, prefix_group: int | None, awaited_tokens: int) -> bool:
        """Whether those whose prompts begin with this block may be held for so many tokens."""
        cell = told_cell(Target.INFLIGHT_READY, inflight_cell("batch", awaited_tokens))
        if cell in self._pipeline.gates.outside(Policy.DEDUP):
            return False
        return self._flag(prefix_group).is_on

    def _flag(self, prefix_group: int | None) -> Flag:
        control = self._pipeline.control
        subject = Subject(SUBJECT, prefix_group)
        states, killed_by = control.underlying, control.killed_by
        return evaluate(Policy.DEDUP, states, killed_by, subject, self._assignment)

    def _assignment(self, state: PolicyState) -> Assignment | None:
        """Looked up once a window: it is settled as that begins."""
        canaries = self._pipeline.canaries
        asked = state, canaries.tracker.window
        if asked != self._asked:
            self._asked, self._assigned = asked, canaries.arms.assigned(*asked)
        return self._assigned


class Told(msgspec.Struct, frozen=True):
    """A line of the story. Seconds of the day."""

    seconds: float
    says: str


class Day:
    """The sidecar's parts, the engine they watch, and the person who promotes."""

    def __init__(self, out: Path, seed: int = 1, rate: float = RATE) -> None:
        self.out = out
        self.recording = out / "day.kvr"
        self.told: list[Told] = []
        self.moves: list[Transition] = []
        self.reports: list[GateReport] = []
        self.windows: list[WindowSummary] = []
        self.harm_began_seconds: float | None = None
        self.faults = Faults()
        policies = {"policy_folder": out / "policies", "control_percent": CONTROL_PERCENT}
        settings = Settings(policies=policies)  # type: ignore[arg-type]
        self.desk = PolicyDesk(settings, seed=f"day {seed}")
        self.pipeline = Pipeline(on_transition=self._moved, on_report=self._reported)
        self.desk.keeper.engine_version = lambda: getattr(
            self.pipeline.engine, "engine_version", ""
        )
        asked = asked_of(rate, seed)
        self.engine = SimEngine(engine(), asked, self.faults, Obeys(self.pipeline), seed)
        self.conditions = {"workload": asked.name, "rate": f"{rate:g}/s", "seed": str(seed)}
        self._ends_seconds = MOST_SECONDS
        self._looked_seconds = 0.0

    @property
    def state(self) -> PolicyState:
        """Where dedup stands."""
        states = self.pipeline.control.underlying
        return next(s for s in states if s.policy is Policy.DEDUP and s.scope == EVERYWHERE)

    def run(self) -> None:
        """From the first request to a while after the roll-back."""
        header = RecordingHeader(
            provenance=Provenance.SIMULATED,
            created_wall_seconds=ORIGIN_WALL_SECONDS,
            kvready_version=VERSION,
            conditions=self.conditions,
        )
        self.desk.open()
        clock = DayClock(self)
        watch = self.pipeline.canaries.on_window
        assert watch is not None

        def on_window(key: Key, window: WindowSummary) -> None:
            if key == (Policy.DEDUP, EVERYWHERE):
                self.windows.append(window)
            watch(key, window)

        self.pipeline.canaries.on_window = on_window
        with RecordingWriter(self.recording, header) as writer:
            self.recorder = Recorder(self.pipeline.ingest, writer, started_seconds=ORIGIN_SECONDS)
            self.engine.run(clock, DaySink(self, clock))
            self.recorder.close()
        self.desk.close()

    def look(self, now_seconds: float) -> None:
        """What sidecar and person do beside the records. Seconds of the recorder's clock."""
        if now_seconds - self._looked_seconds < LOOK_SECONDS:
            return
        self._looked_seconds = now_seconds

        def say(said: Control) -> None:
            self.recorder.said(said, now_seconds)

        self.desk.guard(self.pipeline.control, say, now_seconds)
        state = self.state
        if state.overlay is Overlay.ROLLED_BACK:
            self._ends_seconds = min(self._ends_seconds, self.today(now_seconds) + AFTER_SECONDS)
        elif state.mode is Mode.ENFORCE:
            self._enforced(state, now_seconds)
        elif self._passes(state):
            wanted = MODES[state.mode.rank + 1]
            self.desk.command(
                PolicyCommanded(
                    action=PolicyAction.SET,
                    policy=Policy.DEDUP,
                    actor=PERSON,
                    reason=f"its gate passes in {state.mode}",
                    mode=wanted,
                    revision=state.revision,
                ),
                self.pipeline.control,
                say,
            )

    def is_over(self, simulated_seconds: float) -> bool:
        """Whether the day has ended."""
        return simulated_seconds >= self._ends_seconds

    def today(self, seconds: float) -> float:
        """A moment of the recorder's clock, in seconds of the day."""
        return seconds - ORIGIN_SECONDS

    def _enforced(self, state: PolicyState, now_seconds: float) -> None:
        """Once it is settled, and the engine has room, leaders become slow."""
        begin = self.today(now_seconds)
        is_settled = state.clean_windows >= SETTLED_WINDOWS and begin > MORNING_SECONDS
        if self.harm_began_seconds is None and is_settled:
            self.harm_began_seconds = now_seconds
            self.faults.begin(Fault(FaultName.SLOW_LEADER, begin, MOST_SECONDS))
            self._tell(now_seconds, "from here on leaders are slow: who is held waits as long")

    def _passes(self, state: PolicyState) -> bool:
        """Whether the gate's latest report, made in this mode, passes."""
        report = self.pipeline.control.reports.of(state, state.version)
        return (
            report is not None
            and report.verdict is Verdict.PASS
            and report.mode is state.mode
            and report.made_seconds > state.since_seconds
        )

    def _moved(self, move: Transition) -> None:
        self.desk.keeper.heard(move)
        self.moves.append(move)
        after = move.after
        lies = "" if after.overlay is Overlay.NONE else f", {after.overlay}"
        says = f"{move.policy} {move.trigger}: {after.mode}{lies} ({move.actor}: {move.reason})"
        self._tell(move.seconds, says)

    def _reported(self, report: GateReport) -> None:
        self.desk.keeper.reported(report)
        self.reports.append(report)

    def _tell(self, seconds: float, says: str) -> None:
        self.told.append(Told(self.today(seconds), says))


class DayClock(Clock):
    """Time that needs no waiting, and ends with the day."""

    def __init__(self, day: Day) -> None:
        super().__init__(ORIGIN_SECONDS, ORIGIN_WALL_SECONDS, speed=1.0)
        self._day = day

    def wait_until(self, simulated_seconds: float) -> bool:
        """False once the day is over."""
        return not self._day.is_over(simulated_seconds)


class DaySink(RecordedSink):
    """What the engine tells goes to the recorder; then the others have their turn."""

    def __init__(self, day: Day, clock: Clock) -> None:
        super().__init__(day.recorder, clock, day.engine.described.block_tokens)
        self._day = day

    def scheduler(self, simulated_seconds: float, records: Sequence[AnyRecord]) -> None:
        """What the scheduler's loop tells at one go."""
        super().scheduler(simulated_seconds, records)
        self._day.look(self._received_seconds)


def asked_of(rate: float, seed: int) -> Workload:
    """A busy morning, and half as much from then on."""
    evening = MOST_SECONDS - MORNING_SECONDS
    made = drawn(WORKLOAD, rate, int(rate * (MORNING_SECONDS + evening / 2.0)), seed)
    requests = [
        msgspec.structs.replace(
            one,
            arrived_seconds=one.arrived_seconds + max(0.0, one.arrived_seconds - MORNING_SECONDS),
        )
        for one in made.requests
    ]
    return msgspec.structs.replace(made, requests=tuple(requests))


def engine() -> SimMachine:
    """What is served on."""
    return vllm_like(MODEL, MACHINE, HBM_GIB, HOST_GIB, PAGE_TOKENS)


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds of the day."""
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


class Proof(NamedTuple):
    """What a day leaves behind, checked."""

    chain: Chain  # of the audit
    entries: list[AuditEntry]
    bundle: Path
    verified: Verified


def prove(day: Day) -> Proof:
    """Check the audit; put the last verdict against dedup into a bundle, and replay that."""
    folder = day.desk.folder
    last = next(one for one in reversed(day.reports) if one.verdict is Verdict.FAIL)
    kept = [one for one in day.reports if one.made_ingest == last.made_ingest]
    bundle = day.out / "roll-back.kve"
    make_bundle(day.recording, bundle, kept=kept)
    return Proof(verify(folder), tail(folder, MAX_ENTRIES), bundle, verify_bundle(bundle))


def story(day: Day, proof: Proof) -> list[str]:
    """All of it, for a person."""
    told = [f"{clock_time(line.seconds):>8}  {line.says}" for line in day.told]
    chain = proof.chain
    wrong = chain.problem or ("torn" if chain.torn_bytes else "")
    return [
        f"SIMULATED: {', '.join(f'{name} {value}' for name, value in day.conditions.items())}",
        *told,
        f"audit: {chain.entries} entries, {wrong or 'whole'}; head {chain.head}",
        f"evidence: {proof.bundle.name}, verdicts "
        f"{'come out again, byte for byte' if proof.verified.equal else 'DIFFER'}, "
        f"{len(proof.verified.moves)} moves on the way",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the day into a folder, and prove what it leaves behind."""
    asked = argparse.ArgumentParser(description="a day of dedup, in simulated time")
    asked.add_argument("--out", type=Path, required=True, help="a new folder")
    asked.add_argument("--seed", type=int, default=1, help="of traffic, costs and draws")
    asked.add_argument("--rate", type=float, default=RATE, help="requests a simulated second")
    given = asked.parse_args(arguments)
    given.out.mkdir(parents=True)
    day = Day(given.out, given.seed, given.rate)
    day.run()
    proof = prove(day)
    lines = story(day, proof)
    (given.out / "story.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if proof.verified.equal and not proof.chain.problem else 1


if __name__ == "__main__":
    sys.exit(main())
