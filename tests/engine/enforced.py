"""A real engine with the hook, a sidecar that can be broken, and what the observer told."""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

from engine import Engine

from kvready.collectors.names import DeferReason
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import (
    AnyRecord,
    RequestDeferred,
    RequestFinished,
)

Kind = TypeVar("Kind")

SCHEDULER = "kvready.advisor.hooks.vllm_scheduler.EnforcingScheduler"
CAP = ("--long-prefill-token-threshold", "128")
VOCABULARY = 2048
OWN_TOKENS = 8  # of each prompt, behind the prefix
PATIENCE_SECONDS = 90.0
HOLD_SECONDS = 3.0
SERVER = Path(__file__).with_name("serve_flags.py")


class Sidecar:
    """The flag server's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def tell(self, **told: object) -> None:
        """What it says from now on, or how it behaves."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def freeze(self, is_frozen: bool = True) -> None:
        """It runs no longer, but its sockets are open."""
        self._process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def kill(self) -> None:
        """At once. Safe twice."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Watched:
    """What the observer tells, taken in by a thread."""

    def __init__(self, folder: Path) -> None:
        self.records: list[AnyRecord] = []
        self._tap = ObserverTap("observer", folder)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        self._tap.start(lambda record, _seconds, _tap: self.records.append(record))
        while not self._stopping.is_set():
            self._tap.poll(0.05)
        self._tap.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def of(self, kind: type[Kind], name: str = "") -> list[Kind]:
        """Records of a kind so far, of requests that were named so."""
        return [
            one
            for one in list(self.records)
            if isinstance(one, kind) and (not name or name in one.request_id)  # type: ignore[attr-defined]
        ]

    def holds(self, name: str = "") -> list[RequestDeferred]:
        """Requests that began to be held."""
        told = self.of(RequestDeferred, name)
        return [one for one in told if one.reason is DeferReason.HOLD]

    def wait_for(self, found: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not found():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.01)


class Enforced:
    """The engine, its sidecar, and clients."""

    def __init__(self, python: Path, model: Path, observe: bool = True, **shape: object) -> None:
        self.sidecar = Sidecar()
        self.model = model.name
        self._chance = random.Random(9)
        self.engine = Engine(
            python,
            model,
            scheduler_class=SCHEDULER,
            observe=observe,
            host_bytes=0,
            environment={
                "KVREADY_HOOK_FLAGS": self.sidecar.url,
                "KVREADY_HOOK_HOLD_SECONDS": str(HOLD_SECONDS),
            },
            **shape,  # type: ignore[arg-type]
        )
        self.engine.start()
        self.watched = Watched(self.engine.observer_folder)

    def __enter__(self) -> Enforced:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.watched.stop()
        self.engine.stop()
        self.sidecar.kill()

    def prompts(self, prefix_tokens: int = 2_400, followers: int = 3) -> list[list[int]]:
        """A new prefix, and own ends."""
        chance = self._chance
        prefix = [chance.randrange(VOCABULARY) for _ in range(prefix_tokens)]
        return [
            prefix + [chance.randrange(VOCABULARY) for _ in range(OWN_TOKENS)]
            for _ in range(followers + 1)
        ]

    def complete(self, prompts: list[list[int]], output_tokens: int = 2) -> int:
        """One call for all, so that they arrive together; how many of them were answered."""
        body = {"model": self.model, "prompt": prompts, "max_tokens": output_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"{self.engine.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            choices = json.load(answer)["choices"]
        return sum(len(one["token_ids"]) == output_tokens for one in choices)

    def begin(self, name: str, prompt: list[int], output_tokens: int) -> http.client.HTTPConnection:
        """A stream that the caller reads or closes."""
        place = urlsplit(self.engine.url)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(
            place.hostname, place.port, timeout=PATIENCE_SECONDS
        )
        body = {"model": self.model, "prompt": prompt, "max_tokens": output_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True}
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection

    def computed(self) -> float:
        """Prompt tokens computed so far, as the engine counts them."""
        with urllib.request.urlopen(f"{self.engine.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for line in text.splitlines():
            if line.startswith("vllm:prompt_tokens_by_source_total") and "local_compute" in line:
                return float(line.rpartition(" ")[2])
        return 0.0

    def computed_for(self, prompts: list[list[int]]) -> float:
        """Of one convoy."""
        before = self.computed()
        assert self.complete(prompts) == len(prompts)
        return self.computed() - before

    def obey(self, **on: bool) -> None:
        """Say what is on, and wait until convoys show that the hook heard it."""
        self.sidecar.tell(on=on)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._holds() is not on.get("dedup", False):
            assert time.monotonic() < deadline, f"the hook never obeyed {on}"

    def _holds(self) -> bool:
        """Whether of a convoy, just now, somebody was held."""
        before = len(self.watched.holds())
        ended = len(self.watched.of(RequestFinished))
        prompts = self.prompts(1_000)
        self.complete(prompts)
        # All about a request is told before its end.
        self.watched.wait_for(
            lambda: len(self.watched.of(RequestFinished)) >= ended + len(prompts), "their ends"
        )
        return len(self.watched.holds()) > before


class Traffic:
    """Convoy after convoy, from a thread; `with` it, then read what became of them."""

    def __init__(self, enforced: Enforced) -> None:
        self.asked = self.answered = 0
        self.convoys = 0  # that were begun
        self.errors: list[str] = []
        self._enforced = enforced
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            prompts = self._enforced.prompts(1_200)
            self.convoys += 1
            self.asked += len(prompts)
            try:
                self.answered += self._enforced.complete(prompts)
            except (OSError, ValueError) as error:
                self.errors.append(repr(error))
