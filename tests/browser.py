"""A headless Chromium, driven over two pipes by its DevTools protocol: no port, no driver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_SECONDS = 60.0  # for a state; a busy machine is slow, and nothing is measured
POLL_SECONDS = 0.05
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "ArrowDown": (40, ""),
}
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root may not start it otherwise; it shows nothing but our own page
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en",
)


def chromium() -> str | None:
    """Where Debian's package puts it, if it is there."""
    return shutil.which("chromium")


def js(value: object) -> str:
    """A value as an expression."""
    return json.dumps(value)


class Browser:
    """One process with one page. Every call waits for its answer."""

    def __init__(self, profile: Path, executable: str) -> None:
        self.console: list[str] = []  # errors and warnings, violations of the policy included
        self.requested: list[str] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._number = 0
        self._ended = False
        ours, theirs = os.pipe(), os.pipe()  # to it, and from it
        # It reads descriptor 3 and writes 4, whatever numbers the pipes got here.
        command = f'exec "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "chromium", executable, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._to = os.fdopen(ours[1], "wb", buffering=0)
        self._from = os.fdopen(theirs[0], "rb")
        self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
        self._reader.start()

    def call(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        """One command's result. Raises where the browser refuses it."""
        with self._arrived:
            self._number += 1
            number = self._number
            message: dict[str, object] = {"id": number, "method": method, "params": parameters}
            if session:
                message["sessionId"] = session
            self._to.write(json.dumps(message).encode() + b"\0")
            ends = time.monotonic() + WAIT_SECONDS
            while number not in self._answers:
                assert not self._ended, "the browser ended"
                assert self._arrived.wait(ends - time.monotonic()), f"no answer to {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def end(self) -> None:
        """Close it, and wait until it is gone."""
        if self._process.poll() is None and not self._ended:
            self.call("Browser.close")
        try:
            self._process.wait(WAIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(WAIT_SECONDS)
            self._to.close()
            self._from.close()

    def _read(self) -> None:
        pending = b""
        while part := self._from.read1(1 << 16):  # type: ignore[attr-defined]
            *whole, pending = (pending + part).split(b"\0")
            with self._arrived:
                for message in map(json.loads, whole):
                    if "id" in message:
                        self._answers[message["id"]] = message
                    else:
                        self._heard(message["method"], message["params"])
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def _heard(self, event: str, about: dict[str, Any]) -> None:
        match event:
            case "Runtime.exceptionThrown":
                self.console.append(f"exception: {about['exceptionDetails']}")
            case "Runtime.consoleAPICalled":
                self.console.append(f"{about['type']}: {about['args']}")
            case "Log.entryAdded" if about["entry"]["source"] != "network":
                entry = about["entry"]
                self.console.append(f"{entry['source']} {entry['level']}: {entry['text']}")
            case "Network.requestWillBeSent":
                self.requested.append(about["request"]["url"])


class Page:
    """One tab in a context of its own: no state is shared with another one."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command to this tab."""
        return self._browser.call(method, self._session, **parameters)

    def go(self, url: str) -> None:
        """Load a page whole."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState=='complete'")

    def run(self, expression: str) -> Any:
        """What an expression comes to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Until it holds; fail with what the page shows where it does not."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                if self.run(f"Boolean({condition})"):
                    return
            except AssertionError:  # between two documents there is nothing to ask
                if time.monotonic() > deadline:
                    raise
            shown = "" if time.monotonic() < deadline else self.run("document.body.innerText")
            assert time.monotonic() < deadline, f"never: {condition}\n{shown}"
            meanwhile()
            time.sleep(POLL_SECONDS)

    def says(self, text: str, where: str = "body") -> None:
        """Wait until it is shown."""
        self.wait(f"document.querySelector({js(where)})?.innerText.includes({js(text)})")

    def click(self, selector: str) -> None:
        """As soon as it is there and can be."""
        found = f"document.querySelector({js(selector)})"
        self.wait(f"{found} && !{found}.disabled && {found}.checkVisibility()")
        self.run(f"{found}.focus(), {found}.click()")

    def fill(self, selector: str, text: str) -> None:
        """In place of what stands in a field."""
        self.wait(f"document.querySelector({js(selector)})?.checkVisibility()")
        self.run(f"document.querySelector({js(selector)}).focus()")
        self.run("document.activeElement.select?.()")
        self.type(text)

    def choose(self, selector: str, value: str) -> None:
        """One of a list's options."""
        found = f"document.querySelector({js(selector)})"
        event = "new Event('change', {bubbles: true})"
        self.run(f"{found}.value = {js(value)}, {found}.dispatchEvent({event})")

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def key(self, name: str, shift: bool = False) -> None:
        """Press and let go."""
        code, text = KEYS[name]
        common = {
            "key": name,
            "code": "Space" if name == " " else name,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 if shift else 0,
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def view(self, width: int, height: int, mobile: bool = False, scale: float = 1.0) -> None:
        """The size of the window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def named(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader finds, in order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node.get("role", {}).get("value", ""), node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]

    def shoot(self, path: Path, whole: bool = True) -> None:
        """A picture of it."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """With all that it kept."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser for a file of tests, ended afterwards. Its package must be there."""
    executable = chromium()
    assert executable is not None, "install Debian's package chromium"
    browser = Browser(profile, executable)
    try:
        yield browser
    finally:
        browser.end()
