"""Jobs on the processes of this machine. Results are those of one process, in the same order."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from kvready.advisor.whatif.summary import Summary
from kvready.advisor.whatif.sweep import Job, run_job
from kvready.collectors.errors import ServiceError

MAX_JOBS = 256

Told = Callable[[float], None]  # runs done so far, a run under way in part


J = TypeVar("J")
R = TypeVar("R")
Work = Callable[[J, Told | None], R]  # a function of a module, so that it can be sent


def run_all(jobs: Sequence[Job], workers: int, told: Told) -> list[Summary]:
    """All runs of a what-if, as `run_each`."""
    return run_each(run_job, jobs, workers, told)


def run_each(work: Work[J, R], jobs: Sequence[J], workers: int, told: Told) -> list[R]:
    """All of them, in order. `KeyboardInterrupt` ends every process before it is passed on."""
    if workers == 1:
        return [_alone(work, number, job, told) for number, job in enumerate(jobs)]
    # Spawned: a fork of a process that draws a progress bar may hold its lock for ever.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context)
    before = set(multiprocessing.active_children())
    try:
        with _interrupts_kept():
            running = [pool.submit(work, job, None) for job in jobs]
        _wait(running, told)
        return [one.result() for one in running]
    except BrokenProcessPool as error:
        raise ServiceError(
            "a worker process ended by itself, perhaps for want of memory; use fewer --jobs"
        ) from error
    except BaseException:
        _end(before)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _alone(work: Work[J, R], number: int, job: J, told: Told) -> R:
    result = work(job, lambda share: told(number + share))
    told(number + 1)
    return result


def _wait(running: Sequence[Future[R]], told: Told) -> None:
    for done, one in enumerate(as_completed(running), start=1):
        one.result()  # the first that failed ends all
        told(done)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Processes that start here never see an interrupt; this one sees it when they all run.

    A terminal interrupts all processes of a group, and the parent alone is to answer. What is
    blocked is inherited; but a thread that blocks nothing (a progress bar's) still takes the signal
    for all, so that it has to be kept as well.
    """
    kept: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = (
        signal.signal(signal.SIGINT, lambda number, _: kept.append(number)) if is_main else None
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, handler)
    if kept:
        raise KeyboardInterrupt


def _end(before: set[multiprocessing.process.BaseProcess]) -> None:
    for process in set(multiprocessing.active_children()) - before:
        process.terminate()
