"""Dynamo's radix tree, fed the same real streams, finds the same prefixes resident.

Its standalone indexer would read the sockets itself, but serves HTTP on every interface of the
machine and offers no way to say otherwise, so that the tree is asked in this process instead. The
tree names blocks by their tokens, with Dynamo's own hash, and holds one copy of each: it knows of
no salt, hence unsalted chains only, and only of blocks whose tokens were told.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from dynamo import _core as dynamo
from streams import captured_frames

from kvready.advisor.inventory import Inventory
from kvready.collectors.records import Tier
from kvready.collectors.vllm import KvEventDecoder

PUBLISHER = "engine"
WORKER = 7
EVERY_MESSAGES = 10


class Chains:
    """Every unsalted chain of a stream: an engine hash's place, and its prompt so far."""

    def __init__(self) -> None:
        self.path: dict[int, tuple[int, ...]] = {}  # engine hashes from the first block on
        self.tokens: dict[int, tuple[int, ...]] = {}

    def add(self, event: dict[str, Any]) -> list[int] | None:
        """The local hash of each block stored; None where the chain is salted or not known."""
        parent = event["parent_block_hash"]
        if any(event["extra_keys"] or ()) or (parent is not None and parent not in self.path):
            return None
        path = () if parent is None else self.path[parent]
        tokens = () if parent is None else self.tokens[parent]
        size = event["block_size"]
        for place, block_hash in enumerate(event["block_hashes"]):
            path = (*path, block_hash)
            tokens = (*tokens, *event["token_ids"][place * size : (place + 1) * size])
            self.path[block_hash] = path
            self.tokens[block_hash] = tokens
        hashes: list[int] = dynamo.compute_block_hash_for_seq(list(event["token_ids"]), size)
        return hashes


def told_to(tree: Any, chains: Chains, number: int, event: dict[str, Any]) -> None:
    """One event as Dynamo's own router would hear it."""
    data: dict[str, Any]
    if event["type"] == "BlockRemoved":
        known = [one for one in event["block_hashes"] if one in chains.path]
        if not known:
            return
        data = {"removed": {"block_hashes": known}}
    else:
        local = chains.add(event)
        if local is None:
            return
        pairs = zip(event["block_hashes"], local, strict=True)
        blocks = [{"block_hash": block, "tokens_hash": tokens} for block, tokens in pairs]
        data = {"stored": {"parent_hash": event["parent_block_hash"], "blocks": blocks}}
    told = {"event_id": number, "data": data, "dp_rank": 0}
    tree.apply_event(WORKER, json.dumps(told).encode())


@pytest.mark.parametrize("capture", ["vllm_kv_events", "vllm_kv_events_offload"])
def test_every_prefix_is_as_long_as_dynamos_tree_finds_it(capture: str) -> None:
    tree = dynamo.RadixTree()
    chains = Chains()
    inventory = Inventory()
    decoder = KvEventDecoder(PUBLISHER)
    compared = partly = 0
    numbers = iter(range(1_000_000))
    frames = captured_frames(capture)
    for place, (_, number, payload) in enumerate(frames):
        for record in decoder.decode(int.from_bytes(number, "big"), payload).records:
            if getattr(record, "tier", None) is Tier.HBM:
                inventory.apply(record)
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["medium"] == "GPU":
                told_to(tree, chains, next(numbers), event)
        if place % EVERY_MESSAGES and place + 1 < len(frames):
            continue
        for block_hash, path in chains.path.items():
            local = dynamo.compute_block_hash_for_seq(list(chains.tokens[block_hash]), 32)
            found = tree.find_matches(local).scores.get((WORKER, 0), 0)
            ours = inventory.tier_prefix(path, publisher=PUBLISHER).blocks
            assert ours == found, (place, block_hash)
            compared += 1
            partly += 0 < found < len(path)
    assert compared > 1_000
    assert partly > 50
