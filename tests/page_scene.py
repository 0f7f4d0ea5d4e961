"""A simulated engine, a sidecar attached to it and a browser that looks at the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import browser
import served
from test_sim_surfaces import simulating

OPERATOR, ADMIN = "operator-token-0123", "admin-token-0123456"
SHOTS = "PAGE_SHOTS"  # the folder that pictures go to; without it none is taken


class Shown(browser.Page):
    """The page of one sidecar."""

    def __init__(self, chromium: browser.Browser, url: str, width: int = 1440) -> None:
        super().__init__(chromium)
        self.view(width, 900)
        self.prefer("light")
        self.go(url + "/")
        self.says("Live: renewed")

    def ask(self, button: str, reason: str, token: str = "") -> None:
        """Open a command's dialog, fill it in and send it for the first time."""
        self.click(button)
        self.fill("#command-reason", reason)
        if token:
            self.fill("#command-token", token)
        self.click("#command-go")

    def answered(self, text: str) -> None:
        """Wait until the dialog says so; what kvready itself moved meanwhile is asked again."""
        said = "document.querySelector('#command-outcome').innerText"
        self.wait(f"{said}.includes({browser.js(text)})", self._again)

    def done(self, text: str) -> None:
        """Have it done, and wait until that is said."""
        self.click("#command-go")
        said = "document.querySelector('#said').innerText"
        self.wait(f"{said}.includes({browser.js(text)})", lambda: self._again("It can be done"))

    def _again(self, *also: str) -> None:
        found = "document.querySelector('#command-outcome').innerText"
        texts = ["Somebody changed it meanwhile", *also]
        if self.run(f"{browser.js(texts)}.some((text) => {found}.includes(text))"):
            self.run("document.querySelector('#command-go').click()")

    def picture(self, name: str, whole: bool = True) -> None:
        """For a person to look at, where one asked for it."""
        if folder := os.environ.get(SHOTS):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.shoot(Path(folder) / f"{name}.png", whole)


def button(policy: str, **about: str) -> str:
    """Selects one of a policy's buttons."""
    given = {"policy": policy} | about
    return "button" + "".join(f'[data-{name}="{value}"]' for name, value in given.items())


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """An engine that goes on for longer than any test; the URL of its pages."""
    options = ("--speed", 2, "--rate", 6, "--requests", 100_000)
    with simulating(folder, *options) as (_, url):
        yield url


@contextmanager
def attached(url: str, sockets: Path, folder: Path, port: int) -> Iterator[served.Served]:
    """A sidecar with every tap and both tokens. What it keeps is in `folder`."""
    folder.mkdir(exist_ok=True)
    tokens = {"operator": OPERATOR, "admin": ADMIN}
    files = []
    for role, token in tokens.items():
        file = folder / role
        file.write_text(token)
        file.chmod(0o600)
        files += [f"--{role}-token-file", file]
    with served.serving(
        "serve", "--kv-events", f"ipc://{sockets}/kv.sock",
        "--replay", f"ipc://{sockets}/replay.sock", "--observer-dir", sockets,
        "--metrics-url", url,
        "--state-dir", folder, "--policy-folder", folder / "policies", *files,
        port=port,
    ) as sidecar:  # fmt: skip
        yield sidecar
