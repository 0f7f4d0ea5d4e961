"""Law 1, from a system-call trace: nothing leaves for the engine but subscriptions and replays."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_pages import OFFLOAD, EngineHttp, kv_source
from metrics_server import MetricsServer, page
from observer_publisher import ObserverPublisher, load_started
from publisher import Publisher
from served import KVREADY, free_port, serving
from system_calls import STRACE, Trace, read_trace

from kvready.advisor.policies import Policy
from kvready.advisor.settings import HIGHEST_START

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
MAX_REPLAY_REQUESTS = 4  # what this script of one join and one gap can call for
ONE_GET = re.compile(rb"GET /[a-z0-9_/]+ HTTP/1\.1\r\n(?:[A-Za-z-]+: [^\r\n]*\r\n)+\r\n")


@pytest.fixture(scope="module")
def strace() -> None:
    if shutil.which("strace") is None:
        if os.environ.get("CI"):
            pytest.fail("strace is missing; on Debian: apt-get install strace")
        pytest.skip("strace is missing; on Debian: apt-get install strace")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kv"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def engine_http() -> Iterator[MetricsServer]:
    server = MetricsServer()
    server.always = page(1_000.0)
    yield server
    server.end()


@pytest.fixture(scope="module")
def otlp_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def trace(strace: None, folder: Path, engine_http: MetricsServer, otlp_port: int) -> Trace:
    """A run with every tap, a lost message, scrapes, and every policy as high as it goes."""
    file = folder / "trace"
    observed = folder / "observer"
    observed.mkdir()
    with Publisher(folder) as engine, _observer(observed) as observer:
        engine.store(1)
        command = [
            *("serve", "--kv-events", engine.events, "--replay", engine.replay),
            *("--observer-dir", observed, "--recording", folder / "run.kvr"),
            *("--metrics-url", engine_http.url, "--otlp-http-port", otlp_port),
            *("--state-dir", folder / "state"),
        ]
        for policy in Policy:
            command += [f"--{policy.replace('_', '-')}", HIGHEST_START]
        before = ("env", "PYTHONDONTWRITEBYTECODE=1", *STRACE, str(file))
        with serving(*command, port=free_port(), before=before) as served:
            served.wait_for(lambda: bool(engine.replay_requests))
            engine.store(2)
            engine.send_payload(b"\x93", lost=True)
            engine.store(3)
            served.wait_for(lambda: len(engine.replay_requests) > 1)
            sequence = iter(range(1_000_000))

            def heard_from_all() -> bool:
                number = next(sequence)
                observer.publish_records(number, [load_started(number)])
                return served.get("/readyz").status_code == 200

            served.wait_for(heard_from_all)
            assert engine_http.asked
            _export_a_span(otlp_port)
            for path in ("/", "/metrics", "/v1/report", "/v1/status", "/v1/pairs"):
                assert served.get(path).status_code == 200
            code, errors = served.end()
        assert code == 0, errors
    _wait_until_complete(file)
    return read_trace(file)


def test_only_subscriptions_and_bounded_replay_requests_leave_for_the_engine(
    trace: Trace, folder: Path
) -> None:
    assert trace.calls > 100
    assert trace.cut_strings == 0
    kinds, replays = _roles(trace, folder)
    assert kinds == {"SUB", "DEALER"}
    assert 1 < len(replays) <= MAX_REPLAY_REQUESTS
    for said in replays:
        assert [flags for flags, _ in said] == [MORE, 0]
        assert [len(body) for _, body in said] == [0, 8]


def test_looking_and_examining_leave_gets_subscriptions_and_one_replay(
    strace: None, short_dir: Path
) -> None:
    observed = short_dir / "observer"
    observed.mkdir()
    with Publisher(short_dir) as engine, _observer(observed):
        engine.store(1)
        sources = {"0": kv_source(engine.events, engine.replay)}
        with EngineHttp(OFFLOAD, sources=sources) as server:
            for command in ("look", "doctor"):
                file = short_dir / command
                subprocess.run(
                    ["env", "PYTHONDONTWRITEBYTECODE=1", *STRACE, str(file), *KVREADY, command]
                    + [server.url, "--seconds", "1", "--observer-dir", str(observed)],
                    check=False,
                    capture_output=True,
                    timeout=120,
                )
                _wait_until_complete(file)
    looked, examined = (read_trace(short_dir / command) for command in ("look", "doctor"))
    assert {method for method, _ in server.asked} == {"GET"}
    assert looked.connections == []
    kinds, replays = _roles(examined, short_dir)
    assert kinds == {"SUB", "DEALER"}
    assert len(replays) == len(engine.replay_requests) == 1
    for trace in (looked, examined):
        assert trace.addresses_connected
        assert all(f"http://{one.path}" == server.url for one in trace.addresses_connected)
        sent = [bytes(one.sent) for one in trace.addresses_connected]
        assert [request for request in sent if not ONE_GET.fullmatch(request)] == []
        assert trace.addresses_listened == []
        assert trace.written_files == set()
        assert trace.acts_on_processes == []


def test_the_engines_http_server_is_asked_by_get_alone(
    trace: Trace, engine_http: MetricsServer
) -> None:
    """Every byte that went out to an address, on every connection: whole GETs, nothing else."""
    assert trace.addresses_connected
    for connection in trace.addresses_connected:
        assert f"http://{connection.path}" == engine_http.url
        request = bytes(connection.sent)
        assert ONE_GET.fullmatch(request), request
    assert {path for _, path in engine_http.asked} == {"/metrics", "/version"}


def test_what_asks_for_more_than_a_get_would_be_noticed() -> None:
    """The measure itself: neither a body nor a second request passes for one GET."""
    get = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    assert ONE_GET.fullmatch(get)
    assert not ONE_GET.fullmatch(get + b"x")
    assert not ONE_GET.fullmatch(get + get)
    assert not ONE_GET.fullmatch(get.replace(b"GET", b"POST"))


def test_it_reaches_nobody_else_and_is_reached_on_loopback_alone(
    trace: Trace, engine_http: MetricsServer
) -> None:
    assert {f"http://{one.path}" for one in trace.addresses_connected} == {engine_http.url}
    assert trace.sent_to_addresses == []
    assert trace.addresses_listened == ["127.0.0.1", "127.0.0.1"]  # the API, and spans


def test_it_writes_its_recording_what_it_asked_and_where_policies_stand(
    trace: Trace, folder: Path
) -> None:
    state = folder / "state"
    kept = {file for file in trace.written_files if str(state) in file}
    assert trace.written_files - kept == {str(folder / "run.kvr")}
    (policies,) = state.glob("policies-*")
    asked = {file for file in kept if str(policies) not in file}
    assert asked
    assert all(str(state / "replay-") in file for file in asked)
    assert {path.name for path in policies.iterdir()} >= {"audit.jsonl", "policies.sqlite"}


def test_it_signals_and_traces_no_process(trace: Trace) -> None:
    assert trace.acts_on_processes == []


@contextmanager
def _observer(folder: Path) -> Iterator[ObserverPublisher]:
    observer = ObserverPublisher(folder)
    try:
        yield observer
    finally:
        observer.end()


def _roles(trace: Trace, folder: Path) -> tuple[set[str], list[list[tuple[int, bytes]]]]:
    """The kinds of sockets that reached the engine's, and what each replay request said."""
    replays = []
    kinds = set()
    for connection in trace.connections:
        assert connection.path.startswith(str(folder)), connection.path
        greeting, frames = connection.sent[:GREETING_BYTES], connection.sent[GREETING_BYTES:]
        assert greeting[:1] == b"\xff"
        assert greeting[12:16] == b"NULL"
        role, said = _what_was_said(bytes(frames))
        kinds.add(role)
        if role == "SUB":
            assert said == [(COMMAND, b"\x09SUBSCRIBE" + _topic(connection.path))]
        else:
            assert role == "DEALER"
            replays.append(said)
    return kinds, replays


def _export_a_span(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/v1/traces", b"", {"Content-Type": "application/x-protobuf"})
    assert connection.getresponse().status == 200
    connection.close()


def _topic(path: str) -> bytes:
    return b"kvready" if "observer" in path else b""


def _what_was_said(frames: bytes) -> tuple[str, list[tuple[int, bytes]]]:
    """The socket's type from its READY command, and each frame after it (ZMTP 3)."""
    parsed = []
    while frames:
        flags, width = frames[0], 8 if frames[0] & LONG else 1
        size = int.from_bytes(frames[1 : 1 + width])
        parsed.append((flags & (MORE | COMMAND), frames[1 + width : 1 + width + size]))
        frames = frames[1 + width + size :]
    (flags, ready), *said = parsed
    assert flags == COMMAND
    assert ready.startswith(b"\x05READY")
    kind = ready.partition(b"Socket-Type")[2]
    return kind[4 : 4 + int.from_bytes(kind[:4])].decode(), said


def _wait_until_complete(file: Path, seconds: float = 20.0) -> None:
    """strace outlives what it traces by a moment."""
    deadline = time.monotonic() + seconds
    while "exited with" not in file.read_text(encoding="utf-8").splitlines()[-1]:
        assert time.monotonic() < deadline, "the trace never ended"
        time.sleep(0.05)
