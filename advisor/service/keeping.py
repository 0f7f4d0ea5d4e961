"""Keeps what the control plane decides: first the audit, then the store, and again until it holds.

Nothing that happened is lost for a disk that refuses: entries wait, in bounded number, and are
written with the next tick. Meanwhile what fails is named, and that names itself to the control
plane as a record, so that what acts says OFF and nothing is promoted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

from kvready.advisor.canary import Shares, draw_of
from kvready.advisor.control import ControlPlane
from kvready.advisor.modes import Transition
from kvready.advisor.policies import Mode, Policy, PolicyState
from kvready.advisor.restoring import at_most, kept_state, with_audit
from kvready.advisor.service.audit import Audit, tail
from kvready.advisor.service.store import Answer, PolicyStore
from kvready.advisor.verdicts import GateReport
from kvready.advisor.version import VERSION
from kvready.collectors.errors import ServiceError
from kvready.collectors.records import KeepingChanged, PoliciesRestored

LOCK_FILE = "lock"
MAX_WAITING = 1_000  # entries and reports that no disk has taken yet; then the oldest are lost
MAX_LOOKED_AT = 1_000  # of the audit, to learn what the store missed
RETRY_SECONDS = 1.0

SEED_BYTES = 8  # of a run's draws: nobody can know beforehand whom they will treat

AUDIT, STORE = "audit", "store"

DEFAULT_SHARES = Shares()

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Keeper:
    """Audit and store of one sidecar. All but `open` in the ingest thread."""

    def __init__(
        self,
        folder: Path,
        config_digest: str = "",
        shares: Shares = DEFAULT_SHARES,
        seed: str = "",
    ) -> None:
        """`shares`: of what a canary treats, and of what is left alone when it is enforced; `seed`:
        of its draws, where a run is to be repeated; else nobody knows it beforehand."""
        self.folder = folder
        self.audit = Audit(folder)
        self.store = PolicyStore(folder)
        self.failures = {AUDIT: 0, STORE: 0}
        self.problems: dict[str, str] = {}  # what fails now, and how
        self.lost_entries = 0
        self.engine_version: Callable[[], str] = lambda: ""
        self._config_digest = config_digest
        self._shares = shares
        self._seed = seed or secrets.token_hex(SEED_BYTES)
        self._control: ControlPlane | None = None
        self._entries: deque[tuple[str, dict[str, object]]] = deque()
        self._reports: deque[GateReport] = deque()
        self._states_due = False
        self._said_failing: tuple[str, ...] = ()
        self._retry_seconds = 0.0
        self._lock: int | None = None

    def open(
        self, starts: Mapping[Policy, Mode | None], auto_promote: Collection[Policy]
    ) -> PoliciesRestored:
        """Take the folder, and say where policies stood. Raises `ServiceError` if it is taken."""
        self._take_lock()
        self._try(STORE, self.store.open)
        self._try(AUDIT, self.audit.open)
        known = self._try(STORE, self.store.states) or []
        sequence = self._try(STORE, self.store.audit_sequence) or 0
        told = self._try(AUDIT, lambda: tail(self.folder, MAX_LOOKED_AT)) or []
        found = with_audit(known, told, sequence, time.time())
        kept = at_most(found, starts)
        lowered = sum(one not in found for one in kept)
        shares = msgspec.structs.asdict(self._shares)
        self.note(
            "started",
            reason=f"{len(found)} states restored, {lowered} set by settings",
            draw={"seed": self._seed, **shares},
        )
        return PoliciesRestored(
            policies=tuple(kept),
            auto_promote=tuple(auto_promote),
            canary_seed=self._seed,
            **shares,
        )

    def follow(self, control: ControlPlane) -> None:
        """The control plane whose states are kept, from the next tick on."""
        self._control = control
        self._states_due = True

    def heard(self, transition: Transition) -> None:
        """A policy moved. Never raises for a disk."""
        self._states_due = True
        control = self._control
        report = control.reports.by_id(transition.report_id) if control else None
        self.note(
            "moved",
            actor=transition.actor,
            kind=str(transition.kind),
            trigger=str(transition.trigger),
            reason=transition.reason,
            policy=str(transition.policy),
            scope=msgspec.structs.asdict(transition.scope),
            before=transition.before,
            after=transition.after,
            forced=transition.forced,
            report_id=transition.report_id,
            evidence_hash=sha256(msgspec.json.encode(report)).hexdigest() if report else "",
            ingest=transition.ingest,
            seconds=transition.seconds,
            versions=self._versions(report),
            draw=self._draw(transition.after),
        )

    def reported(self, report: GateReport) -> None:
        """A gate report, to be found again by its id."""
        if len(self._reports) >= MAX_WAITING:
            self._reports.popleft()
            self.lost_entries += 1
        self._reports.append(report)
        self._flush()

    def note(self, event: str, **fields: object) -> None:
        """An entry of the audit."""
        if len(self._entries) >= MAX_WAITING:
            self._entries.popleft()
            self.lost_entries += 1
        self._entries.append((event, {"config_digest": self._config_digest, **fields}))
        self._flush()

    def answer(self, key: str) -> Answer | None:
        """What a command with this idempotency key was answered, as far as the store tells."""
        return self._try(STORE, lambda: self.store.answer(key))

    def reports(self, policy: str, limit: int) -> list[GateReport]:
        """The latest gate reports of a policy, newest first."""
        return self._try(STORE, lambda: self.store.reports(policy, limit)) or []

    def keep_answer(self, key: str, asked: str, body: bytes) -> None:
        """Remember what a command was answered."""
        self._try(STORE, lambda: self.store.keep_answer(key, asked, body))

    def tick(self, now_seconds: float) -> KeepingChanged | None:
        """Try again what failed; what to tell the control plane, where that changed."""
        if now_seconds >= self._retry_seconds:
            self._retry_seconds = now_seconds + RETRY_SECONDS
            if AUDIT in self.problems:
                self._try(AUDIT, self._reopen_audit)
            if STORE in self.problems:
                self._try(STORE, self._reopen_store)
            self._flush()
            self._try(AUDIT, self.audit.sync)
        failing = tuple(self.problems)
        if failing == self._said_failing:
            return None
        self._said_failing = failing
        return KeepingChanged(failing=failing)

    @property
    def waiting(self) -> int:
        """Entries and reports that no disk has taken yet."""
        return len(self._entries) + len(self._reports)

    def close(self) -> None:
        """Write what can be written, and let go of the folder. Safe twice."""
        self._flush()
        self._try(AUDIT, self.audit.close)
        self._try(STORE, self.store.close)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _flush(self) -> None:
        """Audit before store: what the store lacks after a crash, the audit still tells."""
        while self._entries and AUDIT not in self.problems:
            event, fields = self._entries[0]
            if self._try(AUDIT, lambda: self.audit.append(event, **fields)) is not None:  # noqa: B023 - called at once
                self._entries.popleft()
        while self._reports and STORE not in self.problems:
            report = self._reports[0]
            self._try(STORE, lambda: self.store.keep_report(report))  # noqa: B023 - called at once
            if STORE not in self.problems:
                self._reports.popleft()
        if self._states_due and STORE not in self.problems and self._control is not None:
            control, sequence = self._control, self.audit.chain.last_sequence
            kept = [kept_state(state, control.now_seconds) for state in control.underlying]
            self._try(STORE, lambda: self.store.keep_states(kept, sequence))
            self._states_due = STORE in self.problems

    def _reopen_audit(self) -> None:
        self.audit.close()
        self.audit.open()
        del self.problems[AUDIT]

    def _reopen_store(self) -> None:
        self.store.close()
        self.store.open()
        self._states_due = True
        del self.problems[STORE]

    def _versions(self, report: GateReport | None) -> dict[str, str]:
        versions = {"kvready": VERSION, "engine": self.engine_version()}
        if report is not None:
            versions["models"] = " ".join(report.model_versions)
            versions["calibration"] = report.calibration_id
        return {name: version for name, version in versions.items() if version}

    def _draw(self, state: PolicyState) -> dict[str, str | int]:
        """What fixes whom it treats from here on; nothing where it treats nobody."""
        draw = draw_of(state, self._shares, self._seed)
        return {"seed": draw.seed, "percent": draw.percent} if draw.percent else {}

    def _take_lock(self) -> None:
        path = self.folder / LOCK_FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise ServiceError(
                f"cannot keep policies in {self.folder}: {error.strerror}; make it writable, or "
                "choose another folder with --policy-folder"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise ServiceError(
                f"another kvready (process {holder}) keeps its policies in {self.folder}; stop it, "
                "or give this one a folder of its own with --policy-folder"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    def _try(self, part: str, work: Callable[[], T]) -> T | None:
        try:
            done = work()
        except (OSError, sqlite3.Error) as error:
            self.failures[part] += 1
            says = str(error) or type(error).__name__
            if self.problems.get(part) != says:
                logger.warning("the %s of policies in %s: %s", part, self.folder, says)
            self.problems[part] = says
            return None
        return done
