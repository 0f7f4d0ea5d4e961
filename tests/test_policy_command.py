"""`kvready policy` against a real sidecar: what is said, asked first, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, free_port, serving
from test_policy_api import ADMIN, OPERATOR
from typer.testing import CliRunner, Result

from kvready.advisor.commands.app import app
from kvready.advisor.kill_switch import KILL_VARIABLE
from kvready.advisor.settings import ADMIN_VARIABLE, OPERATOR_VARIABLE
from kvready.collectors.errors import KvreadyError

Say = Callable[..., Result]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("p")
    patch = pytest.MonkeyPatch()
    patch.setenv(ADMIN_VARIABLE, ADMIN)
    patch.setenv(OPERATOR_VARIABLE, OPERATOR)
    patch.setenv("XDG_STATE_HOME", str(folder))
    patch.delenv(KILL_VARIABLE, raising=False)
    command = ("serve", "--kv-events", f"ipc://{folder}/e", "--state-dir", folder / "s")
    with serving(*command, port=free_port()) as running:
        yield running
    patch.undo()


@pytest.fixture
def say(served: Served, monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)

    def ask(*words: str, url: str = served.url) -> Result:
        return CliRunner().invoke(app, ["policy", "--url", url, *words])

    return ask


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.output)


def test_a_policy_is_raised_refused_forced_paused_and_cleared_away(say: Say) -> None:
    listed = say("list")
    assert listed.exit_code == 0
    assert "dedup     shadow" in listed.output
    assert "nothing is in the way of advise" in listed.output
    raised = say("set", "dedup", "advise", "--reason", "to see it")
    assert (raised.exit_code, raised.output) == (0, "dedup goes from shadow to advise\n")
    again = say("set", "dedup", "advise", "--reason", "twice")
    assert (again.exit_code, "already" in again.output) == (1, True)
    lacking = say("set", "dedup", "canary", "--reason", "now", "--yes")
    assert lacking.exit_code == 1
    assert "it lacks" in lacking.output
    shown = say("show", "dedup")
    assert "canary lacks; may be forced:" in shown.output
    forced = say("set", "dedup", "canary", "--reason", "a drill", "--force", "--dry-run")
    assert forced.output == "dedup would go from advise to canary\n"
    say("set", "dedup", "canary", "--reason", "a drill", "--force", "--yes")
    assert say("pause", "dedup", "--reason", "lunch").output.endswith("canary (paused)\n")
    assert say("clear", "dedup", "--reason", "none").exit_code == 1
    say("set", "dedup", "shadow", "--reason", "over")
    history = say("history", "dedup", "--count", "3").output.splitlines()
    assert [": a drill" in history[2], ": lunch" in history[1], ": over" in history[0]] == [
        True
    ] * 3
    assert history[-1].startswith("head ")
    states = as_json(say("list", "--json"))["policies"]
    assert [s["mode"] for s in states if s["policy"] == "dedup"] == ["shadow"]


def test_what_may_act_is_asked_for_twice(say: Say) -> None:
    for words in (("set", "dedup", "canary"), ("resume", "dedup"), ("revive",)):
        result = say(*words, "--reason", "r")
        assert isinstance(result.exception, KvreadyError)
        assert "--yes" in str(result.exception)


def test_the_kill_switch_is_held_and_let_go(say: Say) -> None:
    assert say("kill", "--reason", "a drill").exit_code == 0
    assert "KILLED by file, api" in say("list").output
    assert say("revive", "--reason", "over", "--yes").exit_code == 0
    assert "KILLED" not in say("list").output


def test_who_cannot_be_asked_or_may_not_ask_is_told_what_to_do(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = say("kill", "--reason", "r", url="http://127.0.0.1:9")
    assert "touch " in str(gone.exception), "a kill needs no sidecar"
    monkeypatch.delenv(ADMIN_VARIABLE)
    nobody = say("kill", "--reason", "r")
    assert "--token-file" in str(nobody.exception)
    file = tmp_path / "token"
    file.write_text(OPERATOR)
    file.chmod(0o600)
    lowered = say("--token-file", str(file), "set", "balance", "observe", "--reason", "r")
    assert lowered.exit_code == 0
    refused = say("--token-file", str(file), "set", "balance", "canary", "--reason", "r", "--yes")
    assert "admin" in str(refused.exception)
