"""The page as it is rendered: for whom, how often, and with nothing in it that could run."""

from __future__ import annotations

import gzip
import html
import math
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from gate_reports import gate_report
from hypothesis import given
from hypothesis import strategies as st
from served import AppClient
from story import Story, prefill
from test_policy_api import ADMIN, Desk, kept  # noqa: F401 - a fixture

from kvready.advisor.contract import Evidence
from kvready.advisor.ledger import Forecast, Pair, PairState, Target
from kvready.advisor.modes import TABLE, Kind, Trigger, row_for
from kvready.advisor.policies import MODES, Mode, Overlay, Policy, PolicyState, Scope
from kvready.advisor.report import Report, build_report
from kvready.advisor.service import page_api, page_plots
from kvready.advisor.service.app import create_app
from kvready.advisor.service.page_buttons import buttons
from kvready.advisor.service.page_files import FILES
from kvready.advisor.service.policy_models import PolicyDetail
from kvready.advisor.service.policy_view import PolicyModel
from kvready.advisor.service.sidecar import Replayed, Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.settings import OPERATOR_VARIABLE, Settings

HOSTILE = """"'><script>window.pwned=1</script><img src=x onerror=alert(1)>&amp;${x}`</svg>"""
TAGS = frozenset(
    {"a", "article", "b", "body", "button", "circle", "code", "dd", "details", "dialog", "div",
     "dl", "dt", "figure", "form", "g", "h1", "h2", "h3", "head", "header", "html", "input",
     "label", "li", "link", "main", "meta", "nav", "noscript", "ol", "option", "p", "path", "rect",
     "script", "section", "select", "span", "summary", "svg", "table", "tbody", "td", "text", "th",
     "thead", "time", "title", "tr", "ul"}
)  # fmt: skip
VOID = frozenset({"input", "link", "meta"})


class Read(HTMLParser):
    """What a document is made of."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.unclosed: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def check_that_nothing_runs(document: str) -> Read:
    """Only our own elements, no handler, no style, nothing from elsewhere."""
    read = Read(document)
    assert not read.unclosed
    identities = [about["id"] for _, about in read.tags if "id" in about]
    assert len(identities) == len(set(identities))
    for tag, about in read.tags:
        assert tag in TAGS, tag
        assert not any(name.startswith("on") or name == "style" for name in about), about
        for name in ("src", "href", "action", "xlink:href"):
            if name in about:
                assert re.fullmatch(r"static/[a-z0-9.-]+|#[a-z-]+|\?target=[a-z_]+", about[name])
        if tag == "script":
            assert set(about) == {"src", "defer"}
    scripts = document.count("<script")
    assert scripts == sum(tag == "script" for tag, _ in read.tags) <= 1
    return read


@pytest.fixture
def replayed(told_story: Story) -> Iterator[AppClient]:
    told = Replayed("story.kvr", Evidence.SIMULATED, {"told by": "a test"})
    sidecar = Sidecar(Settings(), told_story.pipeline, PairTally(), replayed=told)
    sidecar.start()
    yield AppClient(create_app(sidecar))
    sidecar.stop()


def test_it_shows_what_a_replay_tells_and_offers_no_command(replayed: AppClient) -> None:
    answer = replayed.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    read = check_that_nothing_runs(answer.text)
    for text in ("replay of story.kvr", "evidence: simulated", "prefill", "told by", "SIMULATED"):
        assert text in read.text
    assert "no engine is attached" in read.text
    assert not [about for tag, about in read.tags if tag == "button" and "data-do" in about]
    assert sum(tag == "svg" for tag, _ in read.tags) > 2
    for target in Target:
        other = replayed.get("/", params={"target": target})
        assert f"Predicted against actual: {target}" in check_that_nothing_runs(other.text).text
    assert replayed.get("/", params={"target": "weather"}).status_code == 422


def test_what_it_may_load_is_its_own_and_named_by_what_it_holds(replayed: AppClient) -> None:
    answer = replayed.get("/")
    policy = dict(
        one.strip().partition(" ")[::2]
        for one in answer.headers["content-security-policy"].split(";")
    )
    assert policy.pop("default-src") == "'none'"
    assert {name for name, value in policy.items() if value == "'self'"} == {
        "script-src", "style-src", "img-src", "connect-src",
    }  # fmt: skip
    assert {name for name, value in policy.items() if value == "'none'"} == {
        "base-uri", "form-action", "frame-ancestors",
    }  # fmt: skip
    assert answer.headers["cache-control"] == "no-store"
    read = Read(answer.text)
    asked = {
        about.get("src") or about["href"] for tag, about in read.tags if tag in ("script", "link")
    }
    assert asked == set(FILES)
    for path, file in FILES.items():
        found = replayed.get(f"/{path}")
        assert (found.status_code, found.content) == (200, file.content)
        assert found.headers["content-type"] == file.media_type
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["x-content-type-options"] == "nosniff"
    for path in ("/static/page.js", "/static/..%2fpage.html", "/static/page-0.js"):
        assert replayed.get(path).status_code == 404


def test_nothing_of_the_files_reaches_for_a_store_or_makes_code_of_text() -> None:
    script = next(file.content.decode() for file in FILES.values() if file.path.endswith(".js"))
    for word in ("localStorage", "sessionStorage", "cookie", "indexedDB", "innerHTML", "eval(",
                 "outerHTML", "insertAdjacentHTML", "document.write", "Function("):  # fmt: skip
        assert word not in script, word
    assert not re.search(r"https?://", script)
    for path, file in FILES.items():
        assert len(file.content.decode().splitlines()) <= 400, path


def test_whatever_an_engine_or_a_person_says_is_text(kept: Callable[..., Desk]) -> None:  # noqa: F811
    desk = kept()
    story_of = desk.sidecar.pipeline
    hostile = Story()
    hostile.tell(0.0, msgspec.structs.replace(story_of.engine, model=HOSTILE, engine=HOSTILE))
    for number in range(3):
        name, at = f"{HOSTILE}{number}", 1.0 + number
        chain = tuple(range(10 * number, 10 * number + 4))
        hostile.arrives(at, name, chain)
        hostile.scheduled(at + 0.1, name)
        hostile.batch(at + 0.1, at + 0.3, prefill(name, 136))
        hostile.first_token(at + 0.3, name)
        hostile.finished(at + 0.4, name)

    def told() -> None:
        for item in hostile.told:
            story_of.ingest(item)

    desk.sidecar.ask(told)
    words = "".join(one for one in HOSTILE if one.isprintable())
    body = {"reason": words, "actor": words, "engine": words, "request_class": words[:40]}
    moved = desk.put("dedup", "advise", body=body)
    assert moved.status_code == 200, moved.text
    for target in (Target.TTFT, Target.PREFILL):
        page = desk.client.get("/", params={"target": target})
        read = check_that_nothing_runs(page.text)
        assert f"{HOSTILE}2: predicted" in read.text, "a request's id, as a plot's tip tells it"
        assert read.text.count(words) >= 4, "engine, reason, actor and scope"
    buttons_ = [about for tag, about in read.tags if tag == "button" and "data-scope" in about]
    scopes = [msgspec.json.decode(about["data-scope"], type=Scope) for about in buttons_]
    assert Scope(engine=words, request_class=words[:40]) in scopes


def test_beyond_loopback_evidence_and_audit_are_for_who_has_a_token(
    kept: Callable[..., Desk],  # noqa: F811
) -> None:
    desk = kept(require_token=True)
    desk.put("dedup", "advise", body={"reason": "seen by few"})
    pipeline = desk.sidecar.pipeline
    report = gate_report(Policy.DEDUP, Mode.ADVISE, pipeline.moment)
    desk.sidecar.ask(lambda: pipeline.control.reports.keep(report))
    for path in ("/", "/page/live"):
        for headers in ({}, {"authorization": "Bearer wrong-token-01234"}):
            shut = Read(desk.client.get(path, headers=headers).text)
            assert "want a token here" in shut.text
            assert not {"audit", "audit-title"} & {about.get("id") for _, about in shut.tags}
            assert "Evidence:" not in shut.text
            assert not re.search(r"canary lacks|in the way of", shut.text)
            assert not [about for _, about in shut.tags if "data-forcible" in about]
        opened = desk.client.get(path, headers={"authorization": f"Bearer {ADMIN}"})
        assert "want a token" not in opened.text
        assert "Audit, newest first" in opened.text
        assert "canary lacks" in opened.text
        assert "data-forcible" in opened.text
        assert "Evidence: pass, 2 of 2 checks pass" in opened.text


def test_without_any_token_it_says_how_to_have_one(
    kept: Callable[..., Desk],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(OPERATOR_VARIABLE)
    monkeypatch.delenv("KVREADY_ADMIN_TOKEN")
    read = Read(kept().client.get("/").text)
    assert "--admin-token-file" in read.text
    assert not [about for tag, about in read.tags if "data-do" in about]


def test_many_viewers_cost_one_rendering(
    replayed: AppClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    render = page_api.render_live
    monkeypatch.setattr(page_api, "LOOK_SECONDS", 1_000.0)
    monkeypatch.setattr(page_api, "render_live", lambda one: made.append(0.0) or render(one))
    answers = {replayed.get("/page/live").text for _ in range(5)}
    assert len(made) == len(answers) == 1
    plain = replayed.get("/page/live", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text in answers
    assert plain.headers["cache-control"] == "no-store"
    assert plain.headers["connection"] == "close", "who looks holds no connection in between"


def test_a_move_is_seen_by_whoever_looks_next(
    kept: Callable[..., Desk],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_api, "LOOK_SECONDS", 1_000.0)
    desk = kept()
    for mode in ("advise", "observe", "shadow"):
        before = desk.client.get("/page/live").text
        assert before == desk.client.get("/page/live").text
        assert f"reason is {mode}" not in before
        desk.put("dedup", mode, body={"reason": f"reason is {mode}"})
        assert f"reason is {mode}" in desk.client.get("/page/live").text


def test_a_page_that_stays_open_costs_a_bounded_share_of_the_thread_that_thinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, made = [100.0], []

    def make() -> Report:
        now[0] += 0.25
        made.append(now[0])
        return report

    report = build_report(Story().pipeline)
    monkeypatch.setattr(page_api, "time", SimpleNamespace(monotonic=lambda: now[0]))
    keeps = page_api._KeptReport(make)
    for _ in range(600):  # a look a second, for ten minutes
        assert keeps() is report
        now[0] += 1.0
    assert 0.25 * len(made) / (now[0] - 100.0) <= page_api.REPORT_SHARE
    assert len(made) > 60, "and yet it is renewed"


def test_where_nothing_can_be_looked_at_the_kill_switch_is_still_there(
    kept: Callable[..., Desk],  # noqa: F811
) -> None:
    desk = kept()
    desk.sidecar.stop()
    answer = desk.client.get("/")
    assert answer.status_code == 503
    read = check_that_nothing_runs(answer.text)
    assert "restart it" in read.text
    assert [about["data-do"] for _, about in read.tags if "data-do" in about] == ["kill"]
    assert str(desk.sidecar.desk.folder / "kill") in answer.text
    live = desk.client.get("/page/live")
    assert live.status_code == 503
    assert live.headers["content-type"] == "application/problem+json"


def test_an_audit_that_cannot_be_read_is_told_and_the_rest_shown(
    kept: Callable[..., Desk],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(folder: Path, count: int) -> list[object]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(page_api, "tail", refuse)
    read = Read(kept().client.get("/").text)
    assert "The audit cannot be read: Permission denied." in read.text
    assert "Wait before the first token" in read.text


# Buttons ----------------------------------------------------------------------------------------


def offered(state: PolicyState) -> list[dict[str, str]]:
    detail = PolicyDetail(**PolicyModel.of(state, 0.0).model_dump(), next_step=None, evidence=None)
    return [about for tag, about in Read(buttons(detail)).tags if tag == "button"]


@pytest.mark.parametrize("overlay", list(Overlay))
@pytest.mark.parametrize("mode", list(Mode))
def test_every_button_is_a_move_that_there_is_and_no_move_of_a_person_lacks_one(
    mode: Mode, overlay: Overlay
) -> None:
    state = PolicyState(policy=Policy.BALANCE, mode=mode, overlay=overlay, next_version="2")
    moves: set[Trigger] = set()
    for about in offered(state):
        asked = [Mode(one) for one in about.get("data-modes", "").split()]
        for to in asked:
            lower = to.rank < mode.rank
            moves.add(Trigger.LOWER if lower else Trigger(to.value) if to.acts else Trigger.RAISE)
        if not asked:
            moves.add(Trigger(about["data-do"]))
        acts = any(one.acts for one in asked) or (
            about["data-do"] in ("resume", "adopt") and mode.acts
        )
        assert ("data-word" in about) == acts, "what lets it act is confirmed by a word"
    people = {row.trigger for row in TABLE if row.who is Kind.PERSON} - {Trigger.TRY}
    possible = {trigger for trigger in people if row_for(trigger, state) is not None}
    if overlay is Overlay.PAUSED:
        possible.discard(Trigger.PAUSE)  # it is
    if mode is MODES[MODES.index(Mode.CANARY) - 1]:
        possible.discard(Trigger.RAISE)  # nothing but canary is above
    if mode is Mode.OFF:
        possible.discard(Trigger.LOWER)
    assert moves == possible


def test_buttons_of_two_scopes_are_told_apart() -> None:
    states = [
        PolicyState(policy=Policy.DEDUP, scope=scope)
        for scope in (Scope(), Scope(engine="a"), Scope(pool="a"), Scope(engine="a", pool="b"))
    ]
    names = [about["id"] for state in states for about in offered(state)]
    assert len(names) == len(set(names)) == 8


# Pictures ---------------------------------------------------------------------------------------

SECONDS = st.floats(0.0, 1e7) | st.sampled_from([0.0, 1e-9, 1e-4, 1.0, 1e6])


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    low, p50, high = sorted(draw(SECONDS) for _ in range(3))
    forecast = Forecast(1, Target.TTFT, HOSTILE, 1, 0.0, draw(SECONDS), p50, low, high, "s", "m")
    return Pair(forecast, PairState.PAIRED, draw(SECONDS), 2)


@given(st.lists(pairs(), min_size=1, max_size=20))
def test_every_mark_lies_on_its_picture(found: list[Pair]) -> None:
    for picture in (page_plots.scatter(found), page_plots.over_time(found)):
        read = check_that_nothing_runs(picture)
        assert HOSTILE in read.text
        (_, top), *_ = read.tags
        assert page_plots.said(found) in top["aria-label"]
        numbers = re.findall(r'(?:[ "MLHVlhv])(-?[\d.]+(?:e-?\d+)?|nan|inf)', html.unescape(
            re.sub(r"<title>.*?</title>|aria-label=\"[^\"]*\"", "", picture, flags=re.S)
        ))  # fmt: skip
        assert all(math.isfinite(float(one)) for one in numbers)
        dots = [about for tag, about in read.tags if tag == "circle"]
        assert len(dots) == sum(bool(pair.covered) for pair in found)
        for dot in dots:
            assert page_plots.LEFT - 1 <= float(dot["cx"]) <= page_plots.WIDTH
            assert 0 <= float(dot["cy"]) <= page_plots.HEIGHT - page_plots.BOTTOM + 1


def test_an_answer_is_packed_for_who_can_unpack(replayed: AppClient) -> None:
    answer = replayed.get("/page/live", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(gzip.compress(answer.content)) < len(answer.content) / 3
    assert check_that_nothing_runs(answer.text).text.startswith("kvready")
