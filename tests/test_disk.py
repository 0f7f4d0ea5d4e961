"""The disk tier's file: what comes back, what is refused, and what one bad transfer costs."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import pytest
from limits import limited

from kvready.kernels import disk
from kvready.kernels.disk import ALIGNMENT_BYTES, DiskFile, DiskQueue, aligned_buffer
from kvready.kernels.errors import DiskError, MoveError

SLOT = 4 * ALIGNMENT_BYTES
MEMORY_FOLDER = Path("/dev/shm")


@contextmanager
def opened(folder: Path, slots: int = 8, slot_bytes: int = SLOT) -> Iterator[DiskFile]:
    file = DiskFile(folder, slots, slot_bytes)
    try:
        yield file
    finally:
        file.close()


def filled(content: bytes) -> memoryview:
    memory = memoryview(aligned_buffer(len(content)))
    memory[:] = content
    return memory


@pytest.mark.parametrize("depth", [1, 4, 32])
def test_every_slot_reads_back_what_was_written_last(tmp_path: Path, depth: int) -> None:
    draw = random.Random(depth)
    with opened(tmp_path) as file:
        queue = DiskQueue(file, depth)
        expected: dict[int, bytes] = {}
        for _ in range(5):
            slots = draw.sample(range(file.slots), 5)
            memories = [filled(draw.randbytes(SLOT)) for _ in slots]
            writes = [queue.write(*pair) for pair in zip(slots, memories, strict=True)]
            expected |= {s: bytes(m) for s, m in zip(slots, memories, strict=True)}
            assert all(done.result().payload_bytes == SLOT for done in writes)
        memories = [memoryview(aligned_buffer(SLOT)) for _ in expected]
        reads = [queue.read(*pair) for pair in zip(expected, memories, strict=True)]
        for read in reads:
            times = read.result()
            assert times.asked_seconds <= times.started_seconds <= times.ready_seconds
        assert [bytes(m) for m in memories] == list(expected.values())
        queue.close()
        queue.close()


@pytest.mark.skipif(not MEMORY_FOLDER.is_dir(), reason="no file system in memory here")
def test_a_file_system_in_memory_is_called_buffered(caplog: pytest.LogCaptureFixture) -> None:
    with opened(MEMORY_FOLDER) as file:
        assert file.backend == disk.BUFFERED
        assert "page cache" in caplog.text
        memory = filled(os.urandom(SLOT))
        file.write(3, memory)
        unaligned = memoryview(bytearray(SLOT + 1))[1:]
        file.read(3, unaligned)
        assert unaligned == memory


def test_where_direct_transfers_are_refused_the_file_is_called_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", refuse)
        file = DiskFile(tmp_path, 2, SLOT)
    assert file.backend == disk.BUFFERED
    memory, back = filled(os.urandom(SLOT)), memoryview(aligned_buffer(SLOT))
    file.write(1, memory)
    file.read(1, back)
    assert back == memory
    file.close()


def test_the_file_has_no_name_and_goes_with_its_user(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.write(0, filled(bytes(SLOT)))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("slots", "slot_bytes", "advice"),
    [
        (0, SLOT, "at least one page"),
        (4, 4095, "round up to 4096"),
        (4, 6000, "round up to 8192"),
        (1 << 40, SLOT, "ask for fewer slots"),
        (1 << 31, SLOT, "make room or give it fewer bytes"),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_the_fix(
    tmp_path: Path, slots: int, slot_bytes: int, advice: str
) -> None:
    with pytest.raises(DiskError, match=advice):
        DiskFile(tmp_path, slots, slot_bytes)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"nowhere cannot hold .* name a folder that exists"):
        DiskFile(tmp_path / "nowhere", 1, SLOT)


def test_wrong_slots_and_memory_are_refused_before_anything_moves(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        memory = memoryview(aligned_buffer(SLOT))
        for slot in (-1, file.slots):
            with pytest.raises(MoveError, match="of 8 slots"):
                file.read(slot, memory)
        with pytest.raises(MoveError, match="one contiguous range"):
            file.read(0, memory[1:])
        if file.backend == disk.DIRECT:
            with pytest.raises(MoveError, match="allocate it with aligned_buffer"):
                file.read(0, memoryview(bytearray(SLOT + 64))[64 - 1 : -1])
        for depth in (0, disk.MAX_DEPTH + 1):
            with pytest.raises(DiskError, match="transfers at once"):
                DiskQueue(file, depth)
    with pytest.raises(MoveError, match="closed"):
        file.read(0, memory)


def test_a_file_cut_short_fails_that_read_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        queue = DiskQueue(file, 2)
        os.ftruncate(file._file, 2 * SLOT)
        first = queue.read(1, memoryview(aligned_buffer(SLOT)))
        second = queue.read(2, memoryview(aligned_buffer(SLOT)))
        wait([first, second])
        assert first.result().payload_bytes == SLOT
        with pytest.raises(DiskError, match="slot 2 cannot be read: the file ends after 0"):
            second.result()
        queue.close()


def test_a_write_past_the_allowed_size_fails_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as file, limited(resource.RLIMIT_FSIZE, 4 * SLOT):
        with pytest.raises(DiskError, match=r"slot 5 cannot be written: File too large"):
            file.write(5, filled(bytes(SLOT)))
        assert file.write(3, filled(bytes(SLOT))) == SLOT


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_or_broken_fails_that_transfer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path) as file:
        memory = filled(bytes(SLOT))
        with monkeypatch.context() as patched:
            patched.setattr(os, "preadv", fail)
            patched.setattr(os, "pwritev", fail)
            for transfer in (file.read, file.write):
                with pytest.raises(DiskError, match=os.strerror(number)):
                    transfer(0, memory)
        assert file.write(0, memory) == file.read(0, memory) == SLOT


def test_a_queue_takes_no_more_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_OPEN_TRANSFERS", 0)
    with opened(tmp_path) as file:
        queue = DiskQueue(file, 1)
        with pytest.raises(DiskError, match="let some finish first"):
            queue.read(0, memoryview(aligned_buffer(SLOT)))
        queue.close()
        monkeypatch.undo()
        with pytest.raises(DiskError, match="the disk queue is closed"):
            queue.read(0, memoryview(aligned_buffer(SLOT)))
