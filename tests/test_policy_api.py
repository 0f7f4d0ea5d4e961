"""Policies over HTTP: who may change what, done once, refused with what it lacks; flags beside."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import AppClient
from story import Story

from kvready.advisor.kill_switch import KILL_VARIABLE
from kvready.advisor.modes import Need
from kvready.advisor.service import policy_api
from kvready.advisor.service.app import create_app
from kvready.advisor.service.policy_desk import PolicyDesk
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import ADMIN_VARIABLE, OPERATOR_VARIABLE, Settings

OPERATOR, ADMIN, READER = "operator-token-0123", "admin-token-0123456", "reader-token-0123456"


class Desk:
    """A sidecar that keeps policies, and the calls that change them."""

    def __init__(self, folder: Path, **api: object) -> None:
        settings = Settings(
            api=api,
            policies={"policy_folder": folder / "policies"},  # type: ignore[arg-type]
        )
        desk = PolicyDesk(settings)
        story = Story()
        story.pipeline.control._on_transition = desk.keeper.heard
        self.sidecar = Sidecar(settings, story.pipeline, PairTally(), desk=desk)
        desk.open()
        self.sidecar.start()
        self.app = create_app(self.sidecar)
        self.client = AppClient(self.app)

    def change(
        self, method: str, path: str, token: str = ADMIN, key: str = "", **options: Any
    ) -> httpx.Response:
        headers = {
            "authorization": f"Bearer {token}",
            "idempotency-key": key or uuid.uuid4().hex,
            "if-match": options.pop("match", "*"),
        }
        body = {"reason": "a test"} | options.pop("body", {})
        return self.client.request(method, path, json=body, headers=headers, **options)

    def put(self, policy: str, mode: str, **options: Any) -> httpx.Response:
        body = {"mode": mode} | options.pop("body", {})
        return self.change("PUT", f"/v1/policies/{policy}", body=body, **options)

    def state(self, policy: str = "dedup") -> dict[str, Any]:
        found = self.client.get("/v1/policies").json()["policies"]
        return next(one for one in found if one["policy"] == policy)

    def flags(self, **context: object) -> httpx.Response:
        body = {"context": {"targetingKey": "hook", **context}}
        return self.client.post("/ofrep/v1/evaluate/flags", json=body)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Desk]]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(KILL_VARIABLE, raising=False)
    monkeypatch.setenv(OPERATOR_VARIABLE, OPERATOR)
    monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)
    monkeypatch.setattr(policy_api, "BURST", 1_000_000)
    made: list[Desk] = []

    def make(**api: object) -> Desk:
        made.append(Desk(tmp_path, **api))
        return made[-1]

    yield make
    for one in made:
        one.sidecar.stop()


def test_a_mode_is_set_once_and_kept_with_who_and_why(kept: Callable[..., Desk]) -> None:
    desk = kept()
    key = "one-key"
    seen = desk.state()
    body = {"reason": "to see it", "actor": "ada"}
    first = desk.put(
        "dedup", "advise", token=OPERATOR, key=key, match=f'"{seen["revision"]}"', body=body
    )
    assert first.status_code == 200, first.text
    assert first.json()["after"]["mode"] == "advise"
    again = desk.put(
        "dedup", "advise", token=OPERATOR, key=key, match=f'"{seen["revision"]}"', body=body
    )
    assert again.content == first.content
    assert again.headers["etag"] == first.headers["etag"]
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (
        None,
        "true",
    )
    assert desk.put("dedup", "off", token=OPERATOR, key=key).status_code == 422
    assert desk.state()["revision"] == seen["revision"] + 1
    moved = [e for e in desk.client.get("/v1/audit").json()["entries"] if e["event"] == "moved"]
    assert [(e["actor"], e["reason"], e["kind"]) for e in moved] == [
        ("operator/ada", "to see it", "person")
    ]


def test_who_saw_another_revision_changes_nothing(kept: Callable[..., Desk]) -> None:
    desk = kept()
    before = desk.state()
    stale = desk.put("dedup", "advise", match=f'"{before["revision"] + 5}"')
    assert stale.status_code == 412
    assert stale.headers["etag"] == f'"{before["revision"]}"'
    assert Need.REVISION in [lack["need"] for lack in stale.json()["lacks"]]
    assert desk.state() == before


def test_a_dry_run_says_what_would_be_and_changes_nothing(kept: Callable[..., Desk]) -> None:
    desk = kept()
    before = desk.state()
    tried = desk.put("dedup", "advise", body={"dry_run": True})
    assert (tried.status_code, tried.json()["after"]["mode"]) == (200, "advise")
    assert desk.state() == before
    heard = desk.sidecar.ask(lambda: desk.sidecar.pipeline.control.now_seconds)
    for _ in range(3):
        desk.client.get("/v1/policies")
    assert desk.sidecar.ask(lambda: desk.sidecar.pipeline.control.now_seconds) == heard


def test_what_a_promotion_lacks_is_named_and_only_an_admin_may_force_it(
    kept: Callable[..., Desk],
) -> None:
    desk = kept()
    assert desk.put("dedup", "advise").status_code == 200
    refused = desk.put("dedup", "canary")
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    step = desk.state()["next_step"]
    assert (step["action"], step["forcible"]) == ("canary", True)
    assert step["lacks"] == refused.json()["lacks"] != []
    assert desk.put("dedup", "canary", token=OPERATOR).status_code == 403
    forced = desk.put("dedup", "canary", body={"forced": True})
    assert (forced.status_code, forced.json()["after"]["forced"]) == (200, True)


def test_an_operator_may_hold_policies_and_never_let_them_act(kept: Callable[..., Desk]) -> None:
    desk = kept()
    desk.put("dedup", "advise")
    desk.put("dedup", "canary", body={"forced": True})
    paused = desk.change("POST", "/v1/policies/dedup/pause", OPERATOR)
    assert paused.json()["after"]["overlay"] == "paused"
    for action in ("resume", "clear", "adopt"):
        refused = desk.change("POST", f"/v1/policies/dedup/{action}", OPERATOR)
        assert refused.status_code == 403, action
    assert desk.change("POST", "/v1/revive", OPERATOR).status_code == 403
    assert desk.put("dedup", "off", token=OPERATOR, body={"forced": True}).status_code == 403
    assert desk.put("dedup", "observe", token=OPERATOR).status_code == 200
    killed = desk.change("POST", "/v1/kill", OPERATOR)
    assert killed.json()["held_by"] == ["file", "api"]


def test_a_kill_is_at_once_and_a_revive_that_is_sent_again_does_not_undo_a_later_one(
    kept: Callable[..., Desk],
) -> None:
    desk = kept()
    desk.put("dedup", "advise")
    desk.put("dedup", "canary", body={"forced": True})
    assert desk.change("POST", "/v1/kill").status_code == 200
    assert all(f["reason"] == "DISABLED" for f in desk.flags().json()["flags"])
    revived = desk.change("POST", "/v1/revive", key="again")
    assert revived.json()["held_by"] == []
    desk.change("POST", "/v1/kill")
    assert desk.change("POST", "/v1/revive", key="again").json() == revived.json()
    assert all(f["reason"] == "DISABLED" for f in desk.flags().json()["flags"])
    desk.change("POST", "/v1/revive")
    _until(lambda: not desk.client.get("/v1/policies").json()["control"]["killed_by"])
    _until(lambda: desk.state()["overlay"] == "none")
    assert desk.state()["mode"] == "advise", "reviving starts nothing"


def test_a_kill_works_while_the_ingest_thread_hangs(kept: Callable[..., Desk]) -> None:
    desk = kept()
    held = threading.Event()
    desk.sidecar.submit(lambda: held.wait(20.0))
    assert desk.flags().status_code == 503, "nothing is renewed"
    assert desk.change("POST", "/v1/kill").status_code == 200
    answer = desk.flags()
    held.set()
    assert answer.status_code == 200
    assert not any(flag["value"] for flag in answer.json()["flags"])


def test_nothing_changes_without_a_valid_token(
    kept: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = kept()
    before = desk.client.get("/v1/policies").json()
    for header in (None, "", "Bearer", "Bearer ", f"Basic {ADMIN}", f"Bearer {ADMIN}x", "Bearer é"):
        for method, path in CHANGING:
            headers = {} if header is None else {"authorization": header.encode("latin-1")}
            body = {"reason": "r", "mode": "off"} if method == "PUT" else {"reason": "r"}
            headers |= {"if-match": "*", "idempotency-key": "k"}
            answer = desk.client.request(method, path, json=body, headers=headers)
            assert answer.status_code == 401, (header, path)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert desk.client.get("/v1/policies").json() == before
    monkeypatch.delenv(OPERATOR_VARIABLE)
    monkeypatch.delenv(ADMIN_VARIABLE)
    desk.sidecar.stop()
    untokened = kept()
    assert untokened.change("POST", "/v1/kill").status_code == 403
    assert "admin_token_file" in untokened.change("POST", "/v1/kill").text


CHANGING = [
    ("PUT", "/v1/policies/dedup"),
    *(("POST", f"/v1/policies/dedup/{a}") for a in ("pause", "resume", "clear", "try", "adopt")),
    ("POST", "/v1/kill"),
    ("POST", "/v1/revive"),
]


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("PUT", "/v1/policies/weather", {"body": {"mode": "off"}}, 404),
        ("POST", "/v1/policies/dedup/dance", {}, 404),
        ("POST", "/v1/policies/dedup/set", {}, 404),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "fly"}}, 422),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off", "reason": "  "}}, 422),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off", "reason": "a\x1b[2J"}}, 422),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off", "reason": "a" * 501}}, 422),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off", "surprise": 1}}, 422),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off"}, "match": "7"}, 400),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off"}, "match": 'W/"7"'}, 400),
        ("PUT", "/v1/policies/dedup", {"body": {"mode": "off"}, "key": "two words"}, 400),
    ],
)
def test_what_is_malformed_is_a_problem_of_the_callers(
    kept: Callable[..., Desk], method: str, path: str, options: dict[str, Any], status: int
) -> None:
    desk = kept()
    before = desk.state()
    answer = desk.change(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert desk.state() == before


def test_headers_that_a_command_needs_are_asked_for(kept: Callable[..., Desk]) -> None:
    desk = kept()
    token = {"authorization": f"Bearer {ADMIN}"}
    body = {"mode": "off", "reason": "r"}
    bare = desk.client.request("PUT", "/v1/policies/dedup", json=body, headers=token)
    assert (bare.status_code, "If-Match" in bare.text) == (428, True)
    matched = token | {"if-match": "*"}
    keyless = desk.client.request("PUT", "/v1/policies/dedup", json=body, headers=matched)
    assert (keyless.status_code, "Idempotency-Key" in keyless.text) == (428, True)
    pause = desk.client.post("/v1/policies/dedup/pause", json={"reason": "r"}, headers=token)
    assert pause.status_code == 409, "what stops a policy asks for nothing but token and reason"


def test_bodies_and_calls_are_bounded(
    kept: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = kept()
    headers = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
    long = desk.client.post("/v1/kill", content=b" " * 20_000, headers=headers)
    assert long.status_code == 413
    assert (
        desk.client.post(
            "/v1/kill", content=b"{}", headers={"authorization": f"Bearer {ADMIN}"}
        ).status_code
        == 415
    )
    monkeypatch.setattr(policy_api, "BURST", 3)
    client = AppClient(create_app(desk.sidecar))
    statuses = [client.post("/v1/kill", json={}).status_code for _ in range(5)]
    assert statuses == [401, 401, 401, 429, 429], "guessing tokens counts, too"
    assert int(client.post("/v1/kill", json={}).headers["retry-after"]) >= 1


def test_a_recording_is_shown_and_cannot_be_commanded(
    told_story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)
    replayed = Replayed("story.kvr", "simulated", {})
    sidecar = Sidecar(Settings(), told_story.pipeline, PairTally(), replayed=replayed)
    sidecar.start()
    try:
        client = AppClient(create_app(sidecar))
        assert client.get("/v1/policies").status_code == 200
        assert client.get("/v1/audit").json()["entries"] == []
        answer = client.post(
            "/v1/kill", json={"reason": "r"}, headers={"authorization": f"Bearer {ADMIN}"}
        )
        assert answer.status_code == 409
        body = {"context": {"targetingKey": "x"}}
        flags = client.post("/ofrep/v1/evaluate/flags", json=body).json()["flags"]
        assert not any(flag["value"] for flag in flags)
    finally:
        sidecar.stop()


def test_beyond_loopback_reading_wants_a_token_of_any_role(
    kept: Callable[..., Desk], tmp_path: Path
) -> None:
    file = tmp_path / "reader"
    file.write_text(READER)
    file.chmod(0o600)
    desk = kept(host="0.0.0.0", token_file=file)
    for path in ("/v1/policies", "/v1/audit", "/v1/gates?policy=dedup"):
        assert desk.client.get(path).status_code == 401
        for token in (READER, OPERATOR, ADMIN):
            answer = desk.client.get(path, headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == 200
    assert desk.flags().status_code == 401
    assert desk.change("POST", "/v1/kill", READER).status_code == 403


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def test_the_documents_are_those_that_the_description_names(kept: Callable[..., Desk]) -> None:
    desk = kept()
    described = desk.client.get("/openapi.json").json()["paths"]
    assert {path for path in described if "polic" in path or "kill" in path} == {
        "/v1/policies", "/v1/policies/{policy}", "/v1/policies/{policy}/{action}", "/v1/kill"
    }  # fmt: skip
    json.dumps(described)
