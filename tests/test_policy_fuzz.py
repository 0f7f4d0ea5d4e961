"""Policies and flags under fuzzers of bodies and headers: no fault of ours, no open door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from test_policy_api import ADMIN, CHANGING, OPERATOR, Desk, kept
from test_readiness_api import POLICY_OPERATIONS

from kvready.advisor.service import ofrep_api

__all__ = ["kept"]  # a fixture
CHECKS = [
    schemathesis.checks.not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    content_type_conformance,
]
MODES = schemathesis.GenerationMode
PLAIN = settings(
    max_examples=30, suppress_health_check=list(HealthCheck), phases=[Phase.generate], deadline=None
)


@pytest.fixture
def desk(kept: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(ofrep_api, "BURST", 1_000_000)
    yield kept()


@pytest.mark.parametrize("operation", POLICY_OPERATIONS)
def test_with_a_token_nothing_that_is_sent_is_a_fault_of_ours(desk: Desk, operation: str) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", desk.app)
    found = {result.ok().label: result.ok() for result in schema.get_all_operations()}[operation]

    @PLAIN
    @given(
        found.as_strategy(generation_mode=MODES.POSITIVE)
        | found.as_strategy(generation_mode=MODES.NEGATIVE),
        st.sampled_from([ADMIN, OPERATOR]),
        st.integers(0),
    )
    def call(case: schemathesis.Case, token: str, key: int) -> None:
        headers = {"authorization": f"Bearer {token}", "if-match": "*", "idempotency-key": str(key)}
        response = case.call(headers=headers)
        case.validate_response(response, checks=CHECKS)

    call()


HEADER_VALUES = (
    st.binary(max_size=40)
    | st.text(st.characters(max_codepoint=255), max_size=40).map(lambda t: t.encode("latin-1"))
    | st.sampled_from([b"*", b'"0"', b'"1", "2"', b'W/"1"', b'"' + b"9" * 400 + b'"', b"Bearer "])
    | st.integers(0, len(ADMIN))
    .map(lambda n: b"Bearer " + ADMIN[:n].encode())
    .filter(lambda value: value != b"Bearer " + ADMIN.encode())
)
NAMES = st.sampled_from(
    ["authorization", "if-match", "idempotency-key", "content-type", "accept", "content-length",
     "x-forwarded-for", "host", "if-none-match", "expect", "x-http-method-override"]
)  # fmt: skip
HEADERS = st.dictionaries(NAMES, HEADER_VALUES, max_size=6)


@PLAIN
@given(data=st.data())
def _headers_alone(desk: Desk, data: st.DataObject) -> None:
    method, path = data.draw(st.sampled_from(CHANGING))
    headers: dict[str, Any] = data.draw(HEADERS)
    body = data.draw(
        st.sampled_from([b'{"reason":"r","mode":"off"}', b'{"reason":"r"}', b"", b"{"])
    )
    headers.setdefault("content-type", b"application/json")
    answer = desk.client.request(method, path, content=body, headers=headers)
    assert answer.status_code == 401, (headers, answer.text)


def test_no_header_opens_a_door_without_a_token(desk: Desk) -> None:
    before = desk.client.get("/v1/policies").json()
    _headers_alone(desk)
    assert desk.client.get("/v1/policies").json() == before
    assert not Path(desk.sidecar.desk.kill_switch.files[0]).exists()


@PLAIN
@given(data=st.data())
def _headers_beside(desk: Desk, data: st.DataObject) -> None:
    headers: dict[str, Any] = data.draw(HEADERS)
    headers["authorization"] = f"Bearer {ADMIN}".encode()
    headers.pop("content-length", None)
    method, path = data.draw(st.sampled_from(CHANGING[:-2]))
    body = b'{"reason":"r","mode":"observe"}' if method == "PUT" else b'{"reason":"r"}'
    answer = desk.client.request(method, path, content=body, headers=headers)
    assert answer.status_code < 500, (headers, answer.text)
    flags = desk.client.post(
        "/ofrep/v1/evaluate/flags", content=b'{"context":{"targetingKey":"x"}}', headers=headers
    )
    assert flags.status_code < 500, (headers, flags.text)


def test_no_header_beside_a_token_is_a_fault_of_ours(desk: Desk) -> None:
    _headers_beside(desk)
