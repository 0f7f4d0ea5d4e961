"""What any implementation of the readiness contract must hold, asked over HTTP.

`READINESS_URL=http://host:port [READINESS_TOKEN=...] pytest tests/test_readiness_conformance.py`
runs it against another implementation; without the variable it is ours, served from the recording
in `examples/recordings`. It needs nothing of the state of whoever answers: only pytest, httpx,
jsonschema-rs and the two files named below.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

SCHEMA = Path(__file__).parents[1] / "docs" / "readiness.schema.json"
URL = os.environ.get("READINESS_URL")
TOKEN = os.environ.get("READINESS_TOKEN")
START_SECONDS = 60.0

PREFIX = {"block_hashes": [11, 22, 33], "prompt_tokens": 4_000, "deadline_seconds": 1.5}
ADAPTER = {
    "resource": {"kind": "lora_adapter", "payload_bytes": {"host": 50_000_000}, "fragments": 448}
}
HASHES = [(1 << 64) - 1, 0, 1]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Talks to the implementation under test."""
    headers = {"authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    if URL:
        with httpx.Client(base_url=URL, headers=headers, timeout=30.0) as client:
            yield client
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "kvready.advisor.cli", "demo", "--serve", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as client:
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    client.get("/livez")
                    break
                except httpx.TransportError:
                    assert process.poll() is None, "it ended early"
                    assert time.monotonic() < deadline, "it never answered"
                    time.sleep(0.1)
            yield client
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def validator() -> Any:
    """The published schema, of what is answered."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return jsonschema_rs.validator_for({**schema, "anyOf": [{"$ref": "#/$defs/Answers"}]})


def answers(client: httpx.Client, *candidates: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.post("/v1/readiness", json={"candidates": list(candidates)})
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["answers"]
    return found


def test_an_answer_satisfies_the_published_schema(client: httpx.Client, validator: Any) -> None:
    body = {"candidates": [PREFIX, ADAPTER, {"request_id": "nobody"}]}
    response = client.post("/v1/readiness", json=body)
    assert response.headers["content-type"].startswith("application/json")
    validator.validate(response.json())


def test_answers_come_in_order_under_the_callers_names(client: httpx.Client) -> None:
    names = [f"candidate {number}" for number in range(50)]
    found = answers(client, *({**PREFIX, "id": name} for name in names))
    assert [answer["id"] for answer in found] == names


def test_ranges_are_ordered_and_stages_sum_to_the_median(client: httpx.Client) -> None:
    ways = [way for answer in answers(client, PREFIX, ADAPTER) for way in answer["ways"]]
    assert ways
    for way in ways:
        ready = way["ready_seconds"]
        assert 0.0 <= ready["low"] <= ready["p50"] <= ready["high"]
        stages = way["stages_seconds"].values()
        assert all(seconds >= 0.0 for seconds in stages)
        assert sum(stages) == pytest.approx(ready["p50"], rel=1e-6, abs=1e-9)


def test_tokens_sum_to_the_prompt(client: httpx.Client) -> None:
    for answer in answers(client, PREFIX, {"block_hashes": HASHES, "prompt_tokens": 777}):
        if answer["tokens"] is not None:
            assert sum(answer["tokens"].values()) in (4_000, 777)


def test_the_headline_is_the_range_of_the_way_decided_on(client: httpx.Client) -> None:
    for answer in answers(client, PREFIX, ADAPTER):
        chosen = [way for way in answer["ways"] if way["way"] == answer["decision"]]
        for way in chosen:
            assert answer["ready_seconds"] == way["ready_seconds"]
        assert 0.5 <= answer["nominal_coverage"] < 1.0
        assert answer["model_version"]


def test_a_deadline_is_answered_by_the_whole_interval(client: httpx.Client) -> None:
    (plain,) = answers(client, {**PREFIX, "deadline_seconds": None})
    assert plain["in_time"] is None
    if plain["ready_seconds"] is None:
        pytest.skip("it knows no engine")
    for seconds, in_time in ((1e6, "yes"), (0.0, "no")):
        (answer,) = answers(client, {**PREFIX, "deadline_seconds": seconds})
        assert answer["in_time"] == in_time


def test_a_request_that_is_not_known_is_an_answer_and_no_error(client: httpx.Client) -> None:
    (answer,) = answers(client, {"request_id": "nobody"})
    assert (answer["decision"], answer["reason"]) == ("none", "unknown_request")
    assert answer["ready_seconds"] is None


def test_a_resource_that_is_there_is_ready_and_one_that_lacks_bytes_is_not(
    client: httpx.Client,
) -> None:
    there = {"resource": {"kind": "weights", "payload_bytes": {"hbm": 1_000}}}
    lacking = {"resource": {"kind": "weights", "payload_bytes": {"host": 10}, "total_bytes": 1_000}}
    ready, missing = answers(client, there, lacking)
    assert ready["decision"] == "use"
    assert ready["ready_seconds"] == {"p50": 0.0, "low": 0.0, "high": 0.0}
    assert (missing["decision"], missing["reason"]) == ("none", "not_resident")


def test_more_bytes_never_take_less(client: httpx.Client) -> None:
    sizes = [1 << power for power in range(10, 40, 3)]
    found = answers(
        client,
        *({"resource": {"kind": "checkpoint", "payload_bytes": {"host": size}}} for size in sizes),
    )
    for bound in ("low", "p50", "high"):
        seconds = [answer["ready_seconds"][bound] for answer in found]
        assert seconds == sorted(seconds)


def test_a_hash_of_64_bits_arrives_whole(client: httpx.Client) -> None:
    assert len(answers(client, {"block_hashes": HASHES, "prompt_tokens": 96})) == 1


MALFORMED = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"candidates": []}',
    b'{"candidates": [{}]}',
    b'{"candidates": [{"request_id": "a", "block_hashes": [1]}]}',
    b'{"candidates": [{"request_id": 5}]}',
    b'{"candidates": [{"block_hashes": []}]}',
    b'{"candidates": [{"block_hashes": [-1]}]}',
    b'{"candidates": [{"block_hashes": [1.5]}]}',
    b'{"candidates": [{"block_hashes": [18446744073709551616]}]}',
    b'{"candidates": [{"block_hashes": [%s]}]}' % (b"9" * 5_000),
    b'{"candidates": [{"request_id": "a", "surprise": 1}]}',
    b'{"candidates": [{"request_id": "a", "deadline_seconds": NaN}]}',
    b'{"candidates": [{"request_id": "a", "deadline_seconds": -1}]}',
    b'{"candidates": [{"request_id": "a", "deadline_seconds": 1e999}]}',
    b'{"candidates": [{"request_id": "\\ud800"}]}',
    b'{"candidates": ' + b"[" * 100_000,
    b'{"candidates": [{"request_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    b'{"x": ' * 50_000,
    b"\xff\xfe",
    json.dumps({"candidates": [{"request_id": "a"}] * 10_000}).encode(),
    json.dumps({"candidates": [{"block_hashes": [1] * 60_000}] * 20}).encode(),
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:40]))
def test_a_question_that_cannot_be_answered_is_a_problem_document(
    client: httpx.Client, body: bytes
) -> None:
    response = client.post(
        "/v1/readiness", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code in (413, 422), response.text[:200]
    assert response.headers["content-type"].startswith("application/problem+json")
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["title"]
    assert problem["detail"]


def test_what_is_no_json_is_refused_by_its_type(client: httpx.Client) -> None:
    response = client.post("/v1/readiness", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415


def test_each_model_says_what_it_rests_on(client: httpx.Client) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    cards = client.get("/v1/models").json()
    jsonschema_rs.validator_for({**schema, "anyOf": [{"$ref": "#/$defs/ModelCards"}]}).validate(
        cards
    )
    assert {card["target"] for card in cards["models"]} >= {"batch_compute", "ttft"}
