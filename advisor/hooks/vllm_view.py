"""What the hook reads of a vLLM scheduler: its queue, its caches' maps, its requests' progress.

Attributes and look-ups in dictionaries alone. No method of the cache manager or of a connector that
counts, touches or decides is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Any, cast

from kvready.advisor.policies import Policy
from kvready.advisor.strata import BatchLimits
from kvready.advisor.waiting_queue import Match
from kvready.collectors.engine.engine_facts import group_pages

GROUP = bytes(4)  # of the only cache group: engine and host tier both add it to a block's hash
HASH_BYTES = 8  # of a digest: what events and records name a block by
FIRST_COME = "fcfs"
RUNNING = "RUNNING"
LOADING = "WAITING_FOR_REMOTE_KVS"
COMPUTING = frozenset({RUNNING, LOADING})
REMOTE_PREFILL = "do_remote_prefill"  # of a request that another engine prefilled
LOAD_LIMIT = "max_load_tokens"  # of a request, where its connector reads it
HOST_POLICY = "LRUCachePolicy"  # another one may count what is looked up

# A block's name: the planner only compares and hashes it, so that the engine's own keys will do.
Chain = Sequence[int]
Lookup = Callable[[Any], Any]


_by_priority = attrgetter("priority", "arrival_time", "request_id")


class VllmView:
    """One scheduler, as it is now."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.block_tokens = int(scheduler.block_size)
        pool = scheduler.kv_cache_manager.block_pool
        self.in_hbm: Lookup = pool.cached_block_hash_to_block.get_one_block
        self._free = pool.free_block_queue
        connector = scheduler.connector
        self._host = None if connector is None else _host_tier(connector)
        pages = group_pages(scheduler.kv_cache_config)
        self.block_bytes = pages[0].payload_bytes if pages else 0  # in one worker
        # Behind a connector that cannot be read, what is to be loaded looks like what is computed.
        self.knows_all_tiers = connector is None or self._host is not None

    def refusals(self) -> dict[Policy, str]:
        """What cannot, or need not, be done with this configuration; empty: all can."""
        found: dict[Policy, str] = {}
        scheduler = self._scheduler
        config = scheduler.vllm_config
        reason = ""
        if len(scheduler.kv_cache_config.kv_cache_groups) != 1:
            reason = "the model has several groups of KV state: no_hook"
        elif scheduler.hash_block_size != scheduler.block_size:
            reason = "blocks are hashed by parts: no_hook"
        if reason:
            return dict.fromkeys((Policy.DEDUP, Policy.BALANCE), reason)
        if not scheduler.kv_cache_manager.enable_caching:
            found[Policy.DEDUP] = "prefix caching is off, there is nothing to wait for: no_benefit"
        elif not config.scheduler_config.long_prefill_token_threshold:
            found[Policy.DEDUP] = (
                "no chunk is capped, so that running prefills take the whole budget and nobody "
                "computes what another does: no_benefit"
            )
        if scheduler.policy.value != FIRST_COME:
            found[Policy.BALANCE] = "the order is the users' own (priority scheduling): no_hook"
        elif self._host is None:
            found[Policy.BALANCE] = "there is no host tier that can be read: no_hook"
        return found

    def first(self, count: int) -> list[Any]:
        """So many of those who own no blocks, in the order in which the scheduler takes them."""
        queue = self._scheduler.waiting
        heap = getattr(queue, "_heap", None)
        # Iterating a heap compares requests one method call at a time.
        return list(islice(queue, count)) if heap is None else nsmallest(count, heap, _by_priority)

    @property
    def unfinished(self) -> Mapping[str, Any]:
        """All requests, by name."""
        found: Mapping[str, Any] = self._scheduler.requests
        return found

    def chain(self, request: Any) -> Chain:
        """The names of its prompt's whole blocks."""
        blocks = request.num_prompt_tokens // self.block_tokens
        names = [digest + GROUP for digest in islice(request.block_hashes, blocks)]
        return cast("Chain", names)

    def match(self, chain: Chain) -> Match:
        """How many blocks, without a gap from the start, can be found."""
        in_hbm = _leading(chain, self.in_hbm)
        if self._host is None:
            return Match(in_hbm, in_hbm)
        host = self._host
        held = in_hbm
        for name in islice(chain, in_hbm, None):
            if self.in_hbm(name) is None and not _is_ready(host(name)):
                break
            held += 1
        return Match(in_hbm, held)

    def is_held(self, name: Any) -> bool:
        """Whether a block can be found in any tier."""
        if self.in_hbm(name) is not None:
            return True
        return self._host is not None and _is_ready(self._host(name))

    def limits(self) -> BatchLimits:
        """What of the engine's bounds matters to when loads start."""
        return BatchLimits(free_blocks=self._free.num_free_blocks, block_tokens=self.block_tokens)


def prefix_group(request: Any) -> int | None:
    """The first block of its prompt, as records and flags name it."""
    for digest in islice(request.block_hashes, 1):
        return int.from_bytes(digest[-HASH_BYTES:], "big")
    return None


def is_plain(request: Any) -> bool:
    """Whether it waits for nothing but its turn, has told its user nothing yet and uses the cache.

    Whoever was preempted owes its user tokens, so that holding it would stop them. What another
    engine prefilled is to be fetched before that one drops it.
    """
    return (
        request.status._name_ == "WAITING"  # `name` is a property of enums, and not a fast one
        and request.num_computed_tokens == 0
        and not request.skip_reading_prefix_cache
        and not (request.kv_transfer_params or {}).get(REMOTE_PREFILL)
    )


def loads(request: Any) -> int:
    """Tokens of a load of its own that is under way."""
    if request.status._name_ != LOADING or request.prefill_stats is None:
        return 0
    return int(request.prefill_stats.num_external_cached_tokens)


def computes(request: Any) -> bool:
    """Whether it is in, or its load is under way."""
    return request.status._name_ in COMPUTING


def _leading(chain: Chain, lookup: Lookup) -> int:
    for place, name in enumerate(chain):
        if lookup(name) is None:
            return place
    return len(chain)


def _is_ready(chunk: Any) -> bool:
    """A block that is still being stored can be loaded by nobody."""
    return chunk is not None and chunk.is_ready


def _host_tier(connector: Any) -> Lookup | None:
    """How to look a block up in the host tier; None where that could change something."""
    for one in _connectors(connector):
        offloading: Any = getattr(one, "connector_scheduler", None)
        policy = getattr(getattr(offloading, "manager", None), "_policy", None)
        if policy is None or type(policy).__name__ != HOST_POLICY:
            continue
        if offloading.config.blocks_per_chunk == 1:
            return cast("Lookup", policy.get)
    return None


def _connectors(connector: Any) -> Iterator[Any]:
    yield connector
    yield from getattr(connector, "_connectors", ())
