"""What an answer about readiness costs: among a million blocks, and over HTTP under load.

In process: a whole answer (match, estimates, decision) for a prefix of 1,000 blocks that was never
asked before, beside as many plain dict lookups; and the same question again. Each round takes
another prefix and another length of the prompt, so that nothing of an earlier answer helps.

Over HTTP: `kvready serve` in a process of its own, fed KV events by another, asked by this one on a
fixed schedule whether or not the last answer has come; a late start counts as latency.

Run as `python tests/bench/readiness.py`; prints one JSON row per line.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from observer_publisher import ObserverPublisher
from served import free_port, serving
from story import ENGINE, Story, prefill

from kvready.advisor.pipeline import Pipeline
from kvready.collectors.asked import AskedCandidate
from kvready.collectors.records import BlocksStored, ReadinessAsked, Tier
from tests.bench.tap import as_messages, captured_events

Row = dict[str, Any]

LIVE_BLOCKS = 1_000_000
CHAIN_BLOCKS = 16
PREFIX_BLOCKS = 1_000
ROUNDS = 200
REPEAT_BUDGET_SECONDS = 20e-6

CANDIDATES = 100
BLOCKS_EACH = 10
CALLS_PER_SECOND = 100.0
EVENTS_PER_SECOND = 50_000
EVENTS_PER_MESSAGE = 8
LOADED_SECONDS = 20.0
WARM_UP_CALLS = 200
P99_BUDGET_SECONDS = 0.010
LAPS = 12
CHAINS = 256
CONNECTIONS = 16
POST = (
    b"POST /v1/readiness HTTP/1.1\r\nhost: bench\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n"


def watched_engine(live_blocks: int = LIVE_BLOCKS) -> Pipeline:
    """A pipeline that has learned from an engine, and holds so many blocks, half on the host."""
    story = Story()
    now = 1.0
    for number in range(40):
        name = f"r{number}"
        story.arrives(now, name, range(10 * number, 10 * number + 6))
        story.loads(number, name, decided=now, blocks=6)
        story.loaded(number, started=now, ready=now + 0.02)
        story.scheduled(now + 0.02, name, loaded=192)
        story.batch(now + 0.02, now + 0.05, prefill(name, 8 + number, 192))
        story.first_token(now + 0.05, name)
        story.finished(now + 0.05, name)
        now += 0.1
    numbers = random.Random(1)
    apply = story.pipeline.inventory.apply
    for _ in range(0, live_blocks, CHAIN_BLOCKS):
        hashes = tuple([numbers.getrandbits(64) for _ in range(CHAIN_BLOCKS)])
        tier = numbers.choice((Tier.HBM, Tier.HOST))
        apply(BlocksStored("e", 0, 0, 0.0, tier, hashes, None, ENGINE.block_tokens))
    return story.pipeline


def in_process_rows(rounds: int = ROUNDS) -> list[Row]:
    """The first answer about a prefix beside plain lookups, and the second beside its budget."""
    pipeline = watched_engine()
    readiness, moment = pipeline.readiness, pipeline.moment
    hashes = list(pipeline.inventory.live())
    get = dict.fromkeys(hashes, 1).get
    numbers = random.Random(2)
    ours: list[float] = []
    again: list[float] = []
    plain: list[float] = []

    def answer(prefix: tuple[int, ...]) -> None:
        tokens = PREFIX_BLOCKS * ENGINE.block_tokens + numbers.randrange(1_000_000)
        asked = ReadinessAsked((AskedCandidate(block_hashes=prefix, prompt_tokens=tokens),))
        for seconds in (ours, again):
            began = time.thread_time()
            answers = readiness.answer(asked, moment)
            seconds.append(time.thread_time() - began)
            assert answers.answers[0].ways

    def look_up(prefix: tuple[int, ...]) -> None:
        began = time.thread_time()
        list(map(get, prefix))
        plain.append(time.thread_time() - began)

    contenders: list[Callable[[tuple[int, ...]], None]] = [answer, look_up]
    for _ in range(rounds):
        contenders.reverse()
        for contender in contenders:
            contender(tuple(numbers.sample(hashes, PREFIX_BLOCKS)))
    first, second, beside = map(statistics.median, (ours, again, plain))
    conditions = {"live_blocks": len(hashes), "blocks": PREFIX_BLOCKS, "rounds": rounds}
    return [
        {
            "name": "readiness_1000_blocks_ratio",
            "value": round(first * 1e6, 1),
            "unit": "us",
            "beside": round(beside * 1e6, 1),
            "ratio": round(first / beside, 3),
            "conditions": conditions
            | {"beside": "list(map(dict.get, hashes))", "budget": 2.0, "kind": "measured"},
        },
        {
            "name": "readiness_repeat_seconds",
            "value": round(second, 7),
            "unit": "s",
            "beside": REPEAT_BUDGET_SECONDS,
            "ratio": round(second / REPEAT_BUDGET_SECONDS, 3),
            "conditions": conditions | {"beside": "the budget of 20 us", "kind": "measured"},
        },
    ]


def http_row(seconds: float = LOADED_SECONDS) -> Row:
    """The slowest answer in a hundred over HTTP, while the tap is busy, beside its budget.

    `GET /livez` is asked between: what any answer of this process costs under the same load.
    """
    with tempfile.TemporaryDirectory(prefix="kv") as folder:
        publisher = subprocess.Popen(
            [sys.executable, __file__, "publish", folder], stdin=subprocess.PIPE
        )
        try:
            command = ("serve", "--kv-events", f"ipc://{folder}/live.sock", "--observer-dir",
                       folder)  # fmt: skip
            with serving(*command, port=free_port()) as served:
                served.wait_for(lambda: bool(served.get("/v1/status").json()["engine"]))
                before = served.get("/v1/status").json()
                began = time.monotonic()
                asked, alive = asyncio.run(_calls(served.url, seconds))
                took = time.monotonic() - began
                after = served.get("/v1/status").json()
                reasons = _reasons(served.url)
        finally:
            publisher.terminate()
            publisher.wait()
    records = after["ingest"]["records"] - before["ingest"]["records"]
    value = _quantile(asked, 0.99)
    return {
        "name": "readiness_http_p99_seconds",
        "value": round(value, 5),
        "unit": "s",
        "beside": P99_BUDGET_SECONDS,
        "ratio": round(value / P99_BUDGET_SECONDS, 3),
        "conditions": {
            "candidates": CANDIDATES,
            "blocks_each": BLOCKS_EACH,
            "calls_per_second": round((len(asked) + WARM_UP_CALLS) / took, 1),
            "events_per_second": EVENTS_PER_SECOND,
            "events_per_message": EVENTS_PER_MESSAGE,
            "records_per_second": round(records / took),  # stores that follow each other are one
            "dropped_records": after["ingest"]["dropped"] - before["ingest"]["dropped"],
            "p50_seconds": round(_quantile(asked, 0.5), 5),
            "livez_p99_seconds": round(_quantile(alive, 0.99), 5),
            "reasons": reasons,
            "beside": "the budget of 10 ms",
            "kind": "measured",
        },
    }


def candidates(numbers: random.Random, chains: list[list[int]]) -> bytes:
    """A question about prefixes of which some are there whole, some in part, some not at all."""
    asked = []
    for _ in range(CANDIDATES):
        known = numbers.randrange(BLOCKS_EACH + 1)
        hashes = numbers.choice(chains)[:known]
        hashes = hashes + [numbers.getrandbits(64) for _ in range(BLOCKS_EACH - len(hashes))]
        tokens = BLOCKS_EACH * ENGINE.block_tokens + numbers.randrange(ENGINE.block_tokens)
        asked.append({"block_hashes": hashes, "prompt_tokens": tokens})
    return json.dumps({"candidates": asked}).encode()


async def _calls(url: str, seconds: float) -> tuple[list[float], list[float]]:
    """Latencies of questions and of `/livez`, each counted from when it was due."""
    numbers = random.Random(3)
    chains = stored_chains()
    bodies = [candidates(numbers, chains) for _ in range(64)]
    host, port = url.removeprefix("http://").split(":")
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection.open(host, int(port)))
    asked: list[float] = []
    alive: list[float] = []

    async def one(due: float, head: bytes, body: bytes, into: list[float]) -> None:
        connection = await free.get()
        await connection.exchange(head, body)
        into.append(time.monotonic() - due)
        free.put_nowait(connection)

    began = time.monotonic()
    pending = []
    for number in range(int(seconds * CALLS_PER_SECOND)):
        due = began + number / CALLS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        body = bodies[number % len(bodies)]
        pending.append(asyncio.create_task(one(due, POST, body, asked)))
        if number % 10 == 5:
            pending.append(asyncio.create_task(one(time.monotonic(), LIVEZ, b"", alive)))
    await asyncio.gather(*pending)
    return asked[WARM_UP_CALLS:], alive[WARM_UP_CALLS // 10 :]


class Connection:
    """As little HTTP as asks a question, so that little of the latency is ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        return cls(*await asyncio.open_connection(host, port))

    async def exchange(self, head: bytes, body: bytes) -> bytes:
        self._writer.write(head % len(body) + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None
        return await self._reader.readexactly(int(length[1]))


def stored_chains() -> list[list[int]]:
    """Chains as long as a candidate that the published stream stores and never removes."""
    numbers = random.Random(5)
    return [[numbers.getrandbits(64) for _ in range(BLOCKS_EACH)] for _ in range(CHAINS)]


def stores_of_chains() -> list[bytes]:
    """Messages that store them, half in HBM and half on the host."""
    return [
        msgspec.msgpack.encode(
            [
                1.7e9,
                [
                    {
                        "type": "BlockStored",
                        "block_hashes": chain,
                        "parent_block_hash": None,
                        "token_ids": list(range(BLOCKS_EACH * ENGINE.block_tokens)),
                        "block_size": ENGINE.block_tokens,
                        "lora_id": None,
                        "medium": "GPU" if place % 2 else "CPU",
                        "lora_name": None,
                    }
                ],
                0,
            ]
        )
        for place, chain in enumerate(stored_chains())
    ]


def publish(folder: str) -> None:
    """Be an engine: KV events at the stated rate, and now and then what it is."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    live = context.socket(zmq.XPUB)
    live.setsockopt(zmq.SNDHWM, 0)
    live.bind(f"ipc://{folder}/live.sock")
    observer = ObserverPublisher(Path(folder))
    payloads = as_messages(captured_events(LAPS), EVENTS_PER_MESSAGE)
    per_second = EVENTS_PER_SECOND / EVENTS_PER_MESSAGE
    live.recv()  # the subscription: from here on nothing is missed
    began = time.monotonic()
    sequence = sent = described = 0

    def send(payload: bytes) -> None:
        nonlocal sequence
        live.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
        sequence += 1

    while True:
        now = time.monotonic() - began
        for _ in range(int(now * per_second) - sent):
            send(payloads[sent % len(payloads)])
            sent += 1
        if now > described:  # whoever comes late learns it too
            observer.publish_records(described, [ENGINE])
            for payload in stores_of_chains():
                send(payload)
            described += 1
        time.sleep(0.0005)


def _reasons(url: str) -> dict[str, int]:
    """What was decided of one question: the load must be of every kind."""
    body = candidates(random.Random(4), stored_chains())
    response = httpx.post(
        f"{url}/v1/readiness", content=body, headers={"content-type": "application/json"}
    )
    return dict(Counter(answer["reason"] for answer in response.json()["answers"]))


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def readiness_rows() -> Iterator[Row]:
    """All of them."""
    yield from in_process_rows()
    yield http_row()


def main() -> None:
    """Print every row."""
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2])
    for row in readiness_rows():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
