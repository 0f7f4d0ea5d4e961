"""The observer inside vLLM, to be named in `--scheduler-cls`.

While `KVREADY_OBSERVER` is unset or `off` it is the stock scheduler: nothing is opened and nothing
is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from kvready.collectors.engine.engine_facts import check_version, describe, group_pages
from kvready.collectors.engine.fetches import fetches_of
from kvready.collectors.engine.publisher import RecordPublisher, observer_folder
from kvready.collectors.engine.step_observer import StepObserver
from kvready.collectors.engine.transfer_jobs import TransferJobs

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

SCHEDULER_ROLE = "scheduler"


class ObservedScheduler(AsyncScheduler):
    """vLLM's scheduler, observed: each hook runs the stock method first and looks afterwards.

    Derived from the asynchronous scheduler, since vLLM turns asynchronous scheduling off for any
    other base; where the engine schedules synchronously it chooses the same batches.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        folder = observer_folder()
        if folder is not None:
            check_version(vllm.__version__)
        super().__init__(*arguments, **named)
        self.step_observer: StepObserver | None = None
        if folder is not None:
            rank = self.parallel_config.data_parallel_index
            self.step_observer = _observe(self, RecordPublisher(folder, SCHEDULER_ROLE, rank))

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if self.step_observer is not None:
            self.step_observer.after_arrival(request)

    def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
        if self.step_observer is None:
            return super().schedule(*arguments, **named)
        began = self.step_observer.begin()
        output = super().schedule(*arguments, **named)
        self.step_observer.after_schedule(output, began)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.step_observer is not None:
            self.step_observer.after_update(scheduler_output, model_runner_output, outputs)
        return outputs

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        stopped = super().finish_requests(request_ids, finished_status)
        if self.step_observer is not None:
            self.step_observer.after_stop(stopped)
        return stopped

    def shutdown(self) -> None:
        super().shutdown()
        if self.step_observer is not None:
            self.step_observer.close()


def _observe(scheduler: AsyncScheduler, publisher: RecordPublisher) -> StepObserver:
    pages = group_pages(scheduler.kv_cache_config)
    described = describe(scheduler, vllm.__version__, pages)
    jobs = TransferJobs(
        pages,
        block_tokens=scheduler.block_size,
        workers=scheduler.parallel_config.world_size,
        note_finish=not described.has_mover_times,
    )
    return StepObserver(
        scheduler,
        described,
        jobs,
        publisher,
        _count_published(scheduler.kv_event_publisher),
        fetches_of(scheduler.parallel_config.data_parallel_index),
    )


def _count_published(publisher: Any) -> Callable[[], int | None]:
    """A reading of the last KV-event message's sequence number, None before the first.

    The publisher numbers messages on its own thread, in the order of its `publish` calls; counting
    those is exact and leaves its state alone.
    """
    published = 0
    stock_publish = publisher.publish

    def publish(events: Any) -> None:
        nonlocal published
        stock_publish(events)
        published += 1

    # A publisher without a configuration sends nothing.
    if publisher.get_publisher_config() is None:
        return lambda: None
    publisher.publish = publish
    return lambda: published - 1 if published else None
