"""One direction of a mover: in order, in the background, every end told exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kvready.kernels.engine.copy_thread import Copied, CopyThread
from kvready.kernels.engine.transfer_observer import load_observer

PATIENCE_SECONDS = 10.0


def moved(payload_bytes: int, fragments: int, mismatched: bool | None = None) -> Copied:
    return Copied(payload_bytes, fragments, "dma_per_page", mismatched)


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.methods: list[str] = []
        self.closed = 0

    def started(self, load_id: int, is_load: bool, started_seconds: float) -> None:
        self.told.append(("started", load_id, is_load, started_seconds))

    def finished(
        self,
        load_id: int,
        is_load: bool,
        started_seconds: float,
        ready_seconds: float,
        payload_bytes: int,
        fragments: int,
        method: str,
    ) -> None:
        self.told.append(
            ("finished", load_id, is_load, started_seconds, ready_seconds, payload_bytes, fragments)
        )
        self.methods.append(method)

    def checked(self, load_id: int, is_load: bool, mismatched: bool) -> None:
        self.told.append(("checked", load_id, is_load, mismatched))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def thread(notes: Notes) -> Iterator[CopyThread]:
    thread = CopyThread(True, notes)
    yield thread
    thread.shutdown()


def test_submitting_returns_while_the_copy_runs(thread: CopyThread) -> None:
    may_end = threading.Event()

    def copy() -> Copied:
        assert may_end.wait(PATIENCE_SECONDS)
        return moved(10, 2)

    thread.submit(1, copy)
    assert thread.take_finished() == []
    may_end.set()
    thread.wait([1])
    ((job, failed, payload_bytes, started, ready),) = thread.take_finished()
    assert (job, failed, payload_bytes) == (1, False, 10)
    assert started <= ready
    assert thread.take_finished() == []


def test_copies_run_in_the_order_of_submission(thread: CopyThread) -> None:
    order: list[int] = []
    for job in range(50):
        thread.submit(job, lambda job=job: order.append(job) or moved(1, 1))  # type: ignore[misc]
    thread.wait(range(50))
    assert order == list(range(50))
    assert [done.job for done in thread.take_finished()] == order


def test_waiting_covers_exactly_the_named_jobs(thread: CopyThread) -> None:
    may_end = threading.Event()
    thread.submit(1, lambda: moved(1, 1))
    thread.submit(2, lambda: moved(int(may_end.wait(PATIENCE_SECONDS)), 1))
    thread.wait({1, 77})  # 77 was never submitted
    assert not may_end.is_set()
    may_end.set()
    thread.wait({2})
    assert [done.job for done in thread.take_finished()] == [1, 2]


def test_the_observer_hears_of_each_copy_with_its_own_times(
    thread: CopyThread, notes: Notes
) -> None:
    before = time.monotonic()
    thread.submit(7, lambda: moved(4096, 3))
    thread.wait([7])
    after = time.monotonic()
    (_, _, _, told_start), (_, _, _, started, ready, payload_bytes, fragments) = notes.told
    assert before <= told_start == started <= ready <= after
    assert [entry[:3] for entry in notes.told] == [("started", 7, True), ("finished", 7, True)]
    assert (payload_bytes, fragments) == (4096, 3)


def test_the_observer_hears_how_it_was_copied_and_of_a_check_before_the_end(
    thread: CopyThread, notes: Notes
) -> None:
    thread.submit(1, lambda: Copied(8, 1, "gather"))
    thread.submit(2, lambda: Copied(8, 1, "dma_per_page", mismatched=True))
    thread.wait([1, 2])
    assert notes.methods == ["gather", "dma_per_page"]
    assert [entry[0] for entry in notes.told] == [
        *("started", "finished"),
        *("started", "checked", "finished"),
    ]
    assert notes.told[3] == ("checked", 2, True, True)


def test_a_failed_copy_is_reported_as_failed_and_the_next_one_runs(
    thread: CopyThread, notes: Notes
) -> None:
    thread.submit(1, lambda: moved(1 // 0, 0))
    thread.submit(2, lambda: moved(5, 1))
    thread.wait([1, 2])
    assert [(done.job, done.failed) for done in thread.take_finished()] == [(1, True), (2, False)]
    assert ("finished", 1) not in [entry[:2] for entry in notes.told]


def test_an_observer_that_fails_costs_no_copy() -> None:
    thread = CopyThread(False, observer=object())  # type: ignore[arg-type]
    thread.submit(1, lambda: moved(5, 1))
    thread.wait([1])
    assert [done.failed for done in thread.take_finished()] == [False]
    assert thread.observer_failures == 2
    thread.shutdown()


def test_shutdown_finishes_what_was_submitted_and_is_safe_twice(thread: CopyThread) -> None:
    done = []
    for job in range(5):
        thread.submit(job, lambda job=job: done.append(job) or moved(1, 1))  # type: ignore[misc]
    thread.shutdown()
    thread.shutdown()
    assert done == list(range(5))
    with pytest.raises(RuntimeError, match="shut down"):
        thread.submit(9, lambda: moved(0, 0))


def a_factory(rank: int, worker: int) -> Notes:
    notes = Notes()
    notes.told.append((rank, worker))
    return notes


def test_an_observer_is_found_by_its_dotted_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_observer(None, 0) is None
    assert load_observer("", 0) is None
    observer = load_observer(f"{__name__}:a_factory", 3, 1)
    assert isinstance(observer, Notes)
    assert observer.told == [(3, 1)]


@pytest.mark.parametrize("path", ["kvready.collectors.engine.transfers", "no.such:thing", "json:x"])
def test_a_path_that_leads_nowhere_names_the_setting(path: str) -> None:
    with pytest.raises(ValueError, match=r"transfer_observer=.*package\.module:factory"):
        load_observer(path, 0)
