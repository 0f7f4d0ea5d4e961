"""The kill switch: any holder is enough, and nothing that is broken lets go of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from publisher import Publisher
from served import serving

from kvready.advisor.commands.audit import MIN_HEAD_CHARACTERS
from kvready.advisor.kill_switch import (
    KILL_VARIABLE,
    Holder,
    KillSwitch,
    default_kill_file,
    kill_by_file,
)
from kvready.advisor.service.audit import tail, verify


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def switch(tmp_path: Path) -> KillSwitch:
    return KillSwitch([tmp_path / "own" / "kill"])


def test_nothing_holds_it_at_first_and_letting_go_of_nothing_is_fine(switch: KillSwitch) -> None:
    assert switch.held_by == ()
    assert switch.revive() == ()


def test_the_api_holds_it_over_a_restart(switch: KillSwitch) -> None:
    switch.kill("because")
    switch.kill("again")
    assert switch.held_by == (Holder.FILE, Holder.API)
    assert KillSwitch(switch.files).held_by == (Holder.FILE,)
    assert switch.revive() == ()


def test_a_disk_that_takes_nothing_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    switch = KillSwitch([tmp_path / "file" / "kill"])
    switch.kill("because")
    assert switch.held_by == (Holder.API,)
    assert switch.failures == 1
    assert switch.revive() == ()


@pytest.mark.parametrize("word", ["1", "yes", "true", "kill"])
def test_the_environment_holds_it_and_only_a_restart_lets_go(
    switch: KillSwitch, monkeypatch, word: str
) -> None:
    monkeypatch.setenv(KILL_VARIABLE, word)
    assert switch.held_by == switch.revive() == (Holder.ENVIRONMENT,)


@pytest.mark.parametrize("word", ["", "0", "off", "False", " no "])
def test_a_variable_that_says_no_holds_nothing(switch: KillSwitch, monkeypatch, word: str) -> None:
    monkeypatch.setenv(KILL_VARIABLE, word)
    assert not switch.is_active


def test_a_signal_holds_it_and_is_written_down(switch: KillSwitch) -> None:
    with switch.listening():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert switch.held_by == (Holder.SIGNAL,)
    switch.keep_signal()
    assert switch.held_by == (Holder.FILE, Holder.SIGNAL)


def test_the_users_own_file_is_watched_whatever_the_settings_say(switch: KillSwitch) -> None:
    kill_by_file(default_kill_file())
    assert switch.held_by == switch.revive() == (Holder.FILE,), "it was meant for more than us"
    assert switch.holding_files() == (default_kill_file(),)


@pytest.mark.parametrize("kind", ["folder", "dangling link", "loop", "name too long"])
def test_what_cannot_be_looked_at_counts_as_there(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kill"
    if kind == "folder":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "absent")
    elif kind == "loop":
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        path = tmp_path / "loop" / "kill"
    else:
        path = tmp_path / ("k" * 300)
    assert KillSwitch([path]).is_active


def test_a_served_sidecar_obeys_files_and_signals_and_keeps_them(
    short_dir: Path, free_port: int, kvready
) -> None:
    folder = short_dir / "policies"
    with Publisher(short_dir) as engine:
        command = ("serve", "--kv-events", engine.events, "--policy-folder", folder)
        with serving(*command, port=free_port) as served:

            def overlays() -> set[str]:
                found = served.get("/v1/status").json()
                return {one["overlay"] for one in found["policies"]}

            def head() -> str:
                return str(served.get("/v1/status").json()["control"]["audit_head"])

            served.wait_for(lambda: overlays() == {"none"})
            os.kill(served.process.pid, signal.SIGUSR1)
            served.wait_for(lambda: overlays() == {"killed"})
            assert (folder / "kill").exists()
            page = served.get("/metrics").text
            assert 'kvready_kill_switch_active{holder="signal"} 1.0' in page
            number = int(head()[:MIN_HEAD_CHARACTERS], 16)
            (line,) = [one for one in page.splitlines() if one.startswith("kvready_audit_head ")]
            assert float(line.split()[1]) == number
            second = kvready(*command, "--port", _another(free_port))
            assert "another kvready" in second.stderr
            last = head()
        with serving(*command, port=free_port) as served:
            served.wait_for(lambda: overlays_of(served) == {"killed"})
            (folder / "kill").unlink()
            served.wait_for(lambda: overlays_of(served) == {"none"})
    assert verify(folder).problem == ""
    triggers = {entry.trigger for entry in tail(folder, 100)}
    assert triggers >= {"killed", "revived"}
    found = kvready("audit", "verify", folder, "--expect-head", verify(folder).head)
    assert "entries verified" in found.stdout
    assert kvready("audit", "verify", folder, "--expect-head", last).returncode == 1
    assert "killed" in kvready("audit", "tail", folder).stdout
    with (folder / "audit.jsonl").open("ab") as file:
        file.write(b'{"hash":"')
    torn = kvready("audit", "verify", folder)
    assert torn.returncode == 1
    assert "torn tail: 9 bytes" in torn.stdout


def overlays_of(served) -> set[str]:
    try:
        found = served.get("/v1/status").json()
    except httpx.TransportError:
        return set()
    return {one["overlay"] for one in found["policies"]}


def _another(port: int) -> int:
    return port - 1 if port > 2_000 else port + 1
