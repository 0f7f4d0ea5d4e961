"""The engine-side flag client against real servers that lie, stall, flap and freeze."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flag_server import FlagServer

from kvready.advisor.hooks import flag_client as module
from kvready.advisor.hooks.bounded_http import MAX_BODY_BYTES
from kvready.advisor.hooks.flag_client import FlagClient, Heard
from kvready.advisor.hooks.lease import NOTHING
from kvready.advisor.policies import Policy, Scope


class Time:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[FlagServer]:
    made = FlagServer()
    yield made
    made.end()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def client(server: FlagServer, clock: Time) -> Iterator[FlagClient]:
    made = FlagClient(server.url, "hook", Scope(engine="vllm"), clock=clock)
    yield made
    made.stop()


def test_it_asks_for_its_subject_and_holds_what_it_is_told(
    server: FlagServer, client: FlagClient, clock: Time
) -> None:
    assert not client.is_on(Policy.DEDUP)
    assert client.ask() is Heard.ANSWERED
    assert client.is_on(Policy.DEDUP)
    assert not client.is_on(Policy.BALANCE), "what is not named is off"
    body = json.loads(server.asked[0].partition("\r\n\r\n")[2])
    assert body == {
        "context": {"targetingKey": "hook", "engine": "vllm", "pool": "*", "request_class": "*"}
    }
    clock.now += 1.5
    assert client.ask() is Heard.UNCHANGED
    clock.now += 1.9
    assert client.is_on(Policy.DEDUP), "renewed"
    clock.now += 0.1
    assert not client.is_on(Policy.DEDUP)
    server.on, server.revision = {"dedup": False}, 2
    assert client.ask() is Heard.ANSWERED
    assert not client.is_on(Policy.DEDUP)


LIES: dict[str, Callable[[FlagServer], bytes]] = {
    "an error": lambda s: s.message(500, b"{}"),
    "a redirect": lambda s: s.message(302, b"", Location="http://127.0.0.1:1/"),
    "no boot id": lambda s: s.message(200, b'{"flags":[]}', Kvready_Boot_Id=""),
    "no lease": lambda s: s.message(200, b'{"flags":[]}', Kvready_Lease_Seconds=""),
    "an endless lease": lambda s: s.message(200, b'{"flags":[]}', Kvready_Lease_Seconds="inf"),
    "a lease that is none": lambda s: s.message(200, b'{"flags":[]}', Kvready_Lease_Seconds="-1"),
    "no number": lambda s: s.message(200, b'{"flags":[]}', Kvready_Revision="new"),
    "no JSON": lambda s: s.message(200, b"<html>"),
    "a text for a switch": lambda s: s.message(200, b'{"flags":[{"key":"dedup","value":"yes"}]}'),
    "one flag twice": lambda s: s.message(200, b'{"flags":[{"key":"a"},{"key":"a"}]}'),
    "a share beyond all": lambda s: s.message(
        200,
        b'{"flags":[{"key":"a","metadata":{"split_seed":"s","split_treated_ratio":7}}]}',
    ),
    "cells that are no text": lambda s: s.message(
        200, b'{"flags":[{"key":"a","metadata":{"excluded_cells":7}}]}'
    ),
    "depth": lambda s: s.message(200, b'{"flags":[],"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    "another boot that says no more": lambda s: s.message(304, b"", Kvready_Boot_Id="other"),
    "one revision with other content": lambda s: s.message(200, b'{"flags":[]}'),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_cannot_be_is_off_at_once_until_all_is_said_again(
    server: FlagServer, client: FlagClient, lie: str
) -> None:
    client.ask()
    assert client.is_on(Policy.DEDUP)
    server.behave = lambda asked: LIES[lie](server)
    assert client.ask() is Heard.REFUSED, client.problem
    assert client.held is NOTHING
    assert client.problem
    server.behave = server.answer
    assert client.ask() is Heard.ANSWERED, "asked for all of it, not for what changed"
    assert client.is_on(Policy.DEDUP)


SILENCES: dict[str, Callable[[FlagServer], bytes | None]] = {
    "no answer": lambda s: None,
    "a torn answer": lambda s: s.message(200, b"{}", Content_Length="500") + b"}",
    "no HTTP": lambda s: b"\x00\xff what?\r\n\r\n",
    "headers without an end": lambda s: b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1_000,
    "a body without an end": lambda s: b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_BODY_BYTES + 2),
}


@pytest.mark.parametrize("silence", SILENCES)
def test_without_an_answer_the_lease_runs_out_and_no_sooner(
    server: FlagServer,
    client: FlagClient,
    clock: Time,
    monkeypatch: pytest.MonkeyPatch,
    silence: str,
) -> None:
    client._asker._seconds = 0.2
    client.ask()
    clock.now += 1.0
    server.behave = lambda asked: SILENCES[silence](server)
    assert client.ask() is Heard.NOTHING, client.problem
    assert client.is_on(Policy.DEDUP)
    clock.now += 1.0
    assert not client.is_on(Policy.DEDUP)
    server.behave = server.answer
    assert client.ask() in (Heard.ANSWERED, Heard.UNCHANGED)
    assert client.is_on(Policy.DEDUP)


def test_a_server_that_drips_holds_its_caller_no_longer_than_the_bound(
    server: FlagServer, client: FlagClient
) -> None:
    client._asker._seconds = 0.3
    server.byte_seconds = 0.02  # each byte in time, the whole answer after some seconds
    began = time.monotonic()
    assert client.ask() is Heard.NOTHING
    whole_seconds = 0.02 * len(server.answer(""))
    assert time.monotonic() - began < whole_seconds / 2


def test_an_older_revision_is_ignored_and_renews_nothing(
    server: FlagServer, client: FlagClient, clock: Time
) -> None:
    server.revision, server.on = 5, {"dedup": False}
    client.ask()
    server.revision, server.on = 4, {"dedup": True}
    clock.now += 0.5
    client.ask()
    assert not client.is_on(Policy.DEDUP)


def test_a_sidecar_that_starts_anew_is_heard_from_its_first_whole_answer(
    server: FlagServer, client: FlagClient
) -> None:
    server.revision = 50
    client.ask()
    server.boot, server.revision, server.on = "boot-2", 1, {"dedup": False, "balance": True}
    assert client.ask() is Heard.ANSWERED
    assert (client.is_on(Policy.DEDUP), client.is_on(Policy.BALANCE)) == (False, True)


def test_the_thread_follows_a_server_that_comes_and_goes(
    server: FlagServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    client = FlagClient(server.url, "hook")
    client._asker._seconds = 0.2
    client.start()
    try:
        _until(lambda: client.is_on(Policy.DEDUP))
        server.behave = lambda asked: b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"
        _until(lambda: not client.is_on(Policy.DEDUP))
        server.behave = server.answer
        _until(lambda: client.is_on(Policy.DEDUP))
        server.behave = lambda asked: None  # frozen
        _until(lambda: not client.is_on(Policy.DEDUP))
        server.behave = server.answer
        _until(lambda: client.is_on(Policy.DEDUP))
        server.end()  # gone
        _until(lambda: not client.is_on(Policy.DEDUP))
    finally:
        client.stop()
        client.stop()
    assert client.heard[Heard.ANSWERED] > 1
    assert "kvready-flags" not in {thread.name for thread in threading.enumerate()}
    assert client.held is NOTHING


def test_once_stopped_nothing_is_on_and_stopping_before_a_start_is_fine(server: FlagServer) -> None:
    client = FlagClient(server.url, "hook")
    client.ask()
    client.stop()
    assert not client.is_on(Policy.DEDUP)
    client.ask()
    assert not client.is_on(Policy.DEDUP)
    client.stop()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8430", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|port|Port"):
        FlagClient(url, "hook")


def test_reading_takes_no_lock_and_no_call() -> None:
    """A decision reads one attribute: the object behind it never changes."""
    client = FlagClient("http://127.0.0.1:1", "hook")
    assert type(client.held).__struct_config__.frozen
    assert "_lock" not in vars(client)


def test_what_an_engine_loads_with_it_needs_nothing_of_the_sidecars(tmp_path: Path) -> None:
    """The modules that really come along, not only those that the source names."""
    code = (
        "import sys; from kvready.advisor.hooks.flag_client import FlagClient; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-I", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = {"kvready", "msgspec", "__main__"}
    extra = {name for name in eval(loaded) if not name.startswith("_") and "editable" not in name}
    assert extra <= ours | {"zmq", "sitecustomize", "typing_extensions"}, extra


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)
