"""A scheduler's surface without a scheduler: the attributes that the observer reads, no more."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvready.collectors.engine.engine_facts import GroupPages
from kvready.collectors.engine.fetches import Fetches
from kvready.collectors.engine.publisher import RecordPublisher
from kvready.collectors.engine.step_observer import StepObserver
from kvready.collectors.engine.transfer_jobs import TransferJobs
from kvready.collectors.records import EngineDescribed, OverlapMode

BLOCK_TOKENS = 32
PAGES = (GroupPages(fragments=32, payload_bytes=32 * 131_072),)


class Status(enum.Enum):
    """The names that the observer knows."""

    WAITING = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()


class FinishReason(enum.Enum):
    """Why an output is the last."""

    STOP = enum.auto()
    LENGTH = enum.auto()
    ABORT = enum.auto()
    ERROR = enum.auto()


@dataclass(eq=False)
class FakeRequest:
    """A request as the scheduler keeps it."""

    request_id: str
    num_prompt_tokens: int = 64
    max_tokens: int = 8
    block_hashes: list[bytes] = field(default_factory=list)
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_stale_output_tokens: int = 0
    is_prefill_chunk: bool = False
    prefill_stats: Any = None


def prefill_stats(local: int, external: int, prompt: int = 64) -> SimpleNamespace:
    """The engine's account of a first admission."""
    return SimpleNamespace(
        num_prompt_tokens=prompt, num_local_cached_tokens=local, num_external_cached_tokens=external
    )


class FakeScheduler:
    """Queues, requests and the free-block count."""

    def __init__(self, connector: object | None = None) -> None:
        self.requests: dict[str, FakeRequest] = {}
        self.running: list[FakeRequest] = []
        self.waiting: deque[FakeRequest] = deque()
        self.pause_state = SimpleNamespace(name="UNPAUSED")
        self.kv_holding_waiting: deque[FakeRequest] = deque()
        self.deferred_waiting: set[FakeRequest] = set()
        self.connector = connector
        self.ec_connector = None
        self.lora_config = None
        self.num_spec_tokens = 0
        self.hash_block_size = BLOCK_TOKENS
        self.kv_cache_manager = SimpleNamespace(
            block_pool=SimpleNamespace(free_block_queue=SimpleNamespace(num_free_blocks=255))
        )


def scheduled(
    tokens: dict[str, int],
    new: tuple[str, ...] = (),
    resumed: tuple[str, ...] = (),
    preempted: tuple[str, ...] = (),
    metadata: object | None = None,
) -> SimpleNamespace:
    """What `schedule()` returns."""
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
        preempted_req_ids=set(preempted),
        kv_connector_metadata=metadata,
    )


def transfers(
    loads: dict[int, tuple[str, int]], stores: dict[int, tuple[str, int]]
) -> SimpleNamespace:
    """A connector's message: job -> (request id, HBM blocks)."""

    def order(request_id: str, blocks: int, is_load: bool) -> SimpleNamespace:
        hbm = SimpleNamespace(group_sizes=[blocks])
        host = SimpleNamespace(block_ids=list(range(blocks)))
        source, destination = (host, hbm) if is_load else (hbm, host)
        return SimpleNamespace(req_id=request_id, src_spec=source, dst_spec=destination)

    return SimpleNamespace(
        load_jobs={job: order(*what, is_load=True) for job, what in loads.items()},
        store_jobs={job: order(*what, is_load=False) for job, what in stores.items()},
    )


def runner_output(completed: dict[int, int] | None = None) -> SimpleNamespace:
    """What the workers return: jobs done, and by how many of them."""
    if completed is None:
        return SimpleNamespace(kv_connector_output=None)
    worker_meta = SimpleNamespace(completed_jobs=completed)
    return SimpleNamespace(
        kv_connector_output=SimpleNamespace(kv_connector_worker_meta=worker_meta)
    )


def produced(*outputs: tuple[str, int, FinishReason | None]) -> dict[int, SimpleNamespace]:
    """What `update_from_output()` returns: (request id, new tokens, reason if it ended)."""
    return {
        0: SimpleNamespace(
            outputs=[
                SimpleNamespace(request_id=name, new_token_ids=[1] * tokens, finish_reason=reason)
                for name, tokens, reason in outputs
            ]
        )
    }


def described(has_mover_times: bool = True) -> EngineDescribed:
    """An engine's description."""
    return EngineDescribed(
        engine="vllm",
        engine_version="0.32.0",
        model="kv-heavy",
        block_tokens=BLOCK_TOKENS,
        hbm_blocks=255,
        kv_bytes_per_token=131_072,
        layers=32,
        overlap=OverlapMode.BEFORE_ADMISSION,
        has_mover_times=has_mover_times,
    )


def observe(
    scheduler: FakeScheduler,
    publisher: RecordPublisher,
    note_finish: bool = False,
    workers: int = 1,
    kv_sequence: int | None = None,
    fetches: Fetches | None = None,
) -> StepObserver:
    """An observer of a fake scheduler."""
    jobs = TransferJobs(PAGES, BLOCK_TOKENS, workers, note_finish)
    return StepObserver(
        scheduler, described(not note_finish), jobs, publisher, lambda: kv_sequence, fetches
    )
