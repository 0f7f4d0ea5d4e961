"""Asks the sidecar what policies may do, in a thread of its own; readers read one attribute.

Nothing here is on the path of a step: `held` is swapped whole by the polling thread, and reading it
costs an attribute and a comparison with the clock. What the sidecar does not say within a lease is
OFF; so is what it says wrongly, at once.
"""

from __future__ import annotations

import http.client
import math
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

import msgspec

from kvready.advisor.flags import Split
from kvready.advisor.hooks.bounded_http import Asker, Reply
from kvready.advisor.hooks.lease import NOTHING, POLL_SECONDS, Answer, Held, Lease, Switch
from kvready.advisor.policies import Policy, Scope

PATH = "/ofrep/v1/evaluate/flags"
BOOT_HEADER = "Kvready-Boot-Id"
REVISION_HEADER = "Kvready-Revision"
LEASE_HEADER = "Kvready-Lease-Seconds"
ANSWER_SECONDS = 1.0  # an answer that takes longer would come with little of its lease left
OUTSIDE = "excluded_cells"  # metadata: cells of predictions that the policy must not act on
OUTSIDE_SEPARATOR = "; "
MAX_NAME_CHARACTERS = 256
EVERYTHING = Scope()
STOP_SECONDS = 2 * ANSWER_SECONDS


class Heard(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    UNCHANGED = "unchanged"
    REFUSED = "refused"  # an answer that says no, or cannot be: OFF at once
    NOTHING = "nothing"  # no answer in time: OFF when the lease is over


class _Flag(msgspec.Struct):
    key: str
    value: bool = False
    metadata: dict[str, str | float | bool] = {}


class _Body(msgspec.Struct):
    flags: list[_Flag]


class FlagClient:
    """`start`, then read, then `stop` (safe twice). One subject: an engine, or a part of it."""

    def __init__(
        self,
        url: str,
        name: str,
        scope: Scope = EVERYTHING,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: of this hook, for the sidecar to see. Raises ValueError for what is no URL."""
        self.held: Held = NOTHING
        self.heard: Counter[Heard] = Counter()
        self.problem = ""  # of the latest question; empty: none
        self._asker = Asker(url, ANSWER_SECONDS, tls)
        self._clock = clock
        self._lease = Lease()
        self._etag = ""
        context = {"targetingKey": name[:MAX_NAME_CHARACTERS], **msgspec.structs.asdict(scope)}
        self._body = msgspec.json.encode({"context": context})
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="kvready-flags", daemon=True)

    def is_on(self, policy: Policy) -> bool:
        """Whether a policy may act on all requests, now."""
        return self.held.switch(policy, self._clock()).is_on

    def is_split(self, policy: Policy) -> bool:
        """Whether it may act on some, which `treats` tells, now."""
        return self.held.switch(policy, self._clock()).split is not None

    def treats(self, policy: Policy, prefix_group: int | None, cell: str = "") -> bool:
        """Whether it may act on requests that begin with this block (its hash), now.

        `cell`: of the prediction that would be acted on, as `shape_cells.told_cell` names it.
        """
        return self.held.switch(policy, self._clock()).treats(prefix_group, cell)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking; everything is OFF from here on. Safe twice, and before start."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._asker.close()
        self.held = NOTHING

    def ask(self) -> Heard:
        """One question, in the calling thread."""
        headers = dict(self._headers)
        if self._etag and self._lease.is_known:
            headers["If-None-Match"] = self._etag
        asked_seconds = self._clock()
        try:
            reply = self._asker.post(PATH, self._body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return self._noted(Heard.NOTHING, f"{type(error).__name__}: {error}")
        try:
            answer = answer_of(reply)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            self._lease.refused()
            return self._noted(Heard.REFUSED, str(error))
        if not self._lease.heard(asked_seconds, answer):
            return self._noted(Heard.REFUSED, "it contradicts what was said before")
        if answer.switches is None:
            return self._noted(Heard.UNCHANGED)
        self._etag = reply.headers.get("ETag", "")
        return self._noted(Heard.ANSWERED)

    def _noted(self, heard: Heard, problem: str = "") -> Heard:
        self.held = NOTHING if self._stopping.is_set() else self._lease.held
        self.heard[heard] += 1
        self.problem = problem
        return heard

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                self.ask()
                self._stopping.wait(max(POLL_SECONDS - (time.monotonic() - began), 0.0))
        finally:
            self._asker.close()


def answer_of(reply: Reply) -> Answer:
    """What a reply says. Raises ValueError or MsgspecError for one that says nothing usable."""
    if reply.status not in (200, 304):
        raise ValueError(f"status {reply.status}")
    boot_id = reply.headers.get(BOOT_HEADER, "")
    revision = int(reply.headers.get(REVISION_HEADER, ""))
    lease_seconds = float(reply.headers.get(LEASE_HEADER, ""))
    if not boot_id or not math.isfinite(lease_seconds):
        raise ValueError("it does not say for how long it holds")
    switches = None
    if reply.status == 200:
        body = msgspec.json.decode(reply.body, type=_Body)
        switches = {flag.key: _switch(flag) for flag in body.flags}
        if len(switches) < len(body.flags):
            raise ValueError("it names one flag twice")
    return Answer(
        boot_id=boot_id, revision=revision, lease_seconds=lease_seconds, switches=switches
    )


def _switch(flag: _Flag) -> Switch:
    """A value that is absent is the hook's default: OFF."""
    told = flag.metadata.get(OUTSIDE, "")
    if not isinstance(told, str):
        raise ValueError(f"{OUTSIDE} is no text")
    outside = frozenset(told.split(OUTSIDE_SEPARATOR)) if told else frozenset()
    seed, ratio = flag.metadata.get("split_seed"), flag.metadata.get("split_treated_ratio")
    if not isinstance(seed, str) or isinstance(ratio, bool) or not isinstance(ratio, int | float):
        return Switch(flag.value, outside=outside)
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"a treated share of {ratio}")
    return Switch(flag.value, Split(seed, float(ratio)), outside)
