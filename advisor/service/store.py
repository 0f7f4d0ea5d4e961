"""What must outlive the sidecar: where policies stand, gate reports, answers to commands. SQLite.

Every table is bounded. Methods raise `sqlite3.Error` where the disk, a lock or the file's content
refuses; the keeper counts that, and policies fall to the safe side.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from pathlib import Path

import msgspec

from kvready.advisor.verdicts import GateReport
from kvready.collectors.commanded import RestoredPolicy

FILE = "policies.sqlite"
BROKEN = "policies.sqlite.broken"  # the latest that could not be read
SCHEMA = 1
BUSY_SECONDS = 0.25  # that a lock of another program is waited for, in the ingest thread
MAX_REPORTS = 10_000
MAX_ANSWERS = 10_000
ANSWER_SECONDS = 86_400.0  # that an idempotency key is remembered
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

TABLES = """
CREATE TABLE IF NOT EXISTS states (
  policy TEXT, engine TEXT, pool TEXT, request_class TEXT,
  body BLOB NOT NULL, boot TEXT NOT NULL, monotonic REAL NOT NULL, wall REAL NOT NULL,
  PRIMARY KEY (policy, engine, pool, request_class)
);
CREATE TABLE IF NOT EXISTS reports (
  number INTEGER PRIMARY KEY AUTOINCREMENT, report_id TEXT UNIQUE, policy TEXT, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS answers (
  key TEXT PRIMARY KEY, asked TEXT NOT NULL, body BLOB NOT NULL, wall REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

logger = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """What a command with an idempotency key was answered, and the digest of what it asked."""

    asked: str
    body: bytes


class PolicyStore:
    """One file, one process; the keeper holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.set_aside = 0  # files that could not be read
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open or make it. One whose content is broken is put aside, and a new one begun."""
        try:
            self._connection = self._opened()
        except sqlite3.OperationalError:
            raise  # locked, or no room: what is in it may be good
        except sqlite3.DatabaseError as error:
            self.set_aside += 1
            aside = self.path.with_name(BROKEN)
            logger.warning("%s is broken (%s); it is now %s", self.path, error, aside.name)
            self._remove_journals()
            with contextlib.suppress(OSError):
                os.replace(self.path, aside)
            self._connection = self._opened()

    def close(self) -> None:
        """Safe twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def states(self) -> list[RestoredPolicy]:
        """Where policies stood, with what is left of their cool-downs by now."""
        rows = self._open.execute("SELECT body, boot, monotonic, wall FROM states LIMIT 64")
        return [_by_now(msgspec.json.decode(r[0], type=RestoredPolicy), *r[1:]) for r in rows]

    def keep_states(self, states: list[RestoredPolicy], audit_sequence: int) -> None:
        """All at once, with the audit's last entry that they follow from."""
        saved = (_boot_id(), time.monotonic(), time.time())
        with self._transaction() as connection:
            for one in states:
                key = (one.policy, one.engine, one.pool, one.request_class)
                connection.execute(
                    "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*key, msgspec.json.encode(one), *saved),
                )
            connection.execute(
                "INSERT OR REPLACE INTO facts VALUES ('audit_sequence', ?)", (str(audit_sequence),)
            )

    def audit_sequence(self) -> int:
        """The audit's last entry when states were kept; 0: never."""
        row = self._open.execute("SELECT value FROM facts WHERE name = 'audit_sequence'").fetchone()
        return int(row[0]) if row else 0

    def keep_report(self, report: GateReport) -> None:
        """A gate report, once; the oldest go where there are too many."""
        body = msgspec.json.encode(report)
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO reports (report_id, policy, body) VALUES (?, ?, ?)",
                (report.report_id, report.policy, body),
            )
            connection.execute(
                "DELETE FROM reports WHERE number <= (SELECT max(number) FROM reports) - ?",
                (MAX_REPORTS,),
            )

    def report(self, report_id: str) -> GateReport | None:
        """One by its id."""
        row = self._open.execute(
            "SELECT body FROM reports WHERE report_id = ?", (report_id,)
        ).fetchone()
        return msgspec.json.decode(row[0], type=GateReport) if row else None

    def reports(self, policy: str, limit: int) -> list[GateReport]:
        """The latest of a policy, newest first."""
        rows = self._open.execute(
            "SELECT body FROM reports WHERE policy = ? ORDER BY number DESC LIMIT ?",
            (policy, limit),
        )
        return [msgspec.json.decode(row[0], type=GateReport) for row in rows]

    def answer(self, key: str) -> Answer | None:
        """What a command with this key was answered in the last day."""
        row = self._open.execute(
            "SELECT asked, body, wall FROM answers WHERE key = ?", (key,)
        ).fetchone()
        if row is None or abs(time.time() - row[2]) > ANSWER_SECONDS:
            return None
        return Answer(row[0], row[1])

    def keep_answer(self, key: str, asked: str, body: bytes) -> None:
        """Remember an answer; the oldest go where there are too many."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                (key, asked, body, time.time()),
            )
            connection.execute(
                "DELETE FROM answers WHERE rowid <= (SELECT max(rowid) FROM answers) - ?",
                (MAX_ANSWERS,),
            )

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the store is not open")
        return self._connection

    @contextlib.contextmanager
    def _transaction(self):  # type: ignore[no-untyped-def]
        connection = self._open
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            # A killed process loses nothing; a power cut may cost the last commits, and the audit,
            # forced to the disk within a second, still tells: see `restoring.with_audit`.
            connection.execute("PRAGMA synchronous=NORMAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise sqlite3.DatabaseError(f"its schema is {version}, not {SCHEMA}")
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            connection.executescript(TABLES)
            connection.execute(f"PRAGMA user_version={SCHEMA}")
            for (body,) in connection.execute("SELECT body FROM states LIMIT 64"):
                _decodable(body)
        except BaseException:
            connection.close()
            raise
        return connection

    def _remove_journals(self) -> None:
        for suffix in ("-wal", "-shm"):
            self.path.with_name(FILE + suffix).unlink(missing_ok=True)


def _decodable(body: bytes) -> None:
    try:
        msgspec.json.decode(body, type=RestoredPolicy)
    except (msgspec.MsgspecError, TypeError) as error:
        raise sqlite3.DatabaseError(f"a state in it cannot be read: {error}") from None


def _by_now(kept: RestoredPolicy, boot: str, monotonic: float, wall: float) -> RestoredPolicy:
    """What time has done to it: by the machine's own clock, or the wall's after a reboot."""
    same_boot = boot == _boot_id()
    passed = time.monotonic() - monotonic if same_boot else time.time() - wall
    passed_seconds = max(passed, 0.0)  # a clock set back ends no cool-down
    return msgspec.structs.replace(
        kept,
        cooldown_seconds=max(kept.cooldown_seconds - passed_seconds, 0.0),
        finding_age_seconds=kept.finding_age_seconds + passed_seconds,
    )


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""  # then only the wall clock tells
