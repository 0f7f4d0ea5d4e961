"""A scripted day: dedup earns its way to enforce, does harm, and is rolled back; all of it replays.

In simulated time, with the sidecar's own parts; and, briefly, over sockets with real processes.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from served import Served, serving
from test_sim_surfaces import simulating

from kvready.advisor.canary import WINDOWS_IN_PAIR
from kvready.advisor.gates import report_bytes
from kvready.advisor.harm import FALSE_ROLLBACK
from kvready.advisor.hooks.lease import MAX_LEASE_SECONDS
from kvready.advisor.measures import LIMITS
from kvready.advisor.policies import Mode, Overlay, Policy
from kvready.advisor.service.audit import tail, verify
from kvready.advisor.service.store import PolicyStore
from kvready.advisor.settings import ADMIN_VARIABLE, OPERATOR_VARIABLE
from kvready.advisor.verdicts import Verdict
from kvready.advisor.windows import Arm, WindowSummary
from kvready.collectors.names import DeferReason
from kvready.collectors.recording import read_recording
from kvready.collectors.records import KillSwitched, RequestDeferred

pytestmark = pytest.mark.timeout(900)  # a minute on a quiet core: an hour of serving, twice

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "policies"
EVALUATION_PAIRS = 9  # of harm: fewer cannot prove any (docs/canary.md)
ADMIN, OPERATOR = "admin-token-0123456", "operator-token-0123"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, imported as a user in its folder would."""
    sys.path.append(str(EXAMPLES))
    try:
        import day  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLES))
    return day


@pytest.fixture(scope="module")
def day(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = example.Day(tmp_path_factory.mktemp("day"))
    made.run()
    return made


@pytest.fixture(scope="module")
def proof(example: ModuleType, day: Any) -> Any:
    return example.prove(day)


def moved(day: Any) -> list[tuple[str, Mode, Overlay]]:
    return [
        (str(one.trigger), one.after.mode, one.after.overlay)
        for one in day.moves
        if one.policy is Policy.DEDUP
    ]


def test_dedup_goes_from_shadow_to_enforce_and_falls_when_it_harms(day: Any) -> None:
    none = Overlay.NONE
    assert moved(day) == [
        ("raise", Mode.ADVISE, none),
        ("canary", Mode.CANARY, none),
        ("enforce", Mode.ENFORCE, none),
        ("settled", Mode.ENFORCE, none),
        ("harm", Mode.ADVISE, Overlay.ROLLED_BACK),
    ]


def test_a_person_promotes_it_each_time_on_a_passing_gate_and_never_forces(
    example: ModuleType, day: Any
) -> None:
    promoted = [one for one in day.moves if one.kind == "person"]
    assert [one.after.mode for one in promoted] == [Mode.ADVISE, Mode.CANARY, Mode.ENFORCE]
    assert {one.actor for one in promoted} == {example.PERSON}
    assert not any(one.forced for one in promoted)
    reports = {one.report_id: one for one in day.reports}
    for one in promoted[1:]:
        report = reports[one.report_id]
        assert report.verdict is Verdict.PASS
        assert report.mode is one.before.mode
        assert {check.verdict for check in report.checks} == {Verdict.PASS}


def told_pairs(windows: list[WindowSummary], since: float) -> list[WindowSummary]:
    """The second windows of clean split pairs that began after a moment."""
    found, first = [], None
    for window in windows:
        if first is not None and first.pair == window.pair:
            both = {first.arm, window.arm} == set(Arm) and first.is_clean and window.is_clean
            if both and first.begin_seconds >= since:
                found.append(window)
        first = window
    return found


def test_it_is_rolled_back_within_two_evaluation_intervals_of_harm(day: Any) -> None:
    """From the first split pair in which harm shows: nine pairs could prove it, twice as many may.

    The pair before it, split too, is what made the sidecar look closer.
    """
    alpha = FALSE_ROLLBACK * max(limit.weight for limit in LIMITS[Policy.DEDUP].values())
    assert 2.0 ** (EVALUATION_PAIRS - 1) < 1.0 / alpha <= 2.0**EVALUATION_PAIRS
    fell = next(one for one in day.moves if one.trigger == "harm")
    assert day.harm_began_seconds is not None
    after = [one for one in day.windows if day.harm_began_seconds <= one.begin_seconds]
    told = told_pairs(after, day.harm_began_seconds)
    first = next(one.pair for one in told if treated_waits_longer(after, one.pair))
    pairs = {one.pair for one in after if first <= one.pair and one.begin_seconds < fell.seconds}
    assert EVALUATION_PAIRS <= len(pairs) <= 2 * EVALUATION_PAIRS + 1
    assert WINDOWS_IN_PAIR * len(pairs) <= 2 * 2 * EVALUATION_PAIRS + 2


def treated_waits_longer(windows: list[WindowSummary], pair: int) -> bool:
    mean = {one.arm: one.mean_ttft_seconds or 0.0 for one in windows if one.pair == pair}
    return mean[Arm.TREATED] > mean[Arm.CONTROL]


def test_the_audit_tells_the_story_and_is_whole(day: Any, proof: Any) -> None:
    assert not proof.chain.problem
    assert not proof.chain.torn_bytes
    moves = [entry for entry in proof.entries if entry.event == "moved"]
    assert [
        (entry.trigger, entry.actor, entry.reason, entry.report_id, entry.seconds)
        for entry in moves
    ] == [(one.trigger, one.actor, one.reason, one.report_id, one.seconds) for one in day.moves]
    assert proof.entries[0].draw["seed"] == "day 1"
    acting = [one for one in moves if one.policy == "dedup" and one.after and one.after.mode.acts]
    assert all(entry.draw for entry in acting)
    assert all(entry.evidence_hash for entry in moves if entry.report_id)
    head = proof.chain.head
    assert head == verify(day.desk.folder).head


def test_what_is_replayed_gives_the_same_verdict_bytes_and_the_same_moves(
    day: Any, proof: Any
) -> None:
    assert proof.verified.equal, proof.verified.differences
    fell = next(one for one in day.reports if one.report_id in proof.verified.report_ids)
    until = [one for one in day.moves if one.ingest <= fell.made_ingest]
    assert until[-1].trigger == "harm"
    assert msgspec.json.encode(proof.verified.moves) == msgspec.json.encode(until)


def test_the_store_keeps_the_verdicts_byte_for_byte(day: Any) -> None:
    store = PolicyStore(day.desk.folder)
    store.open()
    kept = store.reports("dedup", 20)
    store.close()
    latest = [one for one in day.reports if one.policy is Policy.DEDUP][-len(kept) :]
    assert [report_bytes(one) for one in reversed(kept)] == [report_bytes(one) for one in latest]


# Over sockets -----------------------------------------------------------------------------------


HELD_SECONDS = 120.0  # for states that come once windows have passed, on a busy machine
ASKED_SECONDS = 1.0  # a hook asks twice a second
MORE_RECORDS = 2_000


class Hand:
    """A person at the API of a sidecar."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def put(self, mode: str, **rest: object) -> int:
        """Ask for a mode of dedup; the status of the answer."""
        return self._change("PUT", "/v1/policies/dedup", {"mode": mode, **rest})

    def kill(self) -> int:
        """Hold the kill switch."""
        return self._change("POST", "/v1/kill", {})

    def flag(self) -> dict[str, Any]:
        """What a hook that asks for no prefix group hears of dedup."""
        body = {"context": {"targetingKey": "test"}}
        url = "/ofrep/v1/evaluate/flags/dedup"
        return dict(self._served.client.post(url, json=body).json())

    def _change(self, method: str, path: str, body: dict[str, object]) -> int:
        headers = {
            "authorization": f"Bearer {ADMIN}",
            "idempotency-key": uuid.uuid4().hex,
            "if-match": "*",
        }
        body = {"reason": "a test"} | body
        return self._served.client.request(method, path, json=body, headers=headers).status_code


def deferred(recording: Path, reason: DeferReason) -> list[float]:
    """When the engine passed requests over for a reason, as far as it is recorded."""
    return [
        item.record.deferred_seconds
        for item in read_recording(recording)
        if isinstance(item.record, RequestDeferred) and item.record.reason is reason
    ]


def records(recording: Path) -> int:
    return sum(1 for _ in read_recording(recording))


def test_an_engine_of_its_own_holds_what_the_sidecars_flags_say_until_it_is_killed(
    short_dir: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)
    monkeypatch.setenv(OPERATOR_VARIABLE, OPERATOR)
    recording, policies = short_dir / "day.kvr", short_dir / "policies"
    monkeypatch.setenv("KVREADY_POLICIES__POLICY_FOLDER", str(policies))
    monkeypatch.setenv("KVREADY_RECORDING__PATH", str(recording))
    shape = ("--workload", "loogle:min_distance:4", "--rate", 2.6, "--speed", 8)
    obeys = ("--flags", f"http://127.0.0.1:{free_port}", "--hbm-gib", 16, "--requests", 5_000)
    with (
        simulating(short_dir / "engine", *shape, *obeys) as (engine, url),
        serving("attach", url, port=free_port) as served,
    ):
        hand = Hand(served)
        assert hand.put("advise") == 200
        assert hand.put("canary") == 409, "no gate has passed"
        assert hand.put("canary", forced=True) == 200
        served.wait_for(lambda: "split_seed" in hand.flag()["metadata"], HELD_SECONDS)
        served.wait_for(lambda: bool(deferred(recording, DeferReason.HOLD)), HELD_SECONDS)
        assert hand.kill() == 200
        assert hand.flag()["reason"] == "DISABLED"
        seen = records(recording)
        served.wait_for(lambda: records(recording) > seen + MORE_RECORDS, HELD_SECONDS)
        code, said = served.end()
        assert engine.poll() is None, "the engine runs on without it"
    assert code == 0, said
    killed = next(
        item.received_seconds
        for item in read_recording(recording)
        if isinstance(item.record, KillSwitched) and item.record.held_by
    )
    held = deferred(recording, DeferReason.HOLD)
    assert max(held) < killed + MAX_LEASE_SECONDS + ASKED_SECONDS
    assert not verify(policies).problem
    assert [one.trigger for one in tail(policies, 100) if one.policy == "dedup"] == [
        "raise",
        "canary",
        "killed",
    ]
