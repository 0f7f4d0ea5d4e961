"""What the gateway adds to a request: past it and through it, by turns, to one stub engine.

Client, engine and two gateways, one with the flag off and one with it on, are processes of their
own on loopback. Each round asks once each way, in an order that rotates, so that what else the
machine does meets all alike. The time is that to the whole of a short streamed answer; what a
gateway added is the difference to the same round's direct one.

Run as `python tests/bench/gateway.py`; prints one JSON row per line.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flag_server import FlagServer
from served import free_port, serving

Row = dict[str, Any]

ROUNDS = 3_000
WARM_UP_ROUNDS = 200
PROMPT_BYTES = 8_192
PARTS = 4
BUDGET_SECONDS = 0.001
END = b"0\r\n\r\n"


async def stub(port: int) -> None:
    """An engine that answers at once, with a short stream."""
    part = b'data: {"choices": [{"text": "a"}]}\n\n'
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for _ in range(PARTS))
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks
        + END
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                framed = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(framed or b"0"))
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


def request(number: int) -> bytes:
    """A completion whose prompt nobody asked before, so that it leads, and is not held."""
    body = json.dumps({"model": "m", "prompt": f"{number:08d}".ljust(PROMPT_BYTES, "x"),
                       "stream": True}).encode()  # fmt: skip
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


async def rounds(ports: tuple[int, ...], number: int) -> list[list[float]]:
    """Seconds of each answer on each way."""
    ways = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
    seconds: list[list[float]] = [[] for _ in ways]
    for turn in range(number):
        asked = request(turn)
        for place in range(len(ways)):
            way = (turn + place) % len(ways)
            reader, writer = ways[way]
            began = time.perf_counter()
            writer.write(asked)
            await reader.readuntil(END)
            seconds[way].append(time.perf_counter() - began)
    for _, writer in ways:
        writer.close()
    return seconds


@contextmanager
def gateway(engine_port: int, acting: bool, requests: int) -> Iterator[int]:
    """A gateway's port; at the end all requests must have passed as they should."""
    port, metrics_port = free_port(), free_port()
    flags = FlagServer()
    flags.on = {"dedup": acting}
    command = ("gateway", "--engine", f"http://127.0.0.1:{engine_port}", "--sidecar", flags.url,
               "--metrics-port", metrics_port, "--no-tokenizer")  # fmt: skip

    def figures() -> str:
        return httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text

    try:
        with serving(*command, port=port) as served:
            served.wait_for(lambda: f"dedup_acting {float(acting)}" in figures())
            yield port
            why = "first" if acting else "flag_off"
            assert f'passed_total{{reason="{why}"}} {float(requests)}' in figures()
    finally:
        flags.end()


def gateway_rows(number: int = ROUNDS) -> Iterator[Row]:
    """What it adds with the flag off, and on and leading; beside the budget of 1 ms."""
    engine_port = free_port()
    total = WARM_UP_ROUNDS + number
    engine = subprocess.Popen([sys.executable, __file__, "stub", str(engine_port)])
    try:
        with gateway(engine_port, False, total) as off, gateway(engine_port, True, total) as on:
            seconds = asyncio.run(rounds((engine_port, off, on), total))
    finally:
        engine.terminate()
        engine.wait()
    direct, *through = (one[WARM_UP_ROUNDS:] for one in seconds)
    for name, one in zip(("off", "on"), through, strict=True):
        yield added_row(name, direct, one)


def added_row(name: str, direct: list[float], through: list[float]) -> Row:
    """The median of the differences, beside the budget."""
    added = sorted(b - a for a, b in zip(direct, through, strict=True))
    value = statistics.median(added)
    return {
        "name": f"gateway_added_{name}_seconds",
        "value": round(value, 6),
        "unit": "s",
        "beside": BUDGET_SECONDS,
        "ratio": round(value / BUDGET_SECONDS, 3),
        "conditions": {
            "rounds": len(added),
            "prompt_bytes": PROMPT_BYTES,
            "stream_parts": PARTS,
            "direct_p50_seconds": round(statistics.median(direct), 6),
            "through_p50_seconds": round(statistics.median(through), 6),
            "added_p99_seconds": round(added[int(0.99 * len(added))], 6),
            "beside": "the budget of 1 ms at the median",
            "kind": "measured",
        },
    }


def main() -> None:
    """Print every row."""
    if sys.argv[1:2] == ["stub"]:
        asyncio.run(stub(int(sys.argv[2])))
        return
    for row in gateway_rows():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
