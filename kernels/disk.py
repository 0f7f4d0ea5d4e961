"""A file of page slots, read and written past the page cache: the disk tier.

`os.preadv` and `os.pwritev` on page-aligned memory, each transfer on a thread of its own up to a
queue depth; they leave Python's lock while the disk works. Where the file system refuses O_DIRECT
the file is opened buffered and says so: such reads measure memory, not the disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from kvready.kernels.errors import DiskError, MoveError
from kvready.kernels.workers import DISK_DEPTH

logger = logging.getLogger(__name__)

DIRECT = "preadv-direct"
BUFFERED = "preadv-buffered"
ALIGNMENT_BYTES = 4096  # of slots and memory: a multiple of every block size in use
MAX_DEPTH = 128
MAX_OPEN_TRANSFERS = 65_536  # waiting or under way in one queue
MAX_FILE_BYTES = 1 << 46
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})  # recent ones accept O_DIRECT


class Transferred(NamedTuple):
    """One slot's bytes came over. Seconds of CLOCK_MONOTONIC; `asked` is when it was queued."""

    payload_bytes: int
    asked_seconds: float
    started_seconds: float
    ready_seconds: float


def aligned_buffer(size_bytes: int) -> mmap.mmap:
    """Anonymous memory that starts on a page, as O_DIRECT wants it."""
    return mmap.mmap(-1, size_bytes)


class DiskFile:
    """Numbered slots of equal size in a file that has no name, so that nothing outlives its user.

    Raises `DiskError` where the folder cannot hold it.
    """

    def __init__(self, folder: Path, slots: int, slot_bytes: int) -> None:
        _check_size(slots, slot_bytes)
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.file_system = file_system(folder)  # its type and device, where told
        self._file = _open_unnamed(folder, slots * slot_bytes)
        try:
            self.backend = self._choose_backend(self._file)
            os.ftruncate(self._file, slots * slot_bytes)
        except OSError as error:
            os.close(self._file)
            raise DiskError(f"{folder} cannot hold the disk tier: {_reason(error)}") from error
        if self.backend == BUFFERED:
            logger.warning(
                "%s (%s) offers no direct reads: the disk tier goes through the page cache; name "
                "a folder on a local disk",
                folder,
                self.file_system or "unknown file system",
            )

    def read(self, slot: int, memory: memoryview) -> int:
        """Fill `memory` from a slot. Raises `MoveError` before touching it, `DiskError` later."""
        offset = self._checked(slot, memory)
        done = 0
        while done < self.slot_bytes:
            try:
                count = os.preadv(self._file, [memory[done:]], offset + done)
            except OSError as error:
                raise DiskError(f"slot {slot} cannot be read: {_reason(error)}") from error
            if count == 0:
                raise DiskError(
                    f"slot {slot} cannot be read: the file ends after {done} of its "
                    f"{self.slot_bytes} bytes; something else cut it short"
                )
            done += count
        self._forget(offset)
        return done

    def write(self, slot: int, memory: memoryview) -> int:
        """Bring `memory` to a slot. Raises `MoveError` before touching it, `DiskError` later."""
        offset = self._checked(slot, memory)
        done = 0
        while done < self.slot_bytes:
            try:
                done += os.pwritev(self._file, [memory[done:]], offset + done)
                if self.backend == BUFFERED:
                    os.fdatasync(self._file)  # only clean pages can be forgotten
            except OSError as error:
                raise DiskError(f"slot {slot} cannot be written: {_reason(error)}") from error
        self._forget(offset)
        return done

    def recut(self, slot_bytes: int) -> None:
        """Cut the same bytes into slots of another size. No transfer may be under way."""
        slots = os.fstat(self._file).st_size // max(1, slot_bytes)
        _check_size(slots, slot_bytes)
        self.slots = slots
        self.slot_bytes = slot_bytes

    def close(self) -> None:
        """Give the space back. Safe twice; no transfer may be under way."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _checked(self, slot: int, memory: memoryview) -> int:
        """Where the slot begins in the file."""
        if self._file < 0:
            raise MoveError("the disk tier is closed and takes no more transfers")
        if not 0 <= slot < self.slots:
            raise MoveError(f"slot {slot} of a disk tier of {self.slots} slots")
        if memory.shape != (self.slot_bytes,) or not memory.c_contiguous:
            raise MoveError(
                f"{memory.nbytes} bytes cannot trade places with a slot of {self.slot_bytes}; pass "
                "one contiguous range of that size"
            )
        if self.backend == DIRECT and (address := _address(memory)) % ALIGNMENT_BYTES:
            raise MoveError(
                f"memory at {address:#x} is not aligned to {ALIGNMENT_BYTES} bytes, which direct "
                "transfers need; allocate it with aligned_buffer"
            )
        return slot * self.slot_bytes

    def _forget(self, offset: int) -> None:
        if self.backend == BUFFERED:
            with suppress(OSError):  # a hint; the bytes are where they belong
                os.posix_fadvise(self._file, offset, self.slot_bytes, os.POSIX_FADV_DONTNEED)

    def _choose_backend(self, file: int) -> str:
        """Try a direct write and a read: some file systems refuse only those."""
        if self.file_system.partition(" ")[0] in MEMORY_FILE_SYSTEMS:
            return BUFFERED
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        with aligned_buffer(ALIGNMENT_BYTES) as probe:
            try:
                fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
                os.pwritev(file, [probe], 0)
                os.preadv(file, [probe], 0)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                fcntl.fcntl(file, fcntl.F_SETFL, flags)
                return BUFFERED
        return DIRECT


class DiskQueue:
    """Transfers of one file, up to `depth` at once."""

    def __init__(self, file: DiskFile, depth: int = DISK_DEPTH) -> None:
        if not 1 <= depth <= MAX_DEPTH:
            raise DiskError(f"depth={depth}: choose 1 to {MAX_DEPTH} transfers at once")
        self.depth = depth
        self._file = file
        self._threads = ThreadPoolExecutor(depth, thread_name_prefix="disk")
        self._lock = Lock()
        self._open = 0

    def read(self, slot: int, memory: memoryview) -> Future[Transferred]:
        """Queue a read into `memory`, which must stay until it is done."""
        return self._submit(False, slot, memory)

    def write(self, slot: int, memory: memoryview) -> Future[Transferred]:
        """Queue a write of `memory`, which must stay unchanged until it is done."""
        return self._submit(True, slot, memory)

    def close(self) -> None:
        """Finish what is queued and end the threads. Safe twice; the file stays open."""
        self._threads.shutdown(wait=True)

    def _submit(self, is_write: bool, slot: int, memory: memoryview) -> Future[Transferred]:
        with self._lock:
            if self._open >= MAX_OPEN_TRANSFERS:
                raise DiskError(
                    f"{MAX_OPEN_TRANSFERS} transfers wait for the disk; let some finish first"
                )
            self._open += 1
        try:
            queued = self._threads.submit(self._run, is_write, slot, memory, time.monotonic())
        except RuntimeError as error:
            self._count_done()
            raise DiskError("the disk queue is closed and takes no more transfers") from error
        queued.add_done_callback(self._count_done)
        return queued

    def _run(
        self, is_write: bool, slot: int, memory: memoryview, asked_seconds: float
    ) -> Transferred:
        started = time.monotonic()
        moved = (self._file.write if is_write else self._file.read)(slot, memory)
        return Transferred(moved, asked_seconds, started, time.monotonic())

    def _count_done(self, _: Future[Transferred] | None = None) -> None:
        with self._lock:
            self._open -= 1


def file_system(folder: Path) -> str:
    """Type and device of the file system that holds a folder, "ext4 /dev/sda1"; "" if not told."""
    try:
        device = os.stat(folder).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next(_types_of(mounts.splitlines(), wanted), "")


def _types_of(mounts: Iterable[str], device: str) -> Iterator[str]:
    for line in mounts:
        before, dash, after = line.partition(" - ")
        if dash and before.split()[2] == device:
            kind, source, *_ = after.split()
            yield f"{kind} {source}"


def _check_size(slots: int, slot_bytes: int) -> None:
    if slots < 1:
        raise DiskError(f"slots={slots}: give the disk tier room for at least one page")
    if slot_bytes < ALIGNMENT_BYTES or slot_bytes % ALIGNMENT_BYTES:
        raise DiskError(
            f"slot_bytes={slot_bytes}: direct transfers need a multiple of {ALIGNMENT_BYTES}; "
            f"round up to {-(-max(slot_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES}"
        )
    if slots * slot_bytes > MAX_FILE_BYTES:
        raise DiskError(
            f"{slots} slots of {slot_bytes} bytes are more than {MAX_FILE_BYTES} bytes; ask for "
            "fewer slots"
        )


def _open_unnamed(folder: Path, wanted_bytes: int) -> int:
    try:
        room = os.statvfs(folder)
        if (free_bytes := room.f_bavail * room.f_frsize) < wanted_bytes:
            raise DiskError(
                f"{folder} has {free_bytes} bytes free, the disk tier wants {wanted_bytes}; make "
                "room or give it fewer bytes"
            )
        with suppress(OSError):  # some file systems know no unnamed files
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        file, name = tempfile.mkstemp(prefix="kvready-disk-", dir=folder)
        os.unlink(name)
        return file
    except OSError as error:
        raise DiskError(
            f"{folder} cannot hold the disk tier: {_reason(error)}; name a folder that exists and "
            "may be written"
        ) from error


def _address(memory: memoryview) -> int:
    """Where memory lies; 0, which is aligned, for memory that may not be written."""
    return 0 if memory.readonly else ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
