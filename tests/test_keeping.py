"""What policies decided outlives the process, and a disk that refuses is never a way to act."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from gate_reports import gate_report

from kvready.advisor.control import Control, ControlPlane
from kvready.advisor.modes import CLEAN_WINDOWS, Refusal, Transition
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.policies import Hazard, Mode, Overlay, Policy, PolicyState
from kvready.advisor.service import store as store_module
from kvready.advisor.service.audit import tail, verify
from kvready.advisor.service.keeping import Keeper
from kvready.advisor.service.store import BROKEN, FILE, PolicyStore
from kvready.collectors.commanded import PolicyAction, RestoredPolicy
from kvready.collectors.errors import ServiceError
from kvready.collectors.recorder import Recorder
from kvready.collectors.records import (
    Ingested,
    KeepingChanged,
    KillSwitched,
    PoliciesRestored,
    PolicyCommanded,
)


class Life:
    """One run of a sidecar's policies over a folder."""

    def __init__(self, folder: Path, starts: dict[Policy, Mode | None] | None = None) -> None:
        self.keeper = Keeper(folder, "digest")
        restored = self.keeper.open(starts or {}, ())
        self.control = ControlPlane(self.keeper.heard, self.keeper.reported)
        self.keeper.follow(self.control)
        self.ingest = 0
        self.ticks = 0
        self.control.take(restored, self.moment())

    def moment(self) -> tuple[int, float]:
        self.ingest += 1
        return self.ingest, time.monotonic()

    def set(self, mode: Mode, forced: bool = False) -> Transition | Refusal:
        said = PolicyCommanded(action=PolicyAction.SET, policy="dedup", actor="ann",
                               reason="because", mode=mode, forced=forced)  # fmt: skip
        return self.control.command(said, self.moment())

    def tick(self) -> KeepingChanged | None:
        self.ticks += 1
        changed = self.keeper.tick(time.monotonic() + 10.0 * self.ticks)
        if changed is not None:
            self.control.take(changed, self.moment())
        return changed

    @property
    def dedup(self) -> PolicyState:
        return next(s for s in self.control.states if s.policy is Policy.DEDUP)


@pytest.fixture
def enforcing(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    life.set(Mode.ADVISE)
    life.set(Mode.CANARY, forced=True)
    life.set(Mode.ENFORCE, forced=True)
    yield life
    life.keeper.close()


@contextmanager
def no_room() -> Iterator[None]:
    """Every write beyond the first bytes of a file is refused, as by a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_modes_come_back_and_say_off_until_the_data_gate_is_current(
    enforcing: Life, tmp_path: Path
) -> None:
    assert (enforcing.dedup.mode, enforcing.dedup.overlay) == (Mode.ENFORCE, Overlay.NONE)
    enforcing.keeper.close()
    life = Life(tmp_path)
    assert (life.dedup.mode, life.dedup.overlay) == (Mode.ENFORCE, Overlay.PAUSED)
    moment = life.moment()
    life.control.judge(gate_report(Policy.DEDUP, Mode.ENFORCE, moment), moment)
    assert (life.dedup.mode, life.dedup.overlay) == (Mode.ENFORCE, Overlay.NONE)
    life.keeper.close()


def test_a_configured_mode_is_the_highest_that_a_policy_starts_in(
    enforcing: Life, tmp_path: Path
) -> None:
    enforcing.keeper.close()
    life = Life(tmp_path, {Policy.DEDUP: Mode.OBSERVE})
    assert life.dedup.mode is Mode.OBSERVE
    life.keeper.close()
    life = Life(tmp_path, {Policy.DEDUP: Mode.ADVISE})
    assert life.dedup.mode is Mode.OBSERVE, "it lowers, and never raises what was there"
    life.keeper.close()


def test_a_cool_down_goes_on_while_the_sidecar_is_away(enforcing: Life, tmp_path: Path) -> None:
    enforcing.control.hazard(Hazard.HARM, enforcing.moment())
    left = enforcing.dedup.cooldown_until_seconds - time.monotonic()
    enforcing.keeper.close()
    life = Life(tmp_path)
    assert life.dedup.overlay is Overlay.ROLLED_BACK
    assert life.dedup.cooldown_until_seconds - time.monotonic() <= left
    assert life.dedup.cooldown_until_seconds > time.monotonic()
    life.keeper.close()


def test_what_the_store_missed_the_audit_still_tells(enforcing: Life, tmp_path: Path) -> None:
    enforcing.keeper.store.close()
    enforcing.control.hazard(Hazard.HARM, enforcing.moment())  # the store never learns of it
    enforcing.keeper.close()
    life = Life(tmp_path)
    assert (life.dedup.mode, life.dedup.overlay) == (Mode.ADVISE, Overlay.ROLLED_BACK)
    life.keeper.close()


def test_a_full_disk_loses_nothing_and_lets_nothing_act(enforcing: Life, tmp_path: Path) -> None:
    with no_room():
        enforcing.control.hazard(Hazard.STALL, enforcing.moment())
        changed = enforcing.tick()
        assert changed is not None
        assert set(changed.failing) == {"audit", "store"}
        assert enforcing.dedup.overlay is Overlay.PAUSED
        refused = enforcing.set(Mode.SHADOW)
        assert isinstance(refused, Transition), "a demotion is never refused"
        assert isinstance(enforcing.set(Mode.ADVISE), Refusal)
        assert enforcing.keeper.waiting > 0
        assert enforcing.tick() is None
    assert enforcing.tick() == KeepingChanged(failing=())
    assert enforcing.keeper.waiting == 0
    triggers = [entry.trigger for entry in tail(tmp_path, 2)]
    assert triggers == ["stall", "lower"], "in the order in which it happened"
    assert verify(tmp_path).problem == ""
    assert PolicyStore.states(enforcing.keeper.store)[0].mode == Mode.SHADOW
    assert min(enforcing.keeper.failures.values()) > 0


def test_a_locked_store_is_said_and_tried_again(enforcing: Life, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    enforcing.control.window(True, enforcing.moment())
    enforcing.control.hazard(Hazard.STALL, enforcing.moment())
    assert enforcing.tick() == KeepingChanged(failing=("store",))
    assert "locked" in enforcing.keeper.problems["store"]
    other.execute("ROLLBACK")
    other.close()
    assert enforcing.tick() == KeepingChanged(failing=())


@pytest.mark.parametrize(
    "damage", ["no database", "scrambled", "another schema", "a strange state"]
)
def test_a_broken_store_is_put_aside_and_nothing_acts(
    enforcing: Life, tmp_path: Path, damage: str
) -> None:
    enforcing.control.hazard(Hazard.HARM, enforcing.moment())
    enforcing.keeper.close()
    path = tmp_path / FILE
    if damage == "no database":
        path.write_bytes(b"hello")
    elif damage == "scrambled":
        body = bytearray(path.read_bytes())
        body[100:3000] = os.urandom(2900)
        path.write_bytes(body)
    else:
        with sqlite3.connect(path) as connection:
            if damage == "another schema":
                connection.execute("PRAGMA user_version=9")
            else:
                connection.execute("UPDATE states SET body = '{}'")
        connection.close()
    life = Life(tmp_path)
    assert life.keeper.store.set_aside == 1
    assert (tmp_path / BROKEN).exists()
    assert life.dedup.mode is Mode.ADVISE
    assert life.dedup.overlay is Overlay.ROLLED_BACK, "the audit knows of the latch"
    assert life.keeper.problems == {}
    life.keeper.close()


def test_without_its_store_and_audit_everything_starts_in_shadow(
    enforcing: Life, tmp_path: Path
) -> None:
    enforcing.keeper.close()
    for file in tmp_path.iterdir():
        file.unlink()
    life = Life(tmp_path)
    assert {state.mode for state in life.control.states} == {Mode.SHADOW}
    life.keeper.close()


def test_two_processes_on_one_folder_are_refused(enforcing: Life, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=rf"process {os.getpid()}.*--policy-folder"):
        Keeper(tmp_path).open({}, ())
    code = (
        "import sys; from pathlib import Path; from kvready.advisor.service.keeping import Keeper\n"
        "Keeper(Path(sys.argv[1])).open({}, ())"
    )
    found = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True,
                           check=False)  # fmt: skip
    assert "another kvready" in found.stderr


def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match="--policy-folder"):
        Keeper(tmp_path / "file").open({}, ())


def test_entries_tell_who_why_and_on_what_evidence(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.set(Mode.ADVISE)
    moment = life.moment()
    report = gate_report(Policy.DEDUP, Mode.ADVISE, moment)
    report = msgspec.structs.replace(report, model_versions=("m1",), calibration_id="c1")
    life.control.judge(report, moment)
    life.set(Mode.CANARY)
    entry = tail(tmp_path, 1)[0]
    assert (entry.actor, entry.kind, entry.reason) == ("ann", "person", "because")
    assert (entry.before.mode, entry.after.mode) == (Mode.ADVISE, Mode.CANARY)
    assert entry.report_id == report.report_id == life.dedup.report_id
    assert entry.evidence_hash
    assert entry.config_digest == "digest"
    assert entry.versions["models"] == "m1"
    assert life.keeper.store.report(report.report_id) == report
    assert life.keeper.store.reports(Policy.DEDUP, 5) == [report]
    life.keeper.close()


def test_the_store_is_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store_module, "MAX_REPORTS", 5)
    monkeypatch.setattr(store_module, "MAX_ANSWERS", 5)
    store = PolicyStore(tmp_path)
    store.open()
    for number in range(20):
        store.keep_report(gate_report(Policy.DEDUP, Mode.SHADOW, (number, 1.0)))
        store.keep_answer(str(number), "asked", b"answer")
    assert len(store.reports(Policy.DEDUP, 100)) == 5
    assert store.answer("3") is None
    found = store.answer("19")
    assert found is not None
    assert (found.asked, found.body) == ("asked", b"answer")
    store.close()
    store.close()


def test_good_windows_after_a_restart_count_from_nothing(enforcing: Life, tmp_path: Path) -> None:
    enforcing.control.hazard(Hazard.BAD_PREDICTIONS, enforcing.moment())
    for _ in range(CLEAN_WINDOWS - 1):
        enforcing.control.window(True, enforcing.moment())
    enforcing.keeper.close()
    life = Life(tmp_path)
    life.control.window(True, life.moment())
    assert life.dedup.held_by == Hazard.BAD_PREDICTIONS
    for _ in range(CLEAN_WINDOWS):
        life.control.window(True, life.moment())
    assert life.dedup.held_by == ""
    life.keeper.close()


WRITER = """
import sys, time
from pathlib import Path
from test_keeping import Life
from kvready.advisor.policies import Mode
life = Life(Path(sys.argv[1]))
while True:
    for mode, forced in ((Mode.ADVISE, False), (Mode.CANARY, True), (Mode.ENFORCE, True),
                         (Mode.SHADOW, False)):
        life.set(mode, forced)
        print(life.keeper.audit.chain.last_sequence, life.dedup.revision, life.dedup.mode.value,
              flush=True)
"""


def check_kills(folder: Path, times: int) -> None:
    """A killed sidecar's policies come back where they were told to be, or one move later."""
    for number in range(times):
        command = [sys.executable, "-c", WRITER, str(folder)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(0.003 + 0.0011 * (number % 20))
            writer.send_signal(signal.SIGKILL)
            told = (first + writer.stdout.read()).split(b"\n")
        sequence, revision, mode = told[-2].split()
        chain = verify(folder)
        assert chain.problem == ""
        assert chain.last_sequence in (int(sequence), int(sequence) + 1)
        life = Life(folder)
        moves = life.dedup.revision - int(revision)
        paused = life.dedup.mode.acts  # a move of its own
        assert moves - paused in (0, 1)
        order = ["shadow", "advise", "canary", "enforce"]
        place = order.index(mode.decode())
        assert life.dedup.mode in (order[place], order[(place + 1) % 4])
        assert not paused or life.dedup.overlay is Overlay.PAUSED
        life.set(Mode.SHADOW)
        life.keeper.close()


def test_a_killed_sidecar_finds_its_policies_where_they_were(in_memory: Path) -> None:
    check_kills(in_memory, 5)


@pytest.mark.soak
def test_the_same_two_hundred_times(in_memory: Path) -> None:
    check_kills(in_memory, 200)


def test_a_replay_makes_the_same_moves(tmp_path: Path) -> None:
    moves: list[list[Transition]] = [[], []]
    items: list[Ingested] = []
    live = Pipeline(on_transition=moves[0].append)

    def forward(item: Ingested) -> None:
        items.append(item)
        live.ingest(item)

    recorder = Recorder(forward)
    for number, said in enumerate(_everything_said()):
        recorder.said(said, 10.0 * number)
        recorder.advance(10.0 * number, 1e9)
    replayed = Pipeline(on_transition=moves[1].append)
    for item in msgspec.json.decode(msgspec.json.encode(items), type=list[Ingested]):
        replayed.ingest(item)
    assert len(moves[0]) > 10
    assert msgspec.json.encode(moves[0]) == msgspec.json.encode(moves[1])
    assert replayed.control.states == live.control.states


def _everything_said() -> Iterator[Control]:
    kept = RestoredPolicy(policy="dedup", mode="enforce", revision=7)
    yield PoliciesRestored(policies=(kept,), auto_promote=("balance",))
    for action, mode in [*((PolicyAction.SET, mode) for mode in Mode), (PolicyAction.PAUSE, "")]:
        yield PolicyCommanded(action=action, policy="balance", actor="ann", reason="because",
                              mode=mode, forced=True)  # fmt: skip
    yield KeepingChanged(failing=("store",))
    yield PolicyCommanded(action=PolicyAction.RESUME, policy="dedup", actor="ann", reason="why")
    yield KeepingChanged(failing=())
    yield KillSwitched(held_by=("api",), actor="ann", reason="because")
    yield KillSwitched(held_by=())


def test_whom_a_policy_treats_is_written_before_it_treats_anybody(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for mode in (Mode.ADVISE, Mode.CANARY):
        life.set(mode, forced=True)
    life.keeper.close()
    started, *moves = tail(tmp_path, 10)
    assert started.draw["seed"]
    assert (started.draw["canary_percent"], started.draw["control_percent"]) == (50, 5)
    assert [entry.draw.get("percent") for entry in moves] == [None, 50]
    assert str(moves[-1].draw["seed"]).startswith(f"{started.draw['seed']}:dedup:")
    other = Life(tmp_path)
    *_, again = (entry for entry in tail(tmp_path, 10) if entry.event == "started")
    assert again.draw["seed"] != started.draw["seed"], "each run draws anew"
    other.keeper.close()
