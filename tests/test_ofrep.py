"""Flags over the OpenFeature Remote Evaluation Protocol: by hand, by its SDK, and by our client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_reports import gate_report
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from served import serving
from test_policy_api import ADMIN, Desk, kept

from kvready.advisor.bad_cells import BAD_WINDOWS, BadCell
from kvready.advisor.flags import Assignment, Split
from kvready.advisor.hooks.bounded_http import Reply
from kvready.advisor.hooks.flag_client import FlagClient, Heard, answer_of
from kvready.advisor.kill_switch import KILL_VARIABLE
from kvready.advisor.ledger import Target
from kvready.advisor.policies import ORDER, Mode, Policy
from kvready.advisor.service import ofrep_api
from kvready.advisor.service.flag_board import LEASE_SECONDS
from kvready.advisor.settings import ADMIN_VARIABLE
from kvready.advisor.windows import Arm

__all__ = ["kept"]  # a fixture
PATH = "/ofrep/v1/evaluate/flags"


def acting(desk: Desk, assignment: Assignment | None = Assignment(Arm.TREATED)) -> None:  # noqa: B008
    """Dedup as a forced canary, whose draw is this one."""
    desk.put("dedup", "advise")
    assert desk.put("dedup", "canary", body={"forced": True}).status_code == 200
    canaries = desk.sidecar.pipeline.canaries
    canaries.arms.assigned = lambda state, window: assignment  # type: ignore[method-assign]


def test_every_flag_is_off_until_a_policy_acts_and_says_why(kept: Callable[..., Desk]) -> None:
    desk = kept()
    answer = desk.flags()
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert [flag["key"] for flag in answer.json()["flags"]] == [str(p) for p in ORDER]
    for flag in answer.json()["flags"]:
        assert (flag["value"], flag["variant"], flag["reason"]) == (False, "off", "STATIC")
        assert flag["metadata"]["mode"] == "shadow"
    acting(desk)
    flags = {flag["key"]: flag for flag in desk.flags().json()["flags"]}
    assert (flags["dedup"]["value"], flags["dedup"]["reason"]) == (True, "SPLIT")
    assert flags["dedup"]["metadata"]["forced"] is True
    assert flags["balance"]["value"] is False


def test_as_before_is_said_without_a_body_and_with_a_lease(kept: Callable[..., Desk]) -> None:
    desk = kept()
    body = {"context": {"targetingKey": "hook"}}
    first = desk.flags()
    held = {"if-none-match": f'"other", W/{first.headers["etag"]}'}
    again = desk.client.post(PATH, json=body, headers=held)
    assert (again.status_code, again.content) == (304, b"")
    for name in ("kvready-boot-id", "kvready-revision", "kvready-lease-seconds", "cache-control"):
        assert again.headers[name] == first.headers[name]
    assert float(again.headers["kvready-lease-seconds"]) == LEASE_SECONDS
    other = {"context": {"targetingKey": "hook", "engine": "another"}}
    assert desk.client.post(PATH, json=other, headers=held).status_code == 200
    assert desk.client.post(PATH, json=body, headers={"if-none-match": "*"}).status_code == 200
    desk.put("dedup", "advise")
    changed = desk.client.post(PATH, json=body, headers=held)
    assert changed.status_code == 200
    assert int(changed.headers["kvready-revision"]) > int(first.headers["kvready-revision"])


def test_the_revision_rises_with_every_change_and_with_nothing_else(
    kept: Callable[..., Desk],
) -> None:
    desk = kept()

    def revision() -> int:
        return int(desk.flags().headers["kvready-revision"])

    seen = [revision(), revision()]
    for assignment in (
        Assignment(Arm.TREATED),
        Assignment(Arm.CONTROL),
        Assignment(Arm.TREATED, Split("seed", 0.5)),
    ):
        if desk.state()["mode"] != "canary":
            acting(desk, assignment)
        desk.sidecar.pipeline.canaries.arms.assigned = lambda s, w, a=assignment: a
        seen.append(revision())
    desk.change("POST", "/v1/kill")
    seen.append(revision())
    desk.change("POST", "/v1/revive")
    seen.append(revision())
    assert seen[0] == seen[1]
    assert seen[1:] == sorted(set(seen[1:]))


def test_cells_that_stay_bad_are_named_to_the_policies_that_decide_by_them(
    kept: Callable[..., Desk],
) -> None:
    desk = kept()
    acting(desk)
    before = desk.flags()
    bad = [
        BadCell(Target.INFLIGHT_READY, f"batch ≥{tokens} tokens", 3, ()) for tokens in (128, 256)
    ]
    cells = desk.sidecar.pipeline.gates.signals.bad_cells
    past = {(one.target, one.shape_cell): deque([True] * BAD_WINDOWS) for one in bad}
    cells._past.update(past)
    assert cells.listed == bad
    after = desk.flags()
    assert int(after.headers["kvready-revision"]) > int(before.headers["kvready-revision"])
    told = {flag["key"]: flag["metadata"].get("excluded_cells") for flag in after.json()["flags"]}
    assert told == {"dedup": "; ".join(one.name for one in bad), "balance": None, "gpu_copy": None}
    heard = answer_of(Reply(after.status_code, after.headers, after.content)).switches
    assert heard is not None
    assert heard["dedup"].outside == {one.name for one in bad}


def test_a_flag_names_the_report_on_which_its_policy_acts(kept: Callable[..., Desk]) -> None:
    desk = kept()
    desk.put("dedup", "advise")
    control = desk.sidecar.pipeline.control
    moment = (desk.sidecar.pipeline.last_ingest + 1, control.now_seconds)
    report = gate_report(Policy.DEDUP, Mode.ADVISE, moment)
    desk.sidecar.ask(lambda: control.judge(report, moment))
    assert desk.put("dedup", "canary").status_code == 200
    metadata = desk.flags().json()["flags"][0]["metadata"]
    assert metadata["gate_verdict_id"] == report.report_id
    assert metadata["gate_verdict"] == "pass"
    assert metadata["evidence_end_ingest"] == report.made_ingest
    assert metadata["forced"] is False


def test_prefix_groups_are_drawn_for_who_asks_for_one(kept: Callable[..., Desk]) -> None:
    desk = kept()
    split = Split("seed", 0.5)
    acting(desk, Assignment(Arm.TREATED, split))
    whole = desk.flags().json()["flags"][0]
    assert whole["value"] is False
    assert (whole["metadata"]["split_seed"], whole["metadata"]["split_treated_ratio"]) == (
        "seed",
        0.5,
    )
    for group in (0, 7, 2**64 - 1, str(2**63)):
        flag = desk.flags(prefix_group=group).json()["flags"][0]
        assert flag["value"] is split.treats(int(group))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "PARSE_ERROR"),
        (b"\xff", 400, "PARSE_ERROR"),
        (b"[" * 9_000, 400, "PARSE_ERROR"),
        (b"[]", 400, "INVALID_CONTEXT"),
        (b'{"context": 3}', 400, "INVALID_CONTEXT"),
        (b"{}", 400, "TARGETING_KEY_MISSING"),
        (b'{"context": {"targetingKey": ""}}', 400, "TARGETING_KEY_MISSING"),
        (b'{"context": {"targetingKey": 3}}', 400, "INVALID_CONTEXT"),
        (b'{"context": {"targetingKey": "x", "engine": null}}', 400, "INVALID_CONTEXT"),
        (b'{"context": {"targetingKey": "x", "prefix_group": -1}}', 400, "INVALID_CONTEXT"),
        (b'{"context": {"targetingKey": "x", "prefix_group": true}}', 400, "INVALID_CONTEXT"),
        (b'{"context": {"targetingKey": "x", "anything": [1]}}', 200, None),
    ],
)
def test_errors_are_those_of_the_protocol(
    kept: Callable[..., Desk], body: bytes, status: int, code: str | None
) -> None:
    desk = kept()
    for path in (PATH, f"{PATH}/dedup"):
        headers = {"content-type": "application/json"}
        answer = desk.client.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json().get("errorCode")) == (status, code)


def test_a_flag_that_is_none_is_not_found(kept: Callable[..., Desk]) -> None:
    body = {"context": {"targetingKey": "x"}}
    answer = kept().client.post(f"{PATH}/weather", json=body)
    assert answer.status_code == 404
    assert answer.json()["errorCode"] == "FLAG_NOT_FOUND"
    assert answer.json()["key"] == "weather"


def test_one_address_cannot_keep_all_others_out(
    kept: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ofrep_api, "BURST", 2)
    desk = kept()
    answers = [desk.flags() for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.fixture
def served(short_dir: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)
    monkeypatch.setenv("XDG_STATE_HOME", str(short_dir))
    monkeypatch.delenv(KILL_VARIABLE, raising=False)
    command = ("serve", "--kv-events", f"ipc://{short_dir}/none", "--state-dir", short_dir / "s")
    with serving(*command, port=free_port) as running:
        yield running


def test_the_openfeature_sdk_and_our_client_hear_the_same_of_a_real_server(served: Any) -> None:
    provider = OFREPProvider(served.url)
    context = EvaluationContext("sdk", {"engine": "vllm"})
    from openfeature import api

    api.set_provider(provider)
    sdk = api.get_client()
    client = FlagClient(served.url, "hook")
    try:
        for policy in Policy:
            details = sdk.get_boolean_details(policy.value, True, context)
            assert (details.value, details.variant, details.error_code) == (False, "off", None)
            assert details.flag_metadata["mode"] == "shadow"
        missing = sdk.get_boolean_details("weather", False, context)
        assert (missing.value, missing.error_code) == (False, ErrorCode.FLAG_NOT_FOUND)
        nameless = sdk.get_boolean_details("dedup", False, EvaluationContext())
        assert nameless.error_code is ErrorCode.TARGETING_KEY_MISSING
        assert client.ask() is Heard.ANSWERED, client.problem
        assert client.ask() is Heard.UNCHANGED, client.problem
        assert not any(client.is_on(policy) for policy in Policy)
        token = {"authorization": f"Bearer {ADMIN}"}
        killed = served.client.post("/v1/kill", json={"reason": "a test"}, headers=token)
        assert killed.status_code == 200
        assert str(sdk.get_boolean_details("dedup", True, context).reason) == "DISABLED"
        assert client.ask() is Heard.ANSWERED
    finally:
        client.stop()
        api.shutdown()
        provider.session.close()
