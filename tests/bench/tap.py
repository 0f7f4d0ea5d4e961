"""What the KV-event tap costs beside the least that could do the job, on one stream in one run.

The stream is a real vLLM capture, its events regrouped to 1, 8 or 64 a message and repeated under
other hashes. Each contender drains it from a SUB socket into which it has already arrived; rounds
are interleaved in shuffled order; seconds are CPU seconds of the draining thread, so that whatever
else the machine does changes little. The ceilings are pyzmq, one typed msgspec decode and one dict:
`full` reads the events as published, `keyed` makes content keys of them besides, `lean` reads only
what residency needs (no token ids). Dynamo's radix tree receives nothing: it gets its own JSON.

Run as `python tests/bench/tap.py`; prints one JSON row per line.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from streams import captured_frames

from kvready.advisor.inventory import Inventory
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.records import AnyRecord, Tier

EVENTS_PER_MESSAGE = (1, 8, 64)
LAPS = 12
ROUNDS = 9
SETTLE_SECONDS = 0.4
WORKER = 1

Publish = Callable[[], None]
Drain = Callable[[str, int, Publish], float]  # endpoint, messages, what sends them all
Row = dict[str, Any]


class FullStored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    """The event as vLLM 0.32 publishes it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class LeanStored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    """Only what residency needs."""

    block_hashes: list[int]
    medium: str | None


class Removed(msgspec.Struct, tag="BlockRemoved", tag_field="type", gc=False):
    """Both ceilings' removal."""

    block_hashes: list[int]
    medium: str | None


class FullBatch(msgspec.Struct, array_like=True, gc=False):
    """A message for the full ceiling."""

    ts: float
    events: list[FullStored | Removed]
    rank: int | None = None


class LeanBatch(msgspec.Struct, array_like=True, gc=False):
    """A message for the lean ceiling."""

    ts: float
    events: list[LeanStored | Removed]
    rank: int | None = None


def captured_events(laps: int = LAPS) -> list[dict[str, Any]]:
    """The capture's events, `laps` times over, each lap under hashes of its own."""
    one_lap = [
        event
        for _, _, payload in captured_frames("vllm_kv_events")
        for event in msgspec.msgpack.decode(payload)[1]
    ]
    events = []
    for lap in range(laps):
        turn = lap * 0x9E3779B97F4A7C15 % 2**64
        for event in one_lap:
            turned = event | {"block_hashes": [one ^ turn for one in event["block_hashes"]]}
            if event.get("parent_block_hash") is not None:
                turned["parent_block_hash"] = event["parent_block_hash"] ^ turn
            events.append(turned)
    return events


def as_messages(events: list[dict[str, Any]], events_per_message: int) -> list[bytes]:
    """The events as payloads of so many each."""
    return [
        msgspec.msgpack.encode([1.7e9 + start, events[start : start + events_per_message], 0])
        for start in range(0, len(events), events_per_message)
    ]


def drain_by_tap(*, content_keys: bool) -> Drain:
    """Ours: sequence check, decode, records, inventory."""

    def drain(endpoint: str, messages: int, publish: Publish) -> float:
        inventory = Inventory()
        apply = inventory.apply

        def sink(record: AnyRecord, received_seconds: float, tap: str) -> None:
            apply(record)

        tap = KvEventTap("engine", endpoint, with_content_keys=content_keys)
        tap.start(sink)
        publish()
        began = time.thread_time()
        while tap.coverage().messages < messages:
            tap.poll(1.0)
        seconds = time.thread_time() - began
        tap.stop()
        assert inventory.live_blocks(Tier.HBM) > 0
        return seconds

    return drain


def drain_by_ceiling(batch: type[FullBatch | LeanBatch], *, content_keys: bool = False) -> Drain:
    """pyzmq, typed msgspec, one dict; no check of anything. With keys, the same hash chain too."""

    def drain(endpoint: str, messages: int, publish: Publish) -> float:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(endpoint)
        decode = msgspec.msgpack.Decoder(batch).decode
        live: dict[int, int] = {}
        keys: dict[int, int] = {}
        publish()
        began = time.thread_time()
        for _ in range(messages):
            _, _, payload = socket.recv_multipart()
            for event in decode(payload).events:
                if type(event) is Removed:
                    for block_hash in event.block_hashes:
                        live.pop(block_hash, None)
                else:
                    for block_hash in event.block_hashes:
                        live[block_hash] = 1
                    if content_keys and isinstance(event, FullStored):
                        chain_keys(keys, event)
        seconds = time.thread_time() - began
        context.destroy(linger=0)
        assert live
        return seconds

    return drain


def chain_keys(keys: dict[int, int], event: FullStored) -> None:
    """The content keys of one event's blocks, as plainly as they can be made."""
    parent = event.parent_block_hash
    key = bytes(8) if parent is None else keys.get(parent, 0).to_bytes(8, "little")
    data = array("I", event.token_ids).tobytes()
    step = event.block_size * 4
    for place, block_hash in enumerate(event.block_hashes):
        block = data[place * step : place * step + step]
        key = blake2b(block, digest_size=8, salt=key).digest()
        keys[block_hash] = int.from_bytes(key, "little")


def round_seconds(drain: Drain, payloads: list[bytes], folder: str) -> float:
    """One contender's CPU seconds for a stream that has wholly arrived."""
    endpoint = f"ipc://{folder}/live.sock"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    publisher.setsockopt(zmq.SNDHWM, 0)
    publisher.bind(endpoint)

    def publish() -> None:
        publisher.recv()  # the subscription: from here on nothing is missed
        for sequence, payload in enumerate(payloads):
            publisher.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
        time.sleep(SETTLE_SECONDS)

    gc.collect()
    seconds = drain(endpoint, len(payloads), publish)
    context.destroy(linger=0)
    return seconds


def radix_seconds(events: list[dict[str, Any]]) -> float:
    """Dynamo's radix tree on the same events, as JSON made beforehand; it receives nothing."""
    from dynamo._core import RadixTree

    tree = RadixTree()
    prepared = []
    for number, event in enumerate(events):
        if event["type"] == "BlockStored":
            blocks = [{"block_hash": one, "tokens_hash": one} for one in event["block_hashes"]]
            data: Any = {"stored": {"parent_hash": event["parent_block_hash"], "blocks": blocks}}
        else:
            data = {"removed": {"block_hashes": event["block_hashes"]}}
        told = {"event_id": number, "data": data, "dp_rank": 0}
        prepared.append(json.dumps(told).encode())
    gc.collect()
    began = time.thread_time()
    for one in prepared:
        tree.apply_event(WORKER, one)
    return time.thread_time() - began


def compare(
    contenders: dict[str, Callable[[], float]], rounds: int = ROUNDS, seed: int = 1
) -> dict[str, float]:
    """Least seconds of each contender over shuffled rounds: the least disturbed by others."""
    shuffler = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        order = list(contenders)
        shuffler.shuffle(order)
        for name in order:
            seconds[name].append(contenders[name]())
    return {name: min(taken) for name, taken in seconds.items()}


def tap_rows(
    events_per_message: int, *, laps: int = LAPS, rounds: int = ROUNDS, radix: bool = True
) -> list[Row]:
    """The tap beside both ceilings, and beside Dynamo's radix tree, at one message size."""
    events = captured_events(laps)
    payloads = as_messages(events, events_per_message)
    with tempfile.TemporaryDirectory(prefix="kv") as folder:

        def run(drain: Drain) -> Callable[[], float]:
            return lambda: round_seconds(drain, payloads, folder)

        contenders = {
            "tap": run(drain_by_tap(content_keys=False)),
            "tap_content_keys": run(drain_by_tap(content_keys=True)),
            "full": run(drain_by_ceiling(FullBatch)),
            "full_content_keys": run(drain_by_ceiling(FullBatch, content_keys=True)),
            "lean": run(drain_by_ceiling(LeanBatch)),
        }
        if radix:
            contenders["radix"] = lambda: radix_seconds(events)
        seconds = compare(contenders, rounds)
    conditions = {
        "stream": "vLLM 0.32 capture, HBM only, 32-token blocks",
        "events": len(events),
        "blocks": sum(len(event["block_hashes"]) for event in events),
        "events_per_message": events_per_message,
        "rounds": rounds,
        "clock": "least CPU seconds of the draining thread",
        "kind": "measured",
    }
    pairs = [
        ("ceiling", "", "tap", "full"),
        ("ceiling", "_content_keys", "tap_content_keys", "full"),
        ("keyed_ceiling", "_content_keys", "tap_content_keys", "full_content_keys"),
        ("lean_ceiling", "", "tap", "lean"),
        ("dynamo_radix", "", "tap", "radix"),
        ("dynamo_radix", "_content_keys", "tap_content_keys", "radix"),
    ]
    return [
        {
            "name": f"tap_vs_{called}_b{events_per_message}{suffix}",
            "value": round(len(events) / seconds[ours]),
            "unit": "events/s",
            "beside": round(len(events) / seconds[beside]),
            "ratio": round(seconds[beside] / seconds[ours], 3),
            "conditions": conditions,
        }
        for called, suffix, ours, beside in pairs
        if beside in seconds
    ]


def main() -> None:
    """Print every row."""
    for events_per_message in EVENTS_PER_MESSAGE:
        for row in tap_rows(events_per_message):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
