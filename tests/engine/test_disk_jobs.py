"""A disk tier's index and its jobs: what is where, and that every job is answered once."""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvready.kernels.disk import ALIGNMENT_BYTES, DiskFile, aligned_buffer
from kvready.kernels.engine.disk_jobs import DiskJobs, Transfer
from kvready.kernels.engine.disk_slots import DiskSlots, Presence

SLOT = ALIGNMENT_BYTES
SLOTS = 16


class Model:
    """The index as its rules read: recency in a list, everything else by search."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.order: OrderedDict[bytes, str] = OrderedDict()
        self.readers: dict[bytes, int] = {}

    def claim(self, key: bytes) -> tuple[bool, bytes | None]:
        evicted = None
        if len(self.order) == self.slots:
            idle = [
                k for k, state in self.order.items() if state == "ready" and not self.readers.get(k)
            ]
            if not idle:
                return False, None
            evicted = idle[0]
            del self.order[evicted]
        self.order[key] = "writing"
        return True, evicted


operations = st.lists(
    st.tuples(
        st.sampled_from(["claim", "written", "touch", "pin", "unpin", "drop"]), st.integers(0, 7)
    ),
    max_size=60,
)


@given(st.integers(1, 4), operations)
def test_the_index_follows_its_rules_in_any_order_of_calls(
    count: int, steps: list[tuple[str, int]]
) -> None:
    slots, model = DiskSlots(count), Model(count)
    place: dict[bytes, int] = {}
    for name, number in steps:
        key = bytes([number])
        state = model.order.get(key)
        if name == "claim" and state is None:
            claim = slots.claim(key)
            found, evicted = model.claim(key)
            assert (claim is not None) == found
            if claim is not None:
                assert claim.evicted == evicted
                if evicted is not None:
                    del place[evicted]
                assert claim.slot not in place.values()
                assert 0 <= claim.slot < count
                place[key] = claim.slot
        elif name == "written" and state == "writing":
            slots.written(key)
            model.order[key] = "ready"
        elif name == "touch":
            slots.touch(key)
            if state is not None:
                model.order.move_to_end(key)
        elif name == "pin":
            slot = slots.pin(key)
            assert slot == (place[key] if state == "ready" else None)
            if slot is not None:
                model.readers[key] = model.readers.get(key, 0) + 1
                model.order.move_to_end(key)
        elif name == "unpin" and model.readers.get(key):
            slots.unpin(key)
            model.readers[key] -= 1
        elif name == "drop":
            dropped = slots.drop(key)
            if state is not None and not model.readers.get(key):
                assert dropped == (state == "ready")
                del model.order[key], place[key]
            else:
                assert not dropped
        assert len(slots) == len(model.order)
        for known in (bytes([n]) for n in range(8)):
            expected = model.order.get(known, "absent")
            assert slots.presence(known) is Presence(expected)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DiskFile]:
    file = DiskFile(tmp_path, SLOTS, SLOT)
    yield file
    file.close()


@pytest.fixture
def jobs(file: DiskFile) -> Iterator[DiskJobs]:
    jobs = DiskJobs(file, depth=4)
    yield jobs
    jobs.close()
    jobs.close()


def transfers(memory: memoryview, slots: list[int]) -> list[Transfer]:
    return [
        Transfer(bytes([slot]), slot, memory[place * SLOT : (place + 1) * SLOT])
        for place, slot in enumerate(slots)
    ]


def test_what_jobs_store_others_fetch_whatever_the_order_within_them(jobs: DiskJobs) -> None:
    chance = random.Random(3)
    memory = memoryview(aligned_buffer(SLOTS * SLOT))
    memory[:] = content = chance.randbytes(SLOTS * SLOT)
    starts: list[float] = []
    jobs.store(1, transfers(memory, list(range(SLOTS))), starts.append)
    jobs.wait_idle()
    [stored] = jobs.take_finished()
    assert (stored.job, stored.is_fetch, stored.bad) == (1, False, ())
    assert sorted(stored.good) == [bytes([slot]) for slot in range(SLOTS)]
    assert stored.payload_bytes == SLOTS * SLOT
    assert len(starts) == 1
    assert stored.started_seconds is not None
    assert stored.started_seconds <= starts[0] <= stored.ready_seconds

    back = memoryview(aligned_buffer(SLOTS * SLOT))
    order = chance.sample(range(SLOTS), SLOTS)
    for job, share in enumerate((order[:5], order[5:])):
        jobs.fetch(10 + job, transfers(back[job * 5 * SLOT :], share), starts.append)
    jobs.wait_idle()
    assert {done.job for done in jobs.take_finished()} == {10, 11}
    assert jobs.take_finished() == []
    expected = b"".join(content[slot * SLOT : (slot + 1) * SLOT] for slot in order)
    assert bytes(back) == expected


def test_a_transfer_that_fails_fails_alone_and_the_job_says_which(
    file: DiskFile, jobs: DiskJobs, caplog: pytest.LogCaptureFixture
) -> None:
    os.ftruncate(file._file, 3 * SLOT)
    memory = memoryview(aligned_buffer(4 * SLOT))
    jobs.fetch(1, transfers(memory, [1, 5, 2, 6]), lambda _: None)
    jobs.wait_idle()
    [done] = jobs.take_finished()
    assert sorted(done.good) == [b"\x01", b"\x02"]
    assert sorted(done.bad) == [b"\x05", b"\x06"]
    assert done.payload_bytes == 2 * SLOT
    assert jobs.failed_transfers == 2
    assert caplog.text.count("the disk tier failed a transfer") == 1


def test_a_job_without_transfers_ends_at_once(jobs: DiskJobs) -> None:
    jobs.fetch(1, [], lambda _: pytest.fail("nothing starts"))
    [done] = jobs.take_finished()
    assert (done.good, done.bad, done.started_seconds) == ((), (), None)


def test_after_the_end_of_its_threads_a_job_fails_instead_of_waiting_for_ever(
    file: DiskFile,
) -> None:
    jobs = DiskJobs(file, depth=1)
    jobs.close()
    jobs.store(1, transfers(memoryview(aligned_buffer(SLOT)), [0]), lambda _: None)
    jobs.wait_idle()
    [done] = jobs.take_finished()
    assert done.bad == (b"\x00",)
