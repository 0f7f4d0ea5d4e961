"""A vLLM scheduler in small: running requests first, then the queue in order, chunks capped.

Blocks are in the cache from the pass that allocates them, as in vLLM. The part of its surface that
the hook reads is there under the same names; nothing else is.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

BLOCK = 32
GROUP = bytes(4)


class Status(enum.Enum):
    """The names that matter."""

    WAITING = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()


@dataclass(eq=False)
class FakeRequest:
    """A request as the scheduler keeps it. Prompts are made of numbered blocks."""

    request_id: str
    blocks: tuple[int, ...]
    tail_tokens: int = 1
    output_tokens: int = 1
    priority: int = 0
    arrival_time: float = 0.0
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    skip_reading_prefix_cache: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    prefill_stats: Any = None
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        parent = b""
        for block in self.blocks:
            parent = sha256(parent + block.to_bytes(8, "big")).digest()
            self.block_hashes.append(parent)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.blocks) * BLOCK + self.tail_tokens


class FirstCome(deque[Any]):
    """The queue's own methods, as far as they are used."""

    def add_request(self, request: Any) -> None:
        self.append(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        gone = set(requests)
        left = [one for one in self if one not in gone]
        self.clear()
        self.extend(left)


class ByPriority:
    """A heap by its surface: it cannot be put in another order."""

    def __init__(self) -> None:
        self._heap: list[Any] = []

    def add_request(self, request: Any) -> None:
        self._heap.append(request)
        self._heap.sort(key=lambda one: (one.priority, one.arrival_time, one.request_id))

    def remove_requests(self, requests: Iterable[Any]) -> None:
        gone = set(requests)
        self._heap = [one for one in self._heap if one not in gone]

    def popleft(self) -> Any:
        return self._heap.pop(0)

    def appendleft(self, request: Any) -> None:
        self.add_request(request)

    def __iter__(self) -> Any:
        return iter(list(self._heap))

    def __len__(self) -> int:
        return len(self._heap)

    def __getitem__(self, place: int) -> Any:
        return self._heap[place]


class LRUCachePolicy:
    """The host tier's map, by the name that its look-up is known to be harmless under."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, Any] = {}

    def get(self, key: bytes) -> Any:
        return self.chunks.get(key)


class FakeVllm:
    """The scheduler. `hook` arranges its passes, if there is one."""

    def __init__(
        self,
        cap: int = 128,
        budget: int = 512,
        seats: int = 16,
        policy: str = "fcfs",
        host: bool = False,
        load_passes: int = 3,
    ) -> None:
        self.requests: dict[str, FakeRequest] = {}
        self.running: list[FakeRequest] = []
        self.waiting: Any = FirstCome() if policy == "fcfs" else ByPriority()
        self.deferred_waiting: set[FakeRequest] = set()
        self.block_size = self.hash_block_size = BLOCK
        self.policy = SimpleNamespace(value=policy)
        self.cache: dict[bytes, object] = {}
        spec = SimpleNamespace(page_size_bytes=1 << 16)
        group = SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"])
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=cap)
        )
        self.free = SimpleNamespace(num_free_blocks=10_000)
        lookup = SimpleNamespace(get_one_block=self.cache.get)
        pool = SimpleNamespace(cached_block_hash_to_block=lookup, free_block_queue=self.free)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool, enable_caching=True)
        self.host = LRUCachePolicy()
        self.connector: Any = None
        if host:
            self.connector = SimpleNamespace(
                connector_scheduler=SimpleNamespace(
                    manager=SimpleNamespace(_policy=self.host),
                    config=SimpleNamespace(blocks_per_chunk=1),
                )
            )
        self.computed: dict[str, int] = {}  # prompt tokens, by request
        self.loads: list[str] = []  # in the order in which they started
        self.firsts: list[str] = []  # in the order in which they were admitted
        self.steps: list[dict[str, int]] = []
        self.ends: dict[str, Status] = {}
        self.hook: Any = None
        self._budget = budget
        self._seats = seats
        self._load_passes = load_passes
        self._loading: dict[str, int] = {}

    def add(self, *requests: FakeRequest) -> None:
        """They arrive."""
        for request in requests:
            if self.hook is not None:
                self.hook.arriving(request)
            self.requests[request.request_id] = request
            self.waiting.add_request(request)

    def abort(self, request_id: str) -> None:
        """Its client went away."""
        self._end(self.requests[request_id], Status.FINISHED_ABORTED)

    def preempt(self, request_id: str) -> None:
        """It loses its blocks, which stay in the cache, and waits again before all others."""
        request = self.requests[request_id]
        self.running.remove(request)
        request.status = Status.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def evict(self, request: FakeRequest, blocks: int) -> None:
        """The last so many blocks of a prompt leave the cache."""
        for digest in request.block_hashes[-blocks:]:
            self.cache.pop(digest + GROUP, None)

    def step(self) -> dict[str, int]:
        """One pass, arranged if there is a hook, and its results."""
        if self.hook is None:
            tokens = self.schedule()
        else:
            self.hook.before_pass()
            try:
                tokens = self.schedule()
            finally:
                self.hook.after_pass()
        self.steps.append(tokens)
        for request in list(self.running):
            if request.num_computed_tokens >= request.num_prompt_tokens:
                request.output_tokens -= 1
                if request.output_tokens < 0:
                    self._end(request, Status.FINISHED_STOPPED)
        return tokens

    def run(self, passes: int = 2_000) -> None:
        """Until nobody is left."""
        while self.requests and passes:
            self.step()
            passes -= 1
        assert not self.requests, "somebody never ran"

    def schedule(self) -> dict[str, int]:
        """The stock pass."""
        budget = self._budget
        tokens: dict[str, int] = {}
        alone = len(self.running) + len(self.waiting) + len(self._loading) == 1
        cap = self.vllm_config.scheduler_config.long_prefill_token_threshold
        most = budget if alone or not cap else cap
        self._finish_loads()
        for request in self.running:
            if budget:
                budget -= self._compute(request, min(most, budget), tokens)
        skipped = []
        while self.waiting and budget and len(self.running) < self._seats:
            request = self.waiting.popleft()
            self.deferred_waiting.discard(request)
            found = self._found(request)
            if self._starts_load(request, found):
                continue
            request.status = Status.RUNNING
            request.num_computed_tokens = max(request.num_computed_tokens, found * BLOCK)
            self.running.append(request)
            self.firsts.append(request.request_id)
            budget -= self._compute(request, min(most, budget), tokens)
        for request in reversed(skipped):
            self.waiting.appendleft(request)
        return tokens

    def _compute(self, request: FakeRequest, most: int, tokens: dict[str, int]) -> int:
        left = max(1, request.num_prompt_tokens - request.num_computed_tokens)
        new = min(left, most)
        name = request.request_id
        if request.num_computed_tokens < request.num_prompt_tokens:
            self.computed[name] = self.computed.get(name, 0) + new
        request.num_computed_tokens += new
        for digest in request.block_hashes[: request.num_computed_tokens // BLOCK]:
            self.cache[digest + GROUP] = True
        tokens[name] = new
        return new

    def _found(self, request: FakeRequest) -> int:
        usable = request.block_hashes[: (request.num_prompt_tokens - 1) // BLOCK]
        return _leading(usable, self.cache)

    def _starts_load(self, request: FakeRequest, found: int) -> bool:
        if self.connector is None or request.num_computed_tokens:
            return False
        usable = request.block_hashes[found : (request.num_prompt_tokens - 1) // BLOCK]
        ahead = _leading(usable, self.host.chunks)
        if not ahead or (request.kv_transfer_params or {}).get("max_load_tokens") == 0:
            return False
        request.prefill_stats = SimpleNamespace(num_external_cached_tokens=ahead * BLOCK)
        request.status = Status.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = (found + ahead) * BLOCK
        self.free.num_free_blocks -= len(request.blocks)
        self._loading[request.request_id] = self._load_passes
        self.loads.append(request.request_id)
        return True

    def _finish_loads(self) -> None:
        for name in list(self._loading):
            self._loading[name] -= 1
            if not self._loading[name]:
                del self._loading[name]
                request = self.requests[name]
                request.status = Status.RUNNING
                self.free.num_free_blocks += len(request.blocks)
                self.running.append(request)
                self.firsts.append(name)

    def _end(self, request: FakeRequest, status: Status) -> None:
        name = request.request_id
        del self.requests[name]
        self._loading.pop(name, None)
        self.ends[name] = request.status = status
        if request in self.running:
            self.running.remove(request)
        self.waiting.remove_requests([request])
        self.deferred_waiting.discard(request)


def _leading(digests: Sequence[bytes], there: Any) -> int:
    for place, digest in enumerate(digests):
        if digest + GROUP not in there:
            return place
    return len(digests)
