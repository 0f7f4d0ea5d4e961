"""What the inventory costs: memory per live block, and the lookup of a prefix among a million.

Run as `python tests/bench/inventory.py`; prints one JSON row per line.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from kvready.advisor.inventory import Inventory
from kvready.collectors.records import BlocksStored, TapEvent, TapState, TapStatus, Tier

LIVE_BLOCKS = 1_000_000
CHAIN_BLOCKS = 16
PREFIX_BLOCKS = 1_000
ROUNDS = 200
BYTES_BUDGET = 200

Row = dict[str, Any]


def filled(live_blocks: int, *, host_share: float = 0.0, seed: int = 1) -> Inventory:
    """An inventory of so many random hashes in chains, a share of them in the host tier too."""
    numbers = random.Random(seed)
    inventory = Inventory()
    inventory.apply(TapStatus("engine", 0, TapEvent.CONNECTED, TapState.LIVE))
    for _ in range(0, live_blocks, CHAIN_BLOCKS):
        hashes = tuple([numbers.getrandbits(64) for _ in range(CHAIN_BLOCKS)])
        inventory.apply(BlocksStored("engine", 0, 0, 0.0, Tier.HBM, hashes, None, 32))
        if numbers.random() < host_share:
            for one in hashes:
                inventory.apply(BlocksStored("engine", 0, 0, 0.0, Tier.HOST, (one,)))
    return inventory


def memory_row(live_blocks: int = LIVE_BLOCKS) -> Row:
    """Bytes per live block, the hash objects included."""
    gc.collect()
    tracemalloc.start()
    inventory = filled(live_blocks, host_share=0.3)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    live = inventory.live_blocks(Tier.HBM)
    value = taken / live
    return {
        "name": "inventory_bytes_per_block",
        "value": round(value, 1),
        "unit": "bytes",
        "beside": BYTES_BUDGET,
        "ratio": round(value / BYTES_BUDGET, 3),
        "conditions": {"live_blocks": live, "host_share": 0.3, "kind": "measured"},
    }


def prefix_row(live_blocks: int = LIVE_BLOCKS, rounds: int = ROUNDS) -> Row:
    """A prefix of 1,000 resident blocks beside as many plain dict lookups, in turn.

    Each round takes another prefix, so that both read hashes the processor has not at hand; which
    of the two goes first alternates.
    """
    inventory = filled(live_blocks, host_share=0.3)
    blocks = inventory.blocks(Tier.HBM)
    hashes = list(blocks)
    numbers = random.Random(2)
    ours: list[float] = []
    plain: list[float] = []
    get = dict(blocks).get

    def tier_prefix(prefix: list[int]) -> None:
        assert inventory.tier_prefix(prefix).blocks == PREFIX_BLOCKS

    def lookups(prefix: list[int]) -> None:
        list(map(get, prefix))

    contenders: list[tuple[Callable[[list[int]], None], list[float]]] = [
        (tier_prefix, ours),
        (lookups, plain),
    ]
    for _ in range(rounds):
        contenders.reverse()
        for look_up, seconds in contenders:
            prefix = numbers.sample(hashes, PREFIX_BLOCKS)
            began = time.thread_time()
            look_up(prefix)
            seconds.append(time.thread_time() - began)
    value, beside = statistics.median(ours), statistics.median(plain)
    return {
        "name": "inventory_prefix_of_1000",
        "value": round(value * 1e6, 1),
        "unit": "us",
        "beside": round(beside * 1e6, 1),
        "ratio": round(value / beside, 3),
        "conditions": {
            "live_blocks": len(hashes),
            "beside": "list(map(dict.get, hashes))",
            "rounds": rounds,
            "kind": "measured",
        },
    }


def main() -> None:
    """Print every row."""
    for row in (memory_row(), prefix_row()):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
