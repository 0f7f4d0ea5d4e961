"""The gatekeeper: the same verdict bytes in every replay, and hazards told at once."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from story import ENGINE, Story, decode, prefill
from test_gates import good

from kvready.advisor.gate_names import CHECK_NAMES, check_name
from kvready.advisor.gatekeeper import Gatekeeper
from kvready.advisor.gates import checked, digest_of, report_bytes
from kvready.advisor.hazard_watch import LOST_SECONDS, STALL_SECONDS
from kvready.advisor.modes import Transition
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.playback import play
from kvready.advisor.policies import Hazard, Mode, Overlay, Policy
from kvready.advisor.verdicts import GateReport, Verdict
from kvready.collectors.commanded import PolicyAction
from kvready.collectors.recording import read_recording
from kvready.collectors.records import (
    AnyRecord,
    Ingested,
    LoadChecked,
    PolicyCommanded,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
)

RECORDINGS = sorted((Path(__file__).parents[1] / "examples" / "recordings").glob("*.kvr"))
SCHEDULER = "observer-scheduler-0"


def reports_of(path: Path) -> list[bytes]:
    found: list[bytes] = []
    play(path, on_report=lambda report: found.append(report_bytes(report)))
    return found


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_replays_to_the_same_verdict_bytes(path: Path) -> None:
    once, again = reports_of(path), reports_of(path)
    assert once
    assert once == again
    decoded = [msgspec.json.decode(body, type=GateReport) for body in once]
    assert all(report.report_id == digest_of(report) for report in decoded)
    assert {report.policy for report in decoded} == set(Policy)
    # Minutes of one engine prove nothing; where the placebo does not read zero they are an error.
    assert {report.verdict for report in decoded} <= {Verdict.INCONCLUSIVE, Verdict.ERROR}


def test_gates_do_not_change_forecasts_or_pairs() -> None:
    """What judges predictions must have no part in them."""

    class Idle(Gatekeeper):
        def after(self, item: Ingested, pipeline: Pipeline) -> None:
            """Judge nothing."""

    told: list[list[bytes]] = [[], []]
    for pairs, is_idle in zip(told, (False, True), strict=True):
        recording = read_recording(RECORDINGS[0])
        pipeline = Pipeline(
            on_pair=lambda pair, pairs=pairs: pairs.append(msgspec.json.encode(pair))
        )
        if is_idle:
            pipeline.gates = Idle(pipeline.canaries)
        for item in recording:
            pipeline.ingest(item)
    assert told[0] == told[1]


class Acting(Story):
    """A story in which policies are forced to act."""

    def __init__(self, *policies: Policy, mode: Mode = Mode.ENFORCE) -> None:
        super().__init__()
        self.moves: list[Transition] = []
        self.pipeline._on_transition = self.moves.append
        for policy in policies or tuple(Policy):
            for step in (Mode.ADVISE, Mode.CANARY, Mode.ENFORCE):
                if step.rank <= mode.rank:
                    self.says(
                        PolicyCommanded(
                            action=PolicyAction.SET,
                            policy=policy,
                            mode=step,
                            forced=True,
                            reason="a test",
                            actor="me",
                        )
                    )
        self.moves.clear()

    def says(self, record: AnyRecord, seconds: float = 0.5) -> None:
        self.tell(seconds, record, tap="api")

    def ticks(self, begin: float, end: float) -> None:
        for second in range(int(begin), int(end) + 1):
            self.tell(float(second), Tick(float(second), 1e6 + second), tap="recorder")

    def state(self, policy: Policy = Policy.DEDUP):
        return next(s for s in self.pipeline.control.states if s.policy is policy)


def test_a_wrong_byte_latches_gpu_copy_and_nothing_else() -> None:
    story = Acting()
    story.tell(1.0, LoadChecked(1, Tier.HOST, Tier.HBM, False), "observer-mover-0")
    assert story.moves == []
    story.tell(2.0, LoadChecked(2, Tier.HOST, Tier.HBM, True), "observer-mover-0")
    assert story.state(Policy.GPU_COPY).overlay is Overlay.ROLLED_BACK
    assert story.state(Policy.GPU_COPY).held_by == Hazard.MISMATCH
    assert story.state(Policy.DEDUP).mode is Mode.ENFORCE


def test_a_cleared_mismatch_is_not_held_against_what_acts_after() -> None:
    story = Acting(Policy.GPU_COPY)
    story.tell(2.0, LoadChecked(2, Tier.HOST, Tier.HBM, True), "observer-mover-0")
    story.says(PolicyCommanded(action=PolicyAction.CLEAR, policy=Policy.GPU_COPY,
                               reason="the kernel is mended", actor="me"), 3.0)  # fmt: skip
    story.ticks(4, 200)
    assert story.state(Policy.GPU_COPY).overlay is Overlay.NONE


def test_a_restarted_engine_pauses_what_acts() -> None:
    story = Acting()
    story.tell(5.0, TapStatus(SCHEDULER, 0, TapEvent.EPOCH, TapState.LIVE, 1), SCHEDULER)
    assert {move.trigger for move in story.moves} == {Hazard.ENGINE_RESTARTED}
    assert story.state().overlay is Overlay.PAUSED


def test_an_upgraded_engine_takes_policies_back_and_nothing_learned_counts() -> None:
    story = Acting()
    for n in range(40):
        story.batch(1.0 + n, 1.5 + n, decode("x", 64))
    signals = story.pipeline.gates.signals
    assert signals.scores.evidence(50.0)
    story.tell(50.0, msgspec.structs.replace(ENGINE, engine_version="0.33.0"))
    assert {move.trigger for move in story.moves} == {Hazard.ENGINE_UPGRADED}
    assert story.state().mode is Mode.ADVISE
    assert signals.scores.evidence(50.0) == {}


def test_an_engine_that_says_the_same_again_is_no_upgrade() -> None:
    story = Acting()
    story.tell(5.0, ENGINE)
    assert story.moves == []


def test_a_version_with_a_known_hazard_latches_what_makes_it_worse() -> None:
    story = Acting()
    hazardous = msgspec.structs.replace(ENGINE, engine_version="0.27.1", host_bytes=1 << 30)
    story.tell(5.0, hazardous)
    assert story.state(Policy.DEDUP).held_by == Hazard.KNOWN_HAZARD
    assert story.state(Policy.BALANCE).held_by == Hazard.KNOWN_HAZARD
    assert story.state(Policy.GPU_COPY).held_by == Hazard.ENGINE_UPGRADED


def test_telemetry_that_stays_lost_pauses_what_acts_and_a_short_gap_does_not() -> None:
    story = Acting()
    lost = TapStatus(SCHEDULER, 0, TapEvent.GAP, TapState.DEGRADED, 0, 5, 6, 2)
    whole = TapStatus(SCHEDULER, 0, TapEvent.HEALED, TapState.LIVE)
    story.tell(10.0, lost, SCHEDULER)
    story.ticks(11, 10 + LOST_SECONDS - 1)
    story.tell(10.0 + LOST_SECONDS - 0.5, whole, SCHEDULER)
    story.ticks(10 + LOST_SECONDS, 40)
    assert story.moves == []
    story.tell(41.0, lost, SCHEDULER)
    story.ticks(42, 41 + LOST_SECONDS + 1)
    assert {move.trigger for move in story.moves} == {Hazard.TELEMETRY_LOST}


def test_requests_without_batches_are_a_stall() -> None:
    story = Acting()
    story.arrives(1.0, "a", range(4))
    story.batch(2.0, 2.5, prefill("a", 100))
    story.arrives(3.0, "b", range(9))
    story.ticks(4, 3 + STALL_SECONDS - 1)
    assert story.moves == []
    story.ticks(3 + STALL_SECONDS, 3 + STALL_SECONDS + 2)
    assert {move.trigger for move in story.moves} == {Hazard.STALL}


def test_an_idle_engine_does_not_stall() -> None:
    story = Acting()
    story.batch(2.0, 2.5, decode("gone", 64))
    story.ticks(3, 3 + 3 * STALL_SECONDS)
    assert story.moves == []


def test_reports_come_each_minute_for_every_policy_and_the_version_beside_it() -> None:
    story = Story()
    story.pipeline.control.command(
        PolicyCommanded(
            action=PolicyAction.TRY, policy=Policy.DEDUP, version="2", reason="new", actor="me"
        ),
        (0, 0.0),
    )
    for second in range(181):
        story.tell(float(second), Tick(float(second), 1e6 + second), tap="recorder")
    gates = story.pipeline.gates
    assert gates.evaluations == 3
    assert {(key[0], key[2]) for key in gates.latest} == {
        (Policy.DEDUP, "1"), (Policy.DEDUP, "2"), (Policy.BALANCE, "1"), (Policy.GPU_COPY, "1"),
    }  # fmt: skip
    assert story.pipeline.control.reports.by_id(next(iter(gates.latest.values())).report_id)


def test_predictions_that_stay_bad_take_what_acts_back_within_two_evaluations() -> None:
    story = Acting(Policy.DEDUP)
    draw = random.Random(3)
    noticed = 0.0
    for second in range(1_500):
        story.tell(float(second), Tick(float(second), 1e6 + second), tap="recorder")
        if second % 8 == 1:
            name, begin = f"r{second}", second + 0.1
            took = draw.choice([0.05, 5.0])  # nothing tells which
            story.arrives(begin, name, [second], prompt=200)
            story.batch(begin, begin + took, prefill(name, 200))
            story.scheduled(begin, name)
            story.first_token(begin + took, name)
            story.finished(begin + took, name)
        if not noticed and second % 60 == 0:
            found = story.pipeline.gates.signals.burns(story.pipeline)
            noticed = float(second) if any(one.is_burning for one in found) else 0.0
        moves = [move for move in story.moves if move.policy is Policy.DEDUP]
        if moves:
            break
    assert [move.trigger for move in moves] == [Hazard.BAD_PREDICTIONS]
    assert story.state(Policy.DEDUP).mode is Mode.ADVISE
    assert moves[0].seconds - noticed <= 120.0


def test_every_check_has_a_name_that_metrics_know() -> None:
    reports: list[GateReport] = []
    play(RECORDINGS[-1], on_report=reports.append)
    seen = {check_name(check) for report in reports for check in report.checks}
    assert seen
    assert seen <= set(CHECK_NAMES)
    for policy in Policy:
        for mode in Mode:
            checks, _ = checked(good(policy, mode))
            assert {check_name(check) for check in checks} <= set(CHECK_NAMES) | {"accuracy:burn"}


def test_a_restart_pauses_until_there_are_outcomes_enough_of_the_new_life() -> None:
    story = Acting(Policy.DEDUP)
    for n in range(40):
        story.batch(1.0 + n, 1.5 + n, decode("x", 64))
    signals = story.pipeline.gates.signals
    assert signals.scores.evidence(50.0)
    story.tell(50.0, TapStatus(SCHEDULER, 0, TapEvent.EPOCH, TapState.LIVE, 1), SCHEDULER)
    assert signals.scores.evidence(50.0) == {}
    story.ticks(51, 300)
    assert story.state(Policy.DEDUP).overlay is Overlay.PAUSED


def test_a_report_of_a_part_says_what_is_judged_of_the_whole() -> None:
    story = Acting(Policy.DEDUP, mode=Mode.SHADOW)
    story.says(
        PolicyCommanded(
            action=PolicyAction.SET, policy=Policy.DEDUP, mode=Mode.ADVISE, request_class="chat",
            reason="a test", actor="me",
        )
    )  # fmt: skip
    story.ticks(1, 65)
    told = {key[1].request_class: report for key, report in story.pipeline.gates.latest.items()}
    assert "of the whole engine" in told["chat"].conditions["judged on"]
    assert "judged on" not in told["*"].conditions
