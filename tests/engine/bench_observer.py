"""What the observer costs a step of the scheduler, with a subscriber attached."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import zmq

from kvready.collectors.engine.publisher import RecordPublisher, socket_path

from .scheduler_fakes import (
    FakeRequest,
    FakeScheduler,
    Status,
    observe,
    produced,
    runner_output,
    scheduled,
)

STEPS = 400
ROUNDS = 5
RUNNING = 16
PROMPT_BLOCKS = 60
STEPS_PER_ARRIVAL = 4  # a new request, hashes and all, in every fourth step
JOIN_SECONDS = 0.2


def observer_step_seconds(waiting: int = 128) -> float:
    """Seconds per step spent in the observer, arrivals included: the best round's mean."""
    with tempfile.TemporaryDirectory(prefix="kvr-") as folder:
        publisher = RecordPublisher(Path(folder), "scheduler")
        scheduler = _scheduler(waiting)
        observer = observe(scheduler, publisher, kv_sequence=1)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        subscriber = context.socket(zmq.SUB)
        subscriber.set_hwm(0)
        subscriber.subscribe(b"")
        subscriber.connect(f"ipc://{socket_path(Path(folder), 'scheduler', 0)}")
        time.sleep(JOIN_SECONDS)
        arrivals = (_request(f"new-{number}") for number in itertools.count())
        try:
            for request in [*scheduler.requests.values(), *scheduler.waiting]:
                observer.after_arrival(request)
            best = min(_round(observer, scheduler, arrivals) for _ in range(ROUNDS))
        finally:
            observer.close()
            context.destroy(linger=0)
    if publisher.failures or publisher.dropped_records:
        raise RuntimeError("the observer failed while it was timed: the figure would mean nothing")
    return best


def _round(observer, scheduler, arrivals) -> float:  # type: ignore[no-untyped-def]
    spent = 0.0
    tokens = dict.fromkeys(scheduler.requests, 1)
    outputs = produced(*((name, 1, None) for name in scheduler.requests))
    for step in range(STEPS):
        arrival = next(arrivals) if step % STEPS_PER_ARRIVAL == 0 else None
        output = scheduled(tokens)
        began = time.perf_counter()
        if arrival is not None:
            observer.after_arrival(arrival)
        observer.after_schedule(output, observer.begin())
        observer.after_update(output, runner_output({}), outputs)
        spent += time.perf_counter() - began
    return spent / STEPS


def _scheduler(waiting: int) -> FakeScheduler:
    scheduler = FakeScheduler(connector=object())
    for number in range(RUNNING):
        request = _request(f"run-{number}")
        request.num_computed_tokens = 2_000
        scheduler.requests[request.request_id] = request
        scheduler.running.append(request)
    for number in range(waiting):
        request = _request(f"wait-{number}")
        scheduler.waiting.append(request)
        if number % 8 == 0:
            request.status = Status.WAITING_FOR_REMOTE_KVS
            scheduler.deferred_waiting.add(request)
    return scheduler


def _request(name: str) -> FakeRequest:
    # Names as long as the engine's own: prefix, client's id, choice and a random suffix.
    return FakeRequest(
        f"cmpl-3f2c9a54b0d94d4f-{name}-0-b673a854",
        num_prompt_tokens=PROMPT_BLOCKS * 32,
        block_hashes=[bytes(24) + number.to_bytes(8, "big") for number in range(PROMPT_BLOCKS)],
    )


if __name__ == "__main__":
    print(f"observer_step_seconds_128 {observer_step_seconds():.6f}")
