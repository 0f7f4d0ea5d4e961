"""Readiness asked from outside: over HTTP and on the socket, by friends, strangers and fuzzers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import AppClient, serving
from story import Story

from kvready.advisor.asking import with_ids
from kvready.advisor.contract import Candidate, Question
from kvready.advisor.playback import play
from kvready.advisor.questions import asked_of
from kvready.advisor.service import readiness_api, readiness_desk, readiness_socket
from kvready.advisor.service.access import Access
from kvready.advisor.service.app import create_app
from kvready.advisor.service.readiness_socket import readiness_socket as on_socket
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import ApiSettings, Settings
from kvready.collectors.errors import ServiceError, SettingsError
from kvready.collectors.recording import (
    Provenance,
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from kvready.collectors.records import ReadinessAsked

EXAMPLE = Path(__file__).parents[1] / "examples" / "lora_readiness.py"
CHAIN = list(range(1_000, 1_006))
TOKEN = "a-token-that-is-long-enough"
QUESTION = {"candidates": [{"block_hashes": CHAIN, "id": "a"}, {"request_id": "nobody"}]}


def started(story: Story, *, writer: RecordingWriter | None = None, **api: object) -> Sidecar:
    own = Settings(api=ApiSettings(**api))  # type: ignore[arg-type]
    replayed = None if writer else Replayed("story.kvr", "simulated", {})
    sidecar = Sidecar(own, story.pipeline, PairTally(), writer=writer, replayed=replayed)
    sidecar.start()
    return sidecar


@pytest.fixture
def sidecar(told_story: Story) -> Iterator[Sidecar]:
    running = started(told_story)
    yield running
    running.stop()


@pytest.fixture
def client(sidecar: Sidecar) -> AppClient:
    return AppClient(create_app(sidecar))


def test_the_answer_over_http_is_the_one_in_process(client, told_story: Story) -> None:
    response = client.post("/v1/readiness", json=QUESTION)
    assert response.status_code == 200
    pipeline = told_story.pipeline
    question = msgspec.convert(QUESTION, Question)
    expected = pipeline.readiness.ask(question, pipeline.moment)
    assert response.content == msgspec.json.encode(expected)


def test_names_of_the_caller_are_put_on_and_never_kept(told_story: Story) -> None:
    pipeline = told_story.pipeline
    question = Question((Candidate(request_id="r", id="mine"), Candidate(request_id="r")))
    answers = pipeline.readiness.ask(question, pipeline.moment)
    assert [answer.id for answer in answers.answers] == ["mine", ""]
    unnamed = Question((Candidate(request_id="r"),) * 2)
    assert with_ids(answers, unnamed) is answers


def test_a_question_is_recorded_and_a_replay_answers_it_alike(tmp_path: Path) -> None:
    path = tmp_path / "asked.kvr"
    writer = RecordingWriter(path, RecordingHeader(Provenance.SIMULATED, 0.0, "test"))
    story = Story()
    running = started(story, writer=writer)
    client = AppClient(create_app(running))
    given = client.post("/v1/readiness", json={"candidates": [{"block_hashes": CHAIN}]}).json()
    running.stop()
    records = [item.record for item in read_recording(path)]
    (asked,) = [record for record in records if isinstance(record, ReadinessAsked)]
    assert asked.candidates[0].block_hashes == tuple(CHAIN)
    again = play(path).pipeline.readiness.latest
    assert again is not None
    assert again.ingest == given["ingest"]
    assert len(again.answers) == 1
    assert running.recorder.spoke is False, "a question says nothing of any tap"


def test_tokens_are_hashed_before_the_ingest_thread_hears_of_them(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing: list[str] = []

    def noted(*arguments: Any) -> ReadinessAsked:
        hashing.append(threading.current_thread().name)
        return asked_of(*arguments)

    monkeypatch.setattr(readiness_desk, "asked_of", noted)
    client = AppClient(create_app(sidecar))
    refused = client.post("/v1/readiness", json={"candidates": [{"token_ids": [1] * 64}]})
    assert refused.status_code == 422, "content keys are off here; the refusal comes through"
    ingest = sidecar.ask(lambda: threading.current_thread().name)
    assert hashing
    assert ingest not in hashing


# Who may ask


def test_beyond_loopback_nobody_is_answered_without_the_token(
    told_story: Story, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nnot read\n")
    cases: list[tuple[dict[str, Any], dict[str, str], int]] = [
        ({}, {}, 200),
        ({"host": "::1"}, {}, 200),
        ({"host": "0.0.0.0"}, {}, 403),
        ({"host": "kv.example"}, {"authorization": f"Bearer {TOKEN}"}, 403),
        ({"host": "0.0.0.0", "token_file": file}, {}, 401),
        ({"host": "0.0.0.0", "token_file": file}, {"authorization": "Bearer no"}, 401),
        ({"host": "0.0.0.0", "token_file": file}, {"authorization": f"Basic {TOKEN}"}, 401),
        ({"host": "0.0.0.0", "token_file": file}, {"authorization": f"bearer {TOKEN}"}, 200),
        ({"host": "0.0.0.0", "require_token": False}, {}, 200),
        ({"require_token": True, "token_file": file}, {}, 401),
        ({"require_token": True, "token_file": file}, {"authorization": f"Bearer {TOKEN}"}, 200),
    ]
    for api, headers, status in cases:
        running = started(told_story, **api)
        client = AppClient(create_app(running))
        response = client.post("/v1/readiness", json=QUESTION, headers=headers)
        assert response.status_code == status, (api, headers)
        if status != 200:
            assert response.headers["content-type"] == "application/problem+json"
            assert TOKEN not in response.text
        assert client.get("/v1/models").status_code == 200, "tells nothing of any tenant"
        running.stop()


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_token_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(mode)
    Access(ApiSettings(token_file=file))
    assert (f"mode {mode:o}" in caplog.text and "chmod 600" in caplog.text) is warns
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("text", "fix"), [(None, "check api.token_file"), ("short\n", "openssl"), ("", "openssl")]
)
def test_a_token_that_cannot_be_one_is_refused_at_the_start(
    tmp_path: Path, text: str | None, fix: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    sidecar = Sidecar(Settings(api=ApiSettings(token_file=file)), Story().pipeline, PairTally())
    with pytest.raises(SettingsError, match=fix):
        create_app(sidecar)
    wanting = Sidecar(Settings(api=ApiSettings(require_token=True)), Story().pipeline, PairTally())
    with pytest.raises(SettingsError, match="token_file"):
        create_app(wanting)


# Bounds


def test_a_body_beyond_the_bound_is_not_read_to_its_end(client, monkeypatch) -> None:
    monkeypatch.setattr(readiness_api, "MAX_BODY_BYTES", 1 << 20)
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        for _ in range(1_000):
            sent += 1
            yield b" " * 65_536

    response = client.post(
        "/v1/readiness", content=endless(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413
    assert sent < 100


def test_a_sidecar_that_is_busy_says_so_in_time(client, sidecar: Sidecar, monkeypatch) -> None:
    monkeypatch.setattr(readiness_desk, "ANSWER_SECONDS", 0.05)
    held = threading.Event()
    sidecar.submit(lambda: held.wait(10.0))
    response = client.post("/v1/readiness", json=QUESTION)
    held.set()
    assert response.status_code == 504
    assert response.headers["content-type"] == "application/problem+json"


def test_a_sidecar_that_stopped_says_so(told_story: Story) -> None:
    running = started(told_story)
    client = AppClient(create_app(running))
    running.stop()
    assert client.post("/v1/readiness", json=QUESTION).status_code == 503


def test_a_storm_of_questions_leaves_room_for_records(sidecar: Sidecar) -> None:
    """However many wait, records are taken in after a bounded stretch of answering."""
    answered: list[float] = []

    def slow() -> None:
        time.sleep(0.005)
        answered.append(time.monotonic())

    before = sidecar.recorder.ingested
    futures = [sidecar.submit(slow) for _ in range(100)]
    for future in futures:
        future.result(10.0)
    took = answered[-1] - answered[0]
    assert took > 0.4
    # A tick a second comes between answers, were it to be due; the loop itself must have turned.
    assert sidecar.recorder.ingested >= before


def test_a_slow_body_is_given_up(client, monkeypatch) -> None:
    monkeypatch.setattr(readiness_api, "BODY_SECONDS", 0.05)

    async def slow() -> Any:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    response = client.post(
        "/v1/readiness", content=slow(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 408


# The socket


@pytest.fixture
def path(short_dir: Path, sidecar: Sidecar) -> Iterator[Path]:
    place = short_dir / "ready.sock"
    with on_socket(place, sidecar):
        yield place


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(20.0)
    client.connect(str(path))
    return client


def exchange(client: socket.socket, *lines: bytes) -> list[Any]:
    for line in lines:
        client.sendall(line + b"\n")
    with client.makefile("rb") as file:
        return [json.loads(file.readline()) for _ in lines]


def test_the_socket_answers_a_line_with_the_line_that_http_answers(path: Path, client) -> None:
    body = json.dumps(QUESTION).encode()
    with connected(path) as caller:
        first, problem, again = exchange(caller, body, b"nonsense", body)
    assert first == again == client.post("/v1/readiness", json=QUESTION).json()
    assert (problem["status"], problem["type"]) == (422, "urn:kvready:problem:malformed")


def test_only_its_user_may_open_the_socket_and_it_goes_with_the_sidecar(
    short_dir: Path, sidecar: Sidecar
) -> None:
    place = short_dir / "ready.sock"
    with on_socket(place, sidecar):
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        with pytest.raises(ServiceError, match="in use"), on_socket(place, sidecar):
            pass
    assert not place.exists()


def test_what_a_killed_run_left_is_replaced_and_a_file_never(
    short_dir: Path, sidecar: Sidecar
) -> None:
    place = short_dir / "ready.sock"
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(place))
    left.close()
    with on_socket(place, sidecar), connected(place) as caller:
        assert exchange(caller, json.dumps(QUESTION).encode())[0]["answers"]
    file = short_dir / "file"
    file.write_text("kept")
    with pytest.raises(ServiceError, match="no socket"), on_socket(file, sidecar):
        pass
    assert file.read_text() == "kept"


def test_a_client_that_does_not_read_is_dropped_and_others_are_served(
    short_dir: Path, sidecar: Sidecar, monkeypatch
) -> None:
    monkeypatch.setattr(readiness_socket, "WRITE_SECONDS", 0.2)
    place = short_dir / "ready.sock"
    many = {"candidates": [{"block_hashes": CHAIN, "id": "x" * 500}] * 1_000}
    line = json.dumps(many).encode() + b"\n"
    with on_socket(place, sidecar) as server, connected(place) as deaf:
        assert server is not None
        sender = threading.Thread(target=_send_until_dropped, args=(deaf, line))
        sender.start()
        with connected(place) as caller:
            for _ in range(3):
                assert exchange(caller, json.dumps(QUESTION).encode())[0]["answers"]
        sender.join(20.0)
        assert not sender.is_alive()
        deadline = time.monotonic() + 20.0
        while not server.dropped and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.dropped == 1


def _send_until_dropped(client: socket.socket, line: bytes) -> None:
    try:
        for _ in range(50):
            client.sendall(line)
    except OSError:
        return


def test_a_line_that_does_not_end_is_given_up(short_dir: Path, sidecar, monkeypatch) -> None:
    monkeypatch.setattr(readiness_socket, "LINE_SECONDS", 0.2)
    with on_socket(short_dir / "s", sidecar), connected(short_dir / "s") as caller:
        caller.sendall(b'{"candidates"')
        assert caller.recv(100) == b""


def test_a_line_beyond_the_bound_is_refused(short_dir: Path, sidecar, monkeypatch) -> None:
    monkeypatch.setattr(readiness_socket, "MAX_BODY_BYTES", 1_000)
    with on_socket(short_dir / "s", sidecar), connected(short_dir / "s") as caller:
        caller.sendall(b"x" * 2_000)
        with caller.makefile("rb") as file:
            assert json.loads(file.readline())["status"] == 413


def test_clients_beyond_the_bound_are_turned_away(short_dir: Path, sidecar, monkeypatch) -> None:
    monkeypatch.setattr(readiness_socket, "MAX_CLIENTS", 2)
    body = json.dumps(QUESTION).encode()
    with on_socket(short_dir / "s", sidecar) as server:
        assert server is not None
        with connected(short_dir / "s") as one, connected(short_dir / "s") as two:
            assert exchange(one, body)[0]["answers"]
            assert exchange(two, body)[0]["answers"]
            with connected(short_dir / "s") as three:
                assert three.recv(100) == b""
            assert server.refused == 1
        deadline = time.monotonic() + 10.0
        while True:
            with connected(short_dir / "s") as four, suppress(ConnectionError):
                four.sendall(body + b"\n")
                if four.recv(100):
                    break
            assert time.monotonic() < deadline, "a place that was left stays taken"


def test_served_over_http_and_socket_at_once_everybody_gets_the_own_answer(
    short_dir: Path, free_port: int
) -> None:
    place = short_dir / "r.sock"
    command = ("serve", "--kv-events", f"ipc://{short_dir}/none", "--readiness-socket", place)
    with serving(*command, port=free_port) as served:

        def by_http(number: int) -> bool:
            names = [f"{number}-{turn}" for turn in range(20)]
            with httpx.Client(base_url=served.url, timeout=30.0) as client:
                for _ in range(5):
                    body = {"candidates": [{"block_hashes": CHAIN, "id": n} for n in names]}
                    found = client.post("/v1/readiness", json=body).json()["answers"]
                    if [answer["id"] for answer in found] != names:
                        return False
            return True

        def by_socket(number: int) -> bool:
            lines = [
                json.dumps({"candidates": [{"request_id": "r", "id": f"{number} {n}"}]}).encode()
                for n in range(20)
            ]
            with connected(place) as caller:
                found = exchange(caller, *lines)
            return [one["answers"][0]["id"] for one in found] == [
                f"{number} {n}" for n in range(20)
            ]

        with ThreadPoolExecutor(8) as pool:
            results = [pool.submit(by_http, number) for number in range(4)]
            results += [pool.submit(by_socket, number) for number in range(4)]
            assert all(result.result() for result in results)
        example = [sys.executable, EXAMPLE, "--url", served.url, "--tier", "disk"]
        text = subprocess.run(example, check=True, capture_output=True, text=True).stdout
        assert "cannot be said (unknown_link)" in text
        code, _ = served.end()
    assert code == 0
    assert not place.exists()


# Beyond KV


def test_the_example_asks_for_an_adapter_and_prints_an_honest_range(recording: Path) -> None:
    command = [sys.executable, EXAMPLE, "--recording", recording, "--within-seconds", "30"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bounds = re.search(r"in ([\d.]+) ms; 90% interval ([\d.]+) to ([\d.]+) ms", text)
    assert bounds is not None, text
    middle, low, high = map(float, bounds.groups())
    assert low <= middle / 3 < 3 * middle <= high, "as wide as ignorance"
    assert "32.0 MiB in 256 pieces, in host" in text
    assert "evidence: assumed" in text
    assert "within 30 s: yes" in text


# Fuzzing


CHECKS = [
    schemathesis.checks.not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    content_type_conformance,
]
FUZZED_OPERATIONS = (
    "POST /v1/readiness", "GET /v1/models", "GET /v1/pairs", "GET /v1/status", "GET /livez",
    "GET /readyz", "GET /metrics", "GET /v1/report", "GET /",
)  # fmt: skip
# In test_policy_fuzz, with a sidecar that can be commanded.
POLICY_OPERATIONS = (
    "GET /v1/policies", "GET /v1/audit", "GET /v1/gates", "PUT /v1/policies/{policy}",
    "POST /v1/policies/{policy}/{action}", "POST /v1/kill", "POST /v1/revive",
    "POST /ofrep/v1/evaluate/flags", "POST /ofrep/v1/evaluate/flags/{key}",
)  # fmt: skip


@pytest.mark.parametrize("operation", FUZZED_OPERATIONS)
def test_no_call_that_the_description_allows_or_forbids_is_a_fault_of_ours(
    sidecar: Sidecar, operation: str
) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(sidecar))
    found = {result.ok().label: result.ok() for result in schema.get_all_operations()}
    assert set(FUZZED_OPERATIONS) | set(POLICY_OPERATIONS) == set(found)
    modes = schemathesis.GenerationMode

    @settings(
        max_examples=40 if operation.startswith("POST") else 5,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(
        found[operation].as_strategy(generation_mode=modes.POSITIVE)
        | found[operation].as_strategy(generation_mode=modes.NEGATIVE)
    )
    def call(case: schemathesis.Case) -> None:
        response = case.call()
        case.validate_response(response, checks=CHECKS)

    call()
