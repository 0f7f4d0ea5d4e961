"""Watches a vLLM scheduler step by step and publishes what happened.

Reads attributes only: it calls neither the cache manager nor a connector, changes nothing, and
whatever goes wrong in here is counted and stays in here.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Concatenate, NamedTuple, ParamSpec

from kvready.collectors.engine.fetches import Fetches
from kvready.collectors.engine.live_requests import LiveRequests
from kvready.collectors.engine.publisher import RecordPublisher
from kvready.collectors.engine.transfer_jobs import TransferJobs
from kvready.collectors.records import (
    MAX_WAITING_IDS,
    AnyRecord,
    BatchFinished,
    BatchMember,
    BatchPlanned,
    EngineDescribed,
)

DESCRIBE_SECONDS = 1.0  # how soon a subscriber that joins late learns what the engine is
MAX_OPEN_STEPS = 64  # scheduled, results not back; engines pipeline a handful
MAX_PENDING_RECORDS = 4096  # between two steps
POLICY_HOOK = "policy_hook"  # of a scheduler whose passes a hook arranges; it tells whom it held
NOBODY: frozenset[str] = frozenset()
UNPAUSED = "UNPAUSED"  # the engine's name for the state in which it schedules

P = ParamSpec("P")


class Began(NamedTuple):
    """When a step began, on both clocks."""

    monotonic_seconds: float
    wall_seconds: float


class _OpenStep(NamedTuple):
    output: Any  # kept, so that its identity stays its own
    step: int
    began_seconds: float


def counted(
    hook: Callable[Concatenate[StepObserver, P], None],
) -> Callable[Concatenate[StepObserver, P], None]:
    """A failure in a hook costs records, never the engine."""

    @functools.wraps(hook)
    def guarded(self: StepObserver, /, *arguments: P.args, **named: P.kwargs) -> None:
        try:
            hook(self, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - nothing here may reach the engine
            self.publisher.lose(1)
            self.publisher.count_failure(error)

    return guarded


class StepObserver:
    """Owns the account of one scheduler."""

    def __init__(
        self,
        scheduler: Any,
        described: EngineDescribed,
        jobs: TransferJobs,
        publisher: RecordPublisher,
        kv_sequence: Callable[[], int | None],
        fetches: Fetches | None = None,
    ) -> None:
        self.publisher = publisher
        self._scheduler = scheduler
        self._described = described
        self._described_seconds = float("-inf")
        self._jobs = jobs
        self._kv_sequence = kv_sequence
        self._fetches = fetches
        self._requests = LiveRequests(scheduler.hash_block_size)
        self._free_blocks = scheduler.kv_cache_manager.block_pool.free_block_queue
        # Nothing else sets a plain waiting request aside then.
        self._lookup_may_defer = (
            scheduler.connector is not None
            and not scheduler.lora_config
            and scheduler.ec_connector is None
        )
        self._speculates = scheduler.num_spec_tokens > 0
        self._pending: list[AnyRecord] = []
        self._open: OrderedDict[int, _OpenStep] = OrderedDict()
        self._step = 0
        publisher.open()

    @staticmethod
    def begin() -> Began:
        """Both clocks, read together, before the scheduler chooses a batch."""
        return Began(time.monotonic(), time.time())

    @counted
    def after_arrival(self, request: Any) -> None:
        """A request was handed to the scheduler."""
        self._pending += self._requests.arrived(request, time.monotonic())
        if len(self._pending) >= MAX_PENDING_RECORDS:
            self._flush()

    @counted
    def after_schedule(self, output: Any, began: Began) -> None:
        """The scheduler chose a batch, which may be empty."""
        seconds = began.monotonic_seconds
        if seconds - self._described_seconds >= DESCRIBE_SECONDS:
            self._described_seconds = seconds
            self._pending.append(self._described)
        if output.preempted_req_ids:
            self._pending += self._requests.preempted(output.preempted_req_ids, seconds)
        # The batch goes before the copies ordered with it: it is what they may have to wait for.
        if output.num_scheduled_tokens:
            self._pending.append(self._planned(output, began))
        self._note_fetches()
        if output.kv_connector_metadata is not None:
            self._note_orders(output.kv_connector_metadata, seconds)
        admitted = [new.req_id for new in output.scheduled_new_reqs]
        admitted += output.scheduled_cached_reqs.resumed_req_ids
        if admitted:
            self._pending += self._requests.admitted(admitted, output.num_scheduled_tokens, seconds)
        if self._scheduler.deferred_waiting:
            hook = getattr(self._scheduler, POLICY_HOOK, None)
            self._pending += self._requests.deferred(
                self._scheduler.deferred_waiting,
                hook.held if hook is not None else NOBODY,
                self._lookup_may_defer,
                seconds,
            )
        self._flush()

    @counted
    def after_update(self, output: Any, runner_output: Any, engine_outputs: Any) -> None:
        """A batch's results were taken in and its KV events published."""
        seconds = time.monotonic()
        for outputs in engine_outputs.values():
            if outputs.outputs:
                self._pending += self._requests.produced(outputs.outputs, seconds)
        self._note_fetches()
        transferred = runner_output.kv_connector_output
        if transferred is not None:
            self._pending += self._jobs.finished(transferred.kv_connector_worker_meta, seconds)
        opened = self._open.pop(id(output), None)
        if opened is not None:
            self._pending.append(
                BatchFinished(
                    step=opened.step,
                    finished_seconds=seconds,
                    duration_seconds=seconds - opened.began_seconds,
                    kv_sequence=self._kv_sequence(),
                )
            )
        if not self._steps_again():
            self._flush()

    @counted
    def after_stop(self, requests: Iterable[Any]) -> None:
        """Requests were ended from outside: clients went away, or something failed."""
        self._pending += self._requests.stopped(requests, time.monotonic())
        self._flush()

    def close(self) -> None:
        """The engine shuts down. Safe twice."""
        self.publisher.close()

    def _note_orders(self, metadata: Any, seconds: float) -> None:
        for record in self._jobs.decided(metadata, seconds):
            if record.destination == "hbm":
                self._requests.load_ordered(record.request_id, record.tokens)
            self._pending.append(record)

    def _note_fetches(self) -> None:
        if self._fetches is None:
            return
        records, lost = self._fetches.take()
        self._pending += records
        if lost:
            self.publisher.lose(lost)

    def _planned(self, output: Any, began: Began) -> BatchPlanned:
        self._step += 1
        if len(self._open) >= MAX_OPEN_STEPS:
            self._open.popitem(last=False)
        self._open[id(output)] = _OpenStep(output, self._step, began.monotonic_seconds)
        scheduler = self._scheduler
        queues = (scheduler.kv_holding_waiting, scheduler.waiting)
        return BatchPlanned(
            step=self._step,
            planned_seconds=began.monotonic_seconds,
            planned_wall_seconds=began.wall_seconds,
            members=self._members(output),
            waiting=_waiting_ids(queues),
            waiting_total=len(queues[0]) + len(queues[1]),
            free_blocks=self._free_blocks.num_free_blocks,
        )

    def _members(self, output: Any) -> tuple[BatchMember, ...]:
        requests = self._scheduler.requests
        members = []
        for request_id, new_tokens in output.num_scheduled_tokens.items():
            request = requests[request_id]
            # The scheduler has already counted the new tokens as computed.
            context_tokens = request.num_computed_tokens - new_tokens
            is_prefill = (
                context_tokens < request.num_prompt_tokens
                or request.is_prefill_chunk
                or (new_tokens > 1 and not self._speculates)
            )
            members.append(BatchMember(request_id, new_tokens, context_tokens, is_prefill))
        return tuple(members)

    def _steps_again(self) -> bool:
        """Whether the engine schedules right after this: one message then serves both.

        Half of what the observer costs is waking whoever sends and receives.
        """
        scheduler = self._scheduler
        return scheduler.pause_state.name == UNPAUSED and bool(
            scheduler.running or scheduler.waiting or scheduler.kv_holding_waiting
        )

    def _flush(self) -> None:
        if self._pending:
            records, self._pending = self._pending, []
            self.publisher.publish(records)


_by_priority = attrgetter("priority", "arrival_time", "request_id")


def _in_order(queue: Any) -> Iterable[Any]:
    """A queue's requests in the order in which the scheduler would take them.

    Iterating a priority queue compares requests one method call at a time; sorting by key is the
    same order at a tenth of the cost.
    """
    if isinstance(queue, deque):
        return queue
    return sorted(getattr(queue, "_heap", queue), key=_by_priority)


def _waiting_ids(queues: tuple[Any, Any]) -> tuple[str, ...]:
    waiting = chain.from_iterable(_in_order(queue) for queue in queues if queue)
    return tuple([request.request_id for request in islice(waiting, MAX_WAITING_IDS)])
