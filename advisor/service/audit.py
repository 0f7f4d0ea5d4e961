"""The audit: every move of a policy as a line of a hash chain, in files that are bounded.

A line is handed to the operating system whole before anything else happens, and forced to the disk
within a second by a thread of its own: what was verified survives a killed process, and a power cut
but for that last second. A write that fails is undone and counted; whoever calls keeps the entry.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import msgspec

from kvready.advisor.audit_chain import (
    MAX_LINE_BYTES,
    AuditEntry,
    Chain,
    entries_of,
    follow,
    line_of,
)

FILE = "audit.jsonl"
ROTATED = "audit-{:012d}.jsonl"
MAX_FILE_BYTES = 4 << 20
MAX_FILES = 16  # the oldest goes; the chain then begins later, which `verify` says
SYNC_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Audit:
    """One writer over one folder. Methods raise OSError where the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chain = Chain()
        self.mended = ""  # what was wrong with the end of the file when it was opened
        self._descriptor: int | None = None
        self._is_synced = True
        self._synced_seconds = float("-inf")
        self._syncing: Future[None] | None = None
        self._aside = ThreadPoolExecutor(1, "audit-sync")  # no thread until the first entry

    def open(self) -> None:
        """Go on where the last run ended; a torn tail is cut off, and the next entry says so."""
        current = self.folder / FILE
        latest = files_of(self.folder)[-1:]
        chain = follow(_lines(latest[0])) if latest else Chain()
        if latest != [current]:  # ended between two files
            chain = msgspec.structs.replace(chain, good_bytes=0, torn_bytes=0, problem="")
        elif chain.problem:
            self.mended = f"{current.name}: {chain.problem}"
            os.replace(current, self._free_name(chain.last_sequence))
            chain = msgspec.structs.replace(chain, good_bytes=0, torn_bytes=0, problem="")
        elif chain.torn_bytes:
            self.mended = _torn(current, chain)
            chain = msgspec.structs.replace(chain, torn_bytes=0)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(current, flags, 0o640)
        try:
            os.ftruncate(descriptor, chain.good_bytes)
            if chain.good_bytes and os.pread(descriptor, 1, chain.good_bytes - 1) != b"\n":
                os.write(descriptor, b"\n")  # cut between a line and its end
                chain = msgspec.structs.replace(chain, good_bytes=chain.good_bytes + 1)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.chain = chain
        _sync_folder(self.folder)

    def append(self, event: str, **fields: object) -> AuditEntry:
        """Write one entry, whole or not at all."""
        self._make_writable()
        if self.chain.good_bytes >= MAX_FILE_BYTES:
            self._rotate()
            self._write("rotated", {"reason": "the file reached its bound"})
        return self._write(event, fields)

    def sync(self) -> None:
        """Have what is new forced to the disk, aside: a disk may take seconds. OSError of before.

        At most once a second; a caller that ticks leaves nothing behind for longer.
        """
        if self._syncing is not None:
            if not self._syncing.done():
                return
            syncing, self._syncing = self._syncing, None
            syncing.result()
        now = time.monotonic()
        is_due = now - self._synced_seconds >= SYNC_SECONDS
        if self._descriptor is None or self._is_synced or not is_due:
            return
        self._is_synced = True
        self._synced_seconds = now
        self._syncing = self._aside.submit(_sync, os.dup(self._descriptor))

    def close(self) -> None:
        """Safe twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _sync(descriptor)

    def _write(self, event: str, fields: dict[str, object]) -> AuditEntry:
        assert self._descriptor is not None
        entry = AuditEntry(
            sequence=self.chain.last_sequence + 1,
            previous=self.chain.head,
            event=event,
            wall_seconds=time.time(),
            **fields,  # type: ignore[arg-type]
        )
        line, digest = line_of(entry)
        assert len(line) <= MAX_LINE_BYTES, "every text in an entry is bounded by who takes it"
        self._is_synced = False
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(28, "the disk took part of a line")
        except OSError:
            os.ftruncate(self._descriptor, self.chain.good_bytes)
            raise
        self.chain = Chain(
            entries=self.chain.entries + 1,
            first_sequence=self.chain.first_sequence or entry.sequence,
            last_sequence=entry.sequence,
            head=digest,
            good_bytes=self.chain.good_bytes + len(line),
        )
        self.sync()
        return entry

    def _make_writable(self) -> None:
        """Open again where the file is not as we left it: removed, cut, or written by another."""
        if self._descriptor is not None and not self._is_as_left(self._descriptor):
            self.close()
        if self._descriptor is None:
            known = self.chain
            self.open()
            if self.chain.last_sequence < known.last_sequence:
                # Numbers never fall back: what is lost shows as a break in the chain.
                lost = known.last_sequence - self.chain.last_sequence
                self.mended = f"{lost} entries vanished while kvready ran"
                self.chain = msgspec.structs.replace(
                    self.chain, last_sequence=known.last_sequence, head=known.head
                )
        if self.mended:
            self._write("mended", {"reason": self.mended})
            self.mended = ""

    def _is_as_left(self, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        return bool(found.st_nlink) and found.st_size == self.chain.good_bytes

    def _rotate(self) -> None:
        current = self.folder / FILE
        os.replace(current, self._free_name(self.chain.last_sequence))
        self.close()
        kept = files_of(self.folder)
        for old in kept[: max(len(kept) + 1 - MAX_FILES, 0)]:
            old.unlink(missing_ok=True)
        self.open()

    def _free_name(self, sequence: int) -> Path:
        while (path := self.folder / ROTATED.format(sequence)).exists():
            sequence += 1
        return path


def files_of(folder: Path) -> list[Path]:
    """The audit's files, oldest first."""
    current = folder / FILE
    return sorted(folder.glob("audit-*.jsonl")) + ([current] if current.exists() else [])


def verify(folder: Path) -> Chain:
    """Check all of an audit that is kept. Raises OSError for a file that cannot be read."""
    chain: Chain | None = None
    for path in files_of(folder):
        before = chain
        if chain is not None and chain.torn_bytes:
            return msgspec.structs.replace(
                chain, problem=f"{path.name} follows a line that was never finished"
            )
        chain = follow(_lines(path), before)
        if chain.problem:
            return msgspec.structs.replace(chain, problem=f"{path.name}: {chain.problem}")
    return chain or Chain()


def tail(folder: Path, count: int) -> list[AuditEntry]:
    """The latest entries, oldest first."""
    found: list[AuditEntry] = []
    for path in reversed(files_of(folder)):
        found = [*entries_of(_lines(path)), *found]
        if len(found) >= count:
            break
    return found[-count:] if count else []


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line


def _torn(path: Path, chain: Chain) -> str:
    """What is cut off, so that the cut can be told from a forgery."""
    with path.open("rb") as file:
        file.seek(chain.good_bytes)
        cut = file.read()
    digest = sha256(cut).hexdigest()[:16]
    return f"a torn tail of {len(cut)} bytes (sha256 {digest}...) was cut off"


def _sync(descriptor: int) -> None:
    """Force a file to the disk, and let go of it."""
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    _sync(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
