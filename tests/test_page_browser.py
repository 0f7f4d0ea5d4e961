"""The page in a real browser: renewed, commanded, read aloud, small, dark, and left alone."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import httpx
import pytest
from page_scene import ADMIN, OPERATOR, Shown, attached, button, engine
from served import Served, free_port, serving
from story import Story, prefill

from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter

HOSTILE = """"'><img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"""
RAISE, LOWER = button("dedup", modes="advise"), button("dedup", modes="shadow observe off")

if browser.chromium() is None and not os.environ.get("CI"):
    pytest.skip("chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """One for all; whatever broke the content policy or a script anywhere fails at the end."""
    with browser.browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made
        assert made.console == []


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kv"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sidecars of one user share a kill file: those here have one of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def url(sockets: Path, state_home: None) -> Iterator[str]:
    with engine(sockets) as found:
        yield found


@pytest.fixture(scope="module")
def sidecar(url: str, sockets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with attached(url, sockets, tmp_path_factory.mktemp("sidecar"), free_port()) as made:
        made.wait_for(lambda: len(made.get("/v1/pairs?target=ttft&limit=30").json()) == 30, 120.0)
        yield made


@pytest.fixture
def page(chromium: browser.Browser, sidecar: Served) -> Iterator[Shown]:
    shown = Shown(chromium, sidecar.url)
    yield shown
    shown.close()


def standing(sidecar: Served, policy: str = "dedup") -> dict[str, Any]:
    found = sidecar.get("/v1/policies").json()["policies"]
    return next(one for one in found if one["policy"] == policy)


def commanded(sidecar: Served, mode: str, match: str = "*") -> httpx.Response:
    headers = {
        "authorization": f"Bearer {ADMIN}",
        "if-match": match,
        "idempotency-key": os.urandom(8).hex(),
    }
    body = {"reason": "from elsewhere", "mode": mode}
    return sidecar.client.put("/v1/policies/dedup", json=body, headers=headers)


# Looking ----------------------------------------------------------------------------------------


def test_it_is_renewed_without_a_reload_and_without_disturbing_who_reads(page: Shown) -> None:
    page.run(
        "window.marker = 1, window.news = 0, document.querySelector('#newest').open = true,"
        "document.querySelector('#newest summary').focus(),"
        "new MutationObserver(() => window.news++).observe(document.querySelector('#freshness'),"
        "{childList: true, characterData: true, subtree: true})"
    )
    count = "document.querySelector('#predictions').textContent"
    for _ in range(2):
        seen = page.run(count)
        page.run(f"window.seen = {count}")
        page.wait(f"window.seen !== {count}")
        assert page.run(count) != seen
    assert page.run("window.marker") == 1, "the document is the same one"
    assert page.run("document.querySelector('#newest').open"), "what was unfolded stays so"
    assert page.run("document.activeElement === document.querySelector('#newest summary')")
    assert page.run("window.news") == 0, "nothing is read aloud at every look"
    page.picture("light")


def test_what_comes_and_goes_around_a_part_leaves_it_as_the_reader_has_it(page: Shown) -> None:
    page.run(
        "window.kept = document.querySelector('#newest'), window.kept.open = true,"
        "window.kept.querySelector('summary').focus(),"
        "window.looks = 0, window.really = window.fetch, window.fetch = async (...asked) => {"
        "const text = await (await window.really(...asked)).text();"
        "const extra = '<p>more</p>text<details id=x></details>'.repeat(window.looks++ % 2);"
        "return new Response(text.replace('<details id=\"newest\"', extra + '$&'))}"
    )
    for look in range(2, 6):
        page.wait(f"window.looks >= {look}")
        page.wait("Boolean(document.querySelector('#x')) === (window.looks % 2 === 0)")
    assert page.run("window.kept === document.querySelector('#newest') && window.kept.open")
    assert page.run("document.activeElement === window.kept.querySelector('summary')")


def test_another_target_is_a_step_away_and_can_be_linked_to(page: Shown) -> None:
    page.click("#target-batch_compute")
    page.says("Predicted against actual: batch_compute", "#predictions")
    assert page.run("location.search") == "?target=batch_compute"
    page.wait("document.querySelectorAll('#predictions .plot circle').length > 20")


def test_a_screen_reader_finds_landmarks_headings_and_a_name_for_everything(page: Shown) -> None:
    found = page.named()
    roles = [role for role, _ in found]
    for role in ("banner", "main", "navigation", "status"):
        assert role in roles, role
    headings = [name for role, name in found if role == "heading"]
    assert headings[0].startswith("kvready")
    assert {"Policies", "Taps", "Audit, newest first"} <= set(headings)
    wanted = {"button", "link", "image", "textbox", "table", "region", "navigation"}
    assert not [one for one in found if one[0] in wanted and not one[1]]
    assert any("inside their interval" in name for role, name in found if role == "image")
    names = [name for role, name in found if role == "button"]
    assert len(names) == len(set(names)), "no two buttons sound alike"


CONTRAST = """(() => {
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const over = (top, under) => {
    const alpha = top[3] ?? 1;
    return [0, 1, 2].map((i) => top[i] * alpha + under[i] * (1 - alpha));
  };
  const behind = (one) => {
    if (!one) return [255, 255, 255];
    return over(parsed(getComputedStyle(one).backgroundColor), behind(one.parentElement));
  };
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
    const part = rgb[i] / 255;
    return sum + share * (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  return [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    && one.tagName !== "title").map((one) => {
      const style = getComputedStyle(one);
      const ground = behind(one);
      const ink = over(parsed(one.closest("svg") ? style.fill : style.color), ground);
      const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), one.textContent.slice(0, 40)];
    }).filter(([ratio]) => ratio < 4.5);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_light_or_dark_as_the_reader_has_it_and_legible_in_both(
    page: Shown, scheme: str
) -> None:
    page.prefer(scheme)
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    bright = page.run(f"{ground}.every((one) => one > 200)")
    assert bright == (scheme == "light")
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert page.run(CONTRAST) == []
    page.picture(scheme + "-unfolded")


def test_on_a_phone_nothing_is_beside_the_screen(page: Shown) -> None:
    beside = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    for width in (390, 320):
        page.view(width, 780, mobile=True, scale=2.0)
        page.picture(f"phone-{width}")
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert page.run(beside) <= 0
        assert page.run("innerWidth") == width
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = false })")
    small = "[...document.querySelectorAll('button')].filter((one) => one.checkVisibility())"
    assert page.run(f"{small}.every((one) => one.getBoundingClientRect().height >= 40)")
    page.click("#do-kill")
    box = page.run("document.querySelector('#command').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= 320
    assert page.run(beside) <= 0
    page.picture("phone-dialog", whole=False)


# Commanding -------------------------------------------------------------------------------------


def test_a_policy_is_flipped_by_who_has_the_token_and_by_nobody_else(
    page: Shown, sidecar: Served
) -> None:
    commanded(sidecar, "shadow")
    page.wait(f"document.querySelector({RAISE!r})")
    page.ask(RAISE, "to see what it would do")
    page.answered("Give the token")
    page.fill("#command-token", "wrong-token-0123456")
    page.click("#command-go")
    page.answered("The token is wrong")
    page.picture("wrong-token", whole=False)
    assert standing(sidecar)["mode"] == "shadow"
    page.fill("#command-token", OPERATOR)
    page.click("#command-go")
    page.answered("It can be done: dedup would go from shadow to advise")
    assert standing(sidecar)["mode"] == "shadow", "it was only asked"
    page.picture("checked", whole=False)
    page.done("dedup: shadow → advise")
    assert standing(sidecar)["mode"] == "advise"
    page.says("to see what it would do", "#audit")
    page.says("operator", "#audit")
    # The token is in the page's memory and nowhere that outlives it or can be read from there.
    held = page.run(
        "[localStorage.length, sessionStorage.length, document.cookie, location.href,"
        f"document.documentElement.outerHTML.includes({OPERATOR!r}),"
        f"[...document.querySelectorAll('input')].some((one) => one.value === {OPERATOR!r})]"
    )
    assert held == [0, 0, "", sidecar.url + "/", False, False]
    page.click(LOWER)
    assert not page.run("document.querySelector('#token-row').checkVisibility()"), "it is kept"
    page.click("#command-cancel")
    page.click("#token-button")
    page.says("The token is forgotten", "#said")
    page.click(LOWER)
    assert page.run("document.querySelector('#token-row').checkVisibility()")


def test_what_lets_a_policy_act_wants_its_needs_an_admin_and_a_word(
    page: Shown, sidecar: Served
) -> None:
    commanded(sidecar, "advise")
    canary = button("dedup", modes="canary")
    page.ask(canary, "it is time", OPERATOR)
    page.answered("Your token may not: this wants the token of an admin")
    page.click("#command-cancel")
    page.click("#token-button")
    page.ask(canary, "it is time", ADMIN)
    page.answered("Refused. It lacks:")
    page.answered("a gate report of it that passes")
    page.picture("lacks", whole=False)
    page.click("#command-forced")
    page.wait("document.querySelector('#command-go').textContent.startsWith('Check')")
    page.click("#command-go")
    page.answered("It can be done: dedup would go from advise to canary")
    page.click("#command-go")
    page.answered("Type dedup to confirm")
    assert standing(sidecar)["mode"] == "advise"
    page.fill("#command-word", "dedup")
    page.done("dedup: advise → canary")
    entries = sidecar.get("/v1/audit?policy=dedup").json()["entries"]
    acted = next(one for one in entries if one.get("trigger") == "canary")
    assert (acted["after"]["mode"], acted["forced"], acted["actor"]) == ("canary", True, "admin")
    # It acts, unless kvready itself saw a tap suffer on a busy machine, and paused it.
    said = "document.querySelector('#standing').innerText"
    page.wait(f"/acting: dedup in canary|dedup is paused/.test({said})")
    page.picture("acting")
    page.click(button("dedup", modes="advise shadow observe off"))
    page.choose("#command-mode", "shadow")
    page.fill("#command-reason", "enough of it")
    page.click("#command-go")
    page.answered("to shadow")
    page.done("→ shadow")
    page.says("no policy acts", "#standing")
    assert standing(sidecar)["mode"] == "shadow"


def test_everything_is_killed_and_revived(page: Shown, sidecar: Served) -> None:
    page.ask("#do-kill", "users suffer", OPERATOR)
    page.says("KILLED by", "#standing")
    assert sidecar.get("/v1/policies").json()["control"]["killed_by"]
    assert page.run("document.title").startswith("KILLED")
    page.picture("killed")
    page.wait("!document.querySelector('button[data-policy]')")  # nothing can be moved under it
    page.ask("#do-revive", "it was something else")
    page.answered("Type revive to confirm")
    page.fill("#command-word", "revive")
    page.click("#command-go")
    page.answered("wants the token of an admin")
    page.click("#command-cancel")
    page.click("#token-button")
    page.click("#do-revive")
    page.fill("#command-reason", "it was something else")
    page.fill("#command-token", ADMIN)
    page.fill("#command-word", "revive")
    page.click("#command-go")
    page.says("kill switch off", "#standing")
    assert not sidecar.get("/v1/policies").json()["control"]["killed_by"]
    page.says("users suffer", "#audit")


def test_who_looked_at_an_older_state_is_told_and_asked_again(page: Shown, sidecar: Served) -> None:
    commanded(sidecar, "shadow")
    page.wait(f"document.querySelector({RAISE!r})")
    page.click(RAISE)
    commanded(sidecar, "observe")
    page.fill("#command-reason", "a moment too late")
    page.fill("#command-token", OPERATOR)
    page.click("#command-go")
    page.answered("Somebody changed it meanwhile")
    page.says("It is in observe now", "#command-says")
    page.picture("conflict", whole=False)
    assert standing(sidecar)["mode"] == "observe"
    page.click("#command-go")
    page.answered("would go from observe to advise")
    page.done("dedup: observe → advise")


def test_every_refusal_is_said_in_words_and_is_text(page: Shown, sidecar: Served) -> None:
    commanded(sidecar, "shadow")
    page.wait(f"document.querySelector({RAISE!r})")
    page.run(
        "window.sent = [], window.really = window.fetch, window.fetch = (path, options) => {"
        "if (!path.startsWith('v1/')) return window.really(path, options);"
        "window.sent.push(options.headers['idempotency-key']);"
        "if (!window.says.status) return Promise.reject(new TypeError('gone'));"
        "return Promise.resolve(new Response(JSON.stringify(window.says.document),"
        "{status: window.says.status, headers: {'retry-after': '7'}}))}"
    )
    lacks = [{"need": "gate", "says": HOSTILE}]
    cases = [
        (0, {}, "The sidecar does not answer: whether it was done is not known"),
        (400, {"detail": HOSTILE}, f"Refused (400): {HOSTILE}"),
        (403, {"detail": HOSTILE}, f"Your token may not: {HOSTILE}"),
        (409, {"detail": HOSTILE}, f"Refused: {HOSTILE}"),
        (409, {"detail": "", "lacks": lacks}, HOSTILE),
        (422, {"detail": HOSTILE}, f"Not understood: {HOSTILE}"),
        (429, {"detail": HOSTILE}, "Too many commands from here: wait 7 s"),
        (503, {"detail": HOSTILE}, f"Not now: {HOSTILE}"),
        (504, {"detail": HOSTILE}, f"Too busy to say: {HOSTILE}"),
        (500, {}, "Refused (500)"),
        (401, {"detail": HOSTILE}, "The token is wrong"),
    ]
    page.click(RAISE)
    page.fill("#command-reason", "to hear it")
    page.fill("#command-token", OPERATOR)
    for status, document, words in cases:
        page.run(f"window.says = {browser.js({'status': status, 'document': document})}")
        page.click("#command-go")
        page.answered(words)
        assert not page.run("document.querySelector('#command img, #command script')")
    assert page.run("window.pwned") is None
    keys = page.run("window.sent")
    assert len(keys) == len(cases)
    assert len(set(keys)) == 1, "what is sent again has the same key, so that it is done once"
    page.fill("#command-reason", "to hear something else")
    page.fill("#command-token", OPERATOR)
    page.click("#command-go")
    page.wait(f"window.sent.length === {len(cases) + 1}")
    assert page.run("window.sent.at(-1)") != keys[0]
    assert page.run("[...document.querySelectorAll('#command-token')].every((one) => !one.value)")


def test_all_of_it_can_be_done_by_keys(page: Shown, sidecar: Served) -> None:
    commanded(sidecar, "shadow")
    page.wait(f"document.querySelector({RAISE!r})")
    page.run("document.activeElement.blur()")
    focused = "document.activeElement"
    page.key("Tab")
    assert page.run(f"{focused}.className") == "skip"
    page.key("Enter")
    page.wait(f"{focused}.id === 'policies-title'")
    for _ in range(20):
        page.key("Tab")
        if page.run(f"{focused}.matches({RAISE!r})"):
            break
    assert page.run(f"{focused}.matches({RAISE!r})")
    opener = page.run(f"{focused}.id")
    page.key("Enter")
    page.wait(f"{focused}.id === 'command-reason'")
    page.key("Escape")
    page.wait(f"{focused}.id === {opener!r} && !document.querySelector('#command').open")
    page.key(" ")
    page.wait(f"{focused}.id === 'command-reason'")
    page.key("Enter")
    page.answered("Say why")
    page.type("by keys alone")
    page.key("Tab")
    page.type("ada")
    page.key("Tab")
    page.wait(f"{focused}.id === 'command-token'")
    page.type(OPERATOR)
    page.key("Enter")
    page.answered("It can be done")
    page.wait(f"{focused}.id === 'command-go'")
    page.key("Enter")
    page.says("dedup: shadow → advise", "#said")
    page.wait(f"document.querySelector('#policies').contains({focused})")
    page.says("operator/ada", "#audit")


# Left alone -------------------------------------------------------------------------------------


def test_a_sidecar_that_is_gone_is_told_and_one_that_is_back_is_followed(
    chromium: browser.Browser, url: str, sockets: Path, tmp_path: Path
) -> None:
    port = free_port()
    with attached(url, sockets, tmp_path, port) as first:
        page = Shown(chromium, first.url)
        page.run("window.marker = 1")
        first.process.send_signal(signal.SIGSTOP)
        page.says("Stale since")  # it takes questions, and answers none
        first.process.send_signal(signal.SIGCONT)
        page.says("Live: renewed")
        first.end(signal.SIGKILL)
        page.says("Stale since")
        page.says("the sidecar does not answer")
        assert page.run("document.title").startswith("STALE")
        assert page.run("document.querySelector('#taps').checkVisibility()"), "with what was known"
        page.ask("#do-kill", "is anybody there", OPERATOR)
        page.answered("The sidecar does not answer: whether it was done is not known")
        page.says(f"touch {tmp_path}/policies/kill on its host", "#command-says")
        page.click("#command-cancel")
        page.picture("stale")
    with attached(url, sockets, tmp_path, port) as second:
        page.says("Live: renewed")
        assert page.run("window.marker") == 1, "without a reload"
        assert not page.run("document.title").startswith("STALE")
        too_many(page, second)
    page.close()


def too_many(page: Shown, sidecar: Served) -> None:
    """Where one address sends too much, who commands from there is told how long to wait."""

    def in_a_crowd() -> None:
        page.click("#command-cancel")
        page.click(RAISE)
        page.fill("#command-reason", "in a crowd")
        if page.run("document.querySelector('#token-row').checkVisibility()"):
            page.fill("#command-token", OPERATOR)
        headers = {"authorization": "Bearer wrong-token-0123456"}
        while sidecar.client.post("/v1/kill", headers=headers).status_code != 429:
            pass
        page.click("#command-go")

    page.click(RAISE)
    said = "document.querySelector('#command-outcome').textContent"
    page.wait(f"{said}.includes('Too many commands from here: wait')", in_a_crowd)


def test_a_page_of_hostile_names_shows_them_and_does_nothing_else(
    chromium: browser.Browser, tmp_path: Path, state_home: None
) -> None:
    hostile = Story()
    for number in range(4):
        name, at = f"{HOSTILE}{number}", 1.0 + number
        hostile.arrives(at, name, range(10 * number, 10 * number + 4))
        hostile.scheduled(at + 0.1, name)
        hostile.batch(at + 0.1, at + 0.3, prefill(name, 136))
        hostile.first_token(at + 0.3, name)
        hostile.finished(at + 0.4, name)
    file = tmp_path / "hostile.kvr"
    header = RecordingHeader(
        provenance=Provenance.SIMULATED,
        created_wall_seconds=0.0,
        kvready_version="test",
        conditions={HOSTILE: HOSTILE},
    )
    with RecordingWriter(file, header) as writer:
        for item in hostile.told:
            writer.write(item)
    with serving("demo", file, "--serve", port=free_port()) as replayed:
        page = Shown(chromium, replayed.url)
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        page.says(f"{HOSTILE}3", "#newest")
        page.says(HOSTILE, "#conditions")
        assert page.run("document.querySelectorAll('img, #live script').length") == 0
        assert page.run("window.pwned") is None
        # Had anything come through, the content policy would still not run it.
        before = list(chromium.console)
        page.run(
            "document.body.append(Object.assign(document.createElement('script'),"
            "{textContent: 'window.pwned = 3'})),"
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.pwned=4>')"
        )
        replayed.wait_for(lambda: len(chromium.console) >= len(before) + 2)
        assert page.run("window.pwned") is None
        page.close()
    refused = chromium.console[len(before) :]
    assert all("Content Security Policy" in one for one in refused), refused
    assert len(refused) >= 2
    del chromium.console[len(before) :]
    assert not [one for one in chromium.requested if not one.startswith("http://127.0.0.1:")]
