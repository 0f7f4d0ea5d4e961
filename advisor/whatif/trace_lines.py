"""A trace file's lines, plain or gzip, one at a time; errors name the line and the fix."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from kvready.collectors.errors import WorkloadError

MAX_LINE_BYTES = 64 * 1024 * 1024  # a whole session may be one line
MAX_LENGTHS_BYTES = 64 * 1024 * 1024
GZIP_MAGIC = b"\x1f\x8b"

Parsed = TypeVar("Parsed")


def trace_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, with its number from 1. Raises `WorkloadError`."""
    number = 0
    try:
        with open_trace(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise WorkloadError(
                        f"{path} line {number} is longer than {MAX_LINE_BYTES} bytes: this is no "
                        "trace with a request or a session a line; check the file"
                    )
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(
            f"{path} is damaged after line {number} ({error}); fetch the file again, or read the "
            "requests before it by a limit"
        ) from None
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror}; check the path") from error


def open_trace(path: Path) -> BinaryIO:
    """The file, unpacked as it is read if it is gzip. Raises `OSError`."""
    with path.open("rb") as file:
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def parsed(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[Parsed]) -> Parsed:
    """One line as its type. Raises `WorkloadError`."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise refused(path, number, f"{error}") from None


def refused(path: Path, number: int, reason: str, fix: str = "") -> WorkloadError:
    """The error for one line."""
    return WorkloadError(
        f"{path} line {number}: {reason}; {fix or 'correct or remove that line, or name --format'}"
    )
