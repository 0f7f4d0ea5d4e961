"""Streams for tests: real captures, and an engine in small whose truth is known at each message."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec

FIXTURES = Path(__file__).parent / "fixtures"
BLOCK_TOKENS = 4
FIRST_CHUNKED = 10_000  # hashes from here on are in chunks of several
FIRST_PUBLISH_WALL_SECONDS = 1_700_000_000.0

Truth = dict[str, Counter[int]]  # blocks per hash, by medium


def captured_lines(name: str) -> list[dict[str, Any]]:
    """A captured file's lines."""
    with gzip.open(FIXTURES / f"{name}.jsonl.gz") as lines:
        return [json.loads(line) for line in lines]


def captured_frames(name: str) -> list[list[bytes]]:
    """A captured stream's messages, frame by frame."""
    return [[base64.b64decode(frame) for frame in line["frames"]] for line in captured_lines(name)]


class SmallEngine:
    """vLLM's cache bookkeeping in small: blocks by hash, evicted at random, told in messages.

    One instance is one incarnation. `truths[n]` is what is findable once message n was published.
    """

    def __init__(self, seed: int, wall_seconds: float = FIRST_PUBLISH_WALL_SECONDS) -> None:
        self._random = Random(seed)
        self._wall_seconds = wall_seconds
        self._live: Truth = {"GPU": Counter(), "CPU": Counter()}
        self._chunks: set[tuple[int, ...]] = set()  # of the host tier, several blocks each
        self.published: list[bytes] = []
        self.truths: list[Truth] = []

    @property
    def wall_seconds(self) -> float:
        """When the last message was published."""
        return self._wall_seconds

    def set_clock(self, seconds: float) -> None:
        """The machine's wall clock jumps by so much, either way."""
        self._wall_seconds += seconds

    def step(self) -> bytes:
        """One engine step's message."""
        events: list[dict[str, Any]] = []
        for _ in range(self._random.randint(1, 5)):
            events += self._random.choice(
                [
                    self._compute,
                    self._compute,
                    self._evict,
                    self._evict,
                    self._offload,
                    self._offload_chunk,
                    self._forget_host,
                    self._forget_chunk,
                    self._report,
                    self._clear,
                ]
            )()
        self._wall_seconds += 0.01
        payload = msgspec.msgpack.encode([self._wall_seconds, events, 0])
        self.published.append(payload)
        self.truths.append({medium: +count for medium, count in self._live.items()})
        return payload

    def _chain(self) -> list[int]:
        """One of a few documents: block n of document d has hash d * 100 + n + 1."""
        document = self._random.randint(1, 6)
        return [document * 100 + place for place in range(1, self._random.randint(2, 6))]

    def _stored(self, hashes: list[int], parent: int | None, medium: str) -> dict[str, Any]:
        tokens = [token for one in hashes for token in range(one * 4, one * 4 + BLOCK_TOKENS)]
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": tokens,
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": medium,
            "lora_name": None,
            "extra_keys": [None] * len(hashes),
            "group_idx": 0,
        }
        if medium == "CPU":
            event |= {"token_ids": [], "block_size": 0, "parent_block_hash": None}
        return event

    def _compute(self) -> list[dict[str, Any]]:
        """A prompt is computed past its hit, or (prompt log-probabilities) wholly, hits and all."""
        chain = self._chain()
        live = self._live["GPU"]
        hit = 0
        while hit < len(chain) and chain[hit] in live:
            hit += 1
        if self._random.random() < 0.2 and hit < len(chain):
            hit = 0
        if hit == len(chain):
            hit -= 1  # the last block is always computed again: a second block of one hash
            if hit == 0:
                return []  # one that no listener can tell from a report: see the inventory's tests
        fresh = chain[hit:]
        live.update(fresh)
        return [self._stored(fresh, chain[hit - 1] if hit else None, "GPU")]

    def _evict(self) -> list[dict[str, Any]]:
        live = self._live["GPU"]
        held = sorted(live.elements())
        victims = self._random.sample(held, min(len(held), self._random.randint(1, 4)))
        for one in victims:
            live[one] -= 1
            if not live[one]:
                del live[one]
        return [
            {"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU", "group_idx": 0}
            for one in victims
        ]

    def _offload(self) -> list[dict[str, Any]]:
        fresh = [one for one in self._chain() if one not in self._live["CPU"]]
        self._live["CPU"].update(fresh)
        return [self._stored([one], None, "CPU") for one in fresh]

    def _forget_host(self) -> list[dict[str, Any]]:
        held = sorted(one for one in self._live["CPU"] if one < FIRST_CHUNKED)
        victims = self._random.sample(held, min(len(held), 2))
        for one in victims:
            del self._live["CPU"][one]
        if not victims:
            return []
        removed = {"type": "BlockRemoved", "block_hashes": victims, "medium": "CPU"}
        return [removed | {"group_idx": 0}]

    def _offload_chunk(self) -> list[dict[str, Any]]:
        """Self-describing: all blocks of a chunk at once; two chunks may share their first."""
        first = FIRST_CHUNKED + 10 * self._random.randint(0, 3)
        chunk = (first, first + self._random.randint(1, 2))
        if chunk in self._chunks:
            return []
        self._chunks.add(chunk)
        self._live["CPU"].update(chunk)
        return [self._stored(list(chunk), None, "CPU")]

    def _forget_chunk(self) -> list[dict[str, Any]]:
        if not self._chunks:
            return []
        chunk = self._random.choice(sorted(self._chunks))
        self._chunks.remove(chunk)
        self._live["CPU"] -= Counter(chunk)
        removed = {"type": "BlockRemoved", "block_hashes": list(chunk), "medium": "CPU"}
        return [removed | {"group_idx": 0}]

    def _report(self) -> list[dict[str, Any]]:
        """A request asked to be told its hits: nothing is stored."""
        chain = self._chain()
        hit = 0
        while hit < len(chain) and chain[hit] in self._live["GPU"]:
            hit += 1
        return [self._stored(chain[:hit], None, "GPU")] if hit else []

    def _clear(self) -> list[dict[str, Any]]:
        if self._random.random() < 0.9:
            return []
        self._live["GPU"].clear()
        return [{"type": "AllBlocksCleared"}]
