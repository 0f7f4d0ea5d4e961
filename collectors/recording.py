"""A recording: every ingested record, in order, in a file that describes itself.

The file is a chain of gzip members, so `zcat` shows it. The first member holds the header, each
later one about a second of records, one JSON array a line. A member is trusted only when its
checksum is whole: what a crash or a bad disk cuts off at the end loses only itself.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, get_args

import msgspec

from kvready.collectors.compute_start import ComputeStart
from kvready.collectors.errors import RecordingError
from kvready.collectors.load_start import LoadStart
from kvready.collectors.records import AnyRecord, Ingested
from kvready.collectors.service_targets import ServiceTargets

FORMAT = "kvready-recording"
VERSION = 1

MAX_MEMBER_BYTES = 64 * 1024 * 1024
MEMBER_FLUSH_BYTES = 256 * 1024
MAX_RECORDING_BYTES = 4 * 1024**3
READ_CHUNK_BYTES = 64 * 1024
MAX_NAMED_KINDS = 8  # of those unknown
KNOWN_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyRecord))
GZIP_WINDOW = 31  # zlib's code for a gzip member
# Records are mostly hashes: level 6 takes four times as long for files that are 6 % smaller.
COMPRESSION = 2


class Provenance(StrEnum):
    """Where a recording's facts come from. Never mixed in one figure."""

    REAL = "REAL"
    SIMULATED = "SIMULATED"


class RecordingHeader(msgspec.Struct, frozen=True):
    """What a reader must know before the first record."""

    provenance: Provenance
    created_wall_seconds: float
    kvready_version: str
    format: str = FORMAT
    version: int = VERSION
    salted: bool = False  # hashes and ids were replaced for sharing
    conditions: dict[str, str] = {}
    load_start: LoadStart | None = None  # None: no link profile was given
    compute_start: ComputeStart | None = None  # None: no GPU and model were given
    targets: ServiceTargets | None = None  # None: nothing was asked of all requests


class RecordingWriter:
    """Appends records to a new file, a checksummed member at a time.

    Raises `RecordingError` if the file exists; `OSError` from `write` and `flush` when the disk
    refuses, after which what was flushed before stays readable.
    """

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._lines: list[bytes] = []
        self._pending_bytes = 0
        self.written_bytes = 0
        try:
            self._file: BinaryIO = path.open("xb")
        except FileExistsError:
            raise RecordingError(
                f"{path} exists; recordings are never overwritten: name another file or move it"
            ) from None
        except OSError as error:
            raise RecordingError(
                f"cannot create {path}: {error.strerror}; name a file in a writable folder"
            ) from error
        self._append(self._encoder.encode(header))
        try:
            self.flush()
        except OSError as error:
            self.discard()
            raise RecordingError(
                f"cannot write {path}: {error.strerror}; free some space, or name a file elsewhere"
            ) from error

    @property
    def full(self) -> bool:
        """Whether the bound on a recording's size is reached; further records are refused."""
        return self.written_bytes >= MAX_RECORDING_BYTES

    def write(self, item: Ingested) -> bool:
        """Take one record; False if the recording is full."""
        if self.full:
            return False
        self._append(self._encoder.encode(item))
        if self._pending_bytes >= MEMBER_FLUSH_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        """Close the current member, so that all taken so far survives a crash of this process."""
        if not self._lines:
            return
        compressor = zlib.compressobj(level=COMPRESSION, wbits=GZIP_WINDOW)
        member = compressor.compress(b"".join(self._lines)) + compressor.flush()
        self._lines.clear()
        self._pending_bytes = 0
        self._file.write(member)
        self._file.flush()
        self.written_bytes += len(member)

    def close(self) -> None:
        """Flush and close. Safe twice."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()

    def discard(self) -> None:
        """Close and remove the file, so that its name is free for the next try."""
        self._lines.clear()
        with suppress(OSError):  # what it still held back goes with it
            self._file.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        self._lines.append(line + b"\n")
        self._pending_bytes += len(line) + 1


class Recording:
    """A recording opened for reading. Iterate for its records; afterwards `damage` tells of loss.

    Raises `RecordingError` when the file is no recording or of a version this one cannot read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None
        self.header = self._read_header()

    def __iter__(self) -> Iterator[Ingested]:
        self.damage = None
        skipped = UnknownKinds()
        decoder = msgspec.json.Decoder(Ingested)
        number = 0
        for lines in self._members(skip=1):
            for line in lines:
                number += 1
                try:
                    item = decoder.decode(line)
                except msgspec.MsgspecError as error:
                    if skipped.take(line):
                        continue
                    raise RecordingError(
                        f"{self.path}: record {number} cannot be read ({error}); it was changed "
                        "after it was written, or a later kvready wrote it: upgrade kvready, or "
                        "record anew"
                    ) from None
                yield item
        self.damage = "; ".join(filter(None, (skipped.note, self.damage))) or None

    def _read_header(self) -> RecordingHeader:
        first = next(self._members(skip=0), [])
        try:
            header = msgspec.json.decode(first[0], type=RecordingHeader)
        except (IndexError, msgspec.MsgspecError):
            raise RecordingError(
                f"{self.path} is no kvready recording; make one with `kvready record`"
            ) from None
        if header.format != FORMAT or header.version > VERSION:
            raise RecordingError(
                f"{self.path} is {header.format} version {header.version}, this kvready reads "
                f"{FORMAT} up to version {VERSION}: upgrade kvready"
            )
        return header

    def _members(self, skip: int) -> Iterator[list[bytes]]:
        """Each whole member's lines, after `skip` members; notes what the tail lost."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise RecordingError(f"{self.path} is no file with a recording; name a .kvr file")
            file = self.path.open("rb")
        except OSError as error:
            raise RecordingError(
                f"cannot read {self.path}: {error.strerror}; check the path"
            ) from error
        with file:
            members = _MemberReader(file)
            number = 0
            while (raw := members.read()) is not None:
                if number >= skip:
                    yield raw.splitlines()
                number += 1
            self.damage = members.damage


class UnknownKinds:
    """Records of kinds that this version does not know: a later one wrote them."""

    def __init__(self) -> None:
        self.records = 0
        self._kinds: set[str] = set()

    def take(self, line: bytes) -> bool:
        """Count the line if it holds such a record."""
        try:
            *_, record = msgspec.json.decode(line, type=tuple[int, float, str, dict[str, Any]])
        except msgspec.MsgspecError:
            return False
        kind = record.get("kind")
        if not isinstance(kind, str) or kind in KNOWN_KINDS:
            return False
        self.records += 1
        if len(self._kinds) < MAX_NAMED_KINDS:
            self._kinds.add(kind)
        return True

    @property
    def note(self) -> str | None:
        """What was skipped, if anything was."""
        if not self.records:
            return None
        return (
            f"{self.records} records of kinds that this kvready does not know "
            f"({', '.join(sorted(self._kinds))}) are skipped: upgrade kvready"
        )


class _MemberReader:
    """Cuts a file into checksummed gzip members."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rest = b""
        self._offset = 0
        self.damage: str | None = None

    def read(self) -> bytes | None:
        """The next whole member's bytes; None at the end or where damage begins."""
        decompressor = zlib.decompressobj(wbits=GZIP_WINDOW)
        parts: list[bytes] = []
        size = 0
        consumed = 0
        while not decompressor.eof:
            chunk = self._rest or self._file.read(READ_CHUNK_BYTES)
            self._rest = b""
            if not chunk:
                if consumed:
                    self._damaged("truncated")
                return None
            try:
                part = decompressor.decompress(chunk, MAX_MEMBER_BYTES - size + 1)
            except zlib.error:
                self._damaged("corrupt")
                return None
            size += len(part)
            if size > MAX_MEMBER_BYTES:
                self._damaged("oversized")
                return None
            parts.append(part)
            # unconsumed_tail appears only beyond the size limit, handled above.
            self._rest = decompressor.unused_data
            consumed += len(chunk) - len(self._rest)
        self._offset += consumed
        return b"".join(parts)

    def _damaged(self, how: str) -> None:
        # By the file's size: what lies behind the damage may be long, and is not worth reading.
        lost = max(os.fstat(self._file.fileno()).st_size - self._offset, 0)
        self.damage = (
            f"{how} tail: {lost} bytes after offset {self._offset} are lost, all before is whole"
        )


def read_recording(path: Path) -> Recording:
    """Open a recording. Raises `RecordingError` for a file that is none."""
    return Recording(path)
