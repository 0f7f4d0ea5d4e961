"""What the gateway hears of others: flags and their lease, tokens, blocks, and what it tells."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from flag_server import FlagServer
from gateway_rig import LONG, Rig, gateway
from served import KVREADY, free_port, serving
from stub_engine import Call, StubEngine, answer, stream_when_told, wait_for

from kvready.advisor.gateway.server import GatewaySettings, Parts, listening
from kvready.advisor.service import runner
from kvready.advisor.settings import ApiSettings, Settings
from kvready.collectors.collector import Level
from kvready.collectors.errors import SettingsError
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import (
    DeferReason,
    Outcome,
    RequestArrived,
    RequestDeferred,
    RequestFinished,
    Surface,
)

TOKEN = b'"text": "a"'


class Others:
    """The engine's tokenizer and the sidecar's readiness, beside the stub's completions."""

    def __init__(self, rig: Rig) -> None:
        self.tokens: Callable[[str], list[int]] | None = None
        self.resident = 0
        self.completions: list[Call] = []
        rig.engine.behave = self.behave

    async def behave(self, call: Call, writer: asyncio.StreamWriter) -> None:
        if call.target == "/tokenize":
            if self.tokens is None:
                writer.write(answer(404, b"{}"))
                return
            tokens = self.tokens(json.loads(call.body)["prompt"])
            writer.write(answer(200, json.dumps({"tokens": tokens}).encode()))
        elif call.target == "/v1/readiness":
            candidates = json.loads(call.body)["candidates"]
            answers = [
                {"evidence": "measured", "tokens": {"hbm": self.resident}} for _ in candidates
            ]
            writer.write(answer(200, json.dumps({"answers": answers}).encode()))
        else:
            self.completions.append(call)
            await stream_when_told(call, writer)

    def call(self, number: int) -> Call:
        wait_for(lambda: len(self.completions) > number, f"completion {number}")
        return self.completions[number]


@pytest.fixture
def watched() -> Iterator[tuple[Rig, Others]]:
    with gateway(tokenizer=True, sidecar_url="") as rig:
        rig.flags.on = True
        yield rig, Others(rig)


def test_who_shares_too_little_by_its_tokens_goes_on(watched) -> None:
    rig, others = watched
    others.tokens = lambda prompt: list(range(100)) + [ord(prompt[-1])] * 900
    with rig.asking(" a"), rig.asking(" b") as other:
        others.call(1).go()
        assert TOKEN in other.whole()
    assert rig.metric("released_total", "not_shared") == 1
    assert rig.metric("tokenized_total", "answered") == 2


def test_blocks_that_are_there_end_a_hold_before_the_first_token(watched) -> None:
    rig, others = watched
    others.tokens = lambda prompt: list(range(1_000)) + [ord(prompt[-1])]
    with rig.asking(" a"), rig.asking(" b") as follower:
        rig.wait_for_metric("tokenized_total", "answered", 2)
        assert rig.metric("held_requests") == 1
        others.resident = 928  # whole blocks: what is missing is not worth a wait
        others.call(1).go()
        assert TOKEN in follower.whole()
    assert rig.metric("released_total", "blocks_ready") == 1


def test_without_a_tokenizer_text_alone_decides(watched) -> None:
    rig, others = watched
    with rig.asking(" a") as leader, rig.asking(" b") as follower:
        rig.wait_for_metric("tokenized_total", "refused", 1)
        assert rig.metric("held_requests") == 1
        others.call(0).go()
        others.call(1).go()
        assert TOKEN in leader.whole()
        assert TOKEN in follower.whole()
    assert rig.metric("released_total", "first_token") == 1
    assert rig.metric("tokenized_total", "refused") == 1  # asked once, not for each


def test_a_defect_beside_the_door_holds_nobody(monkeypatch, caplog) -> None:
    with gateway() as rig:
        rig.flags.on = True
        rig.engine.behave = stream_when_told
        with rig.asking(" a"), rig.asking(" b") as follower:
            rig.wait_for_metric("held_requests", "", 1)
            monkeypatch.setattr(rig.parts.door, "sweep", lambda: 1 / 0)
            rig.engine.call(1).go()
            assert TOKEN in follower.whole()
        with rig.asking(" a"), rig.asking(" b") as later:
            rig.engine.call(3).go()
            assert TOKEN in later.whole()
        assert rig.metric("passed_total", "closed") == 2
    assert "nobody is held any more" in caplog.text


@pytest.mark.parametrize("ends", ["killed", "off", "silent"])
def test_a_hold_ends_within_a_lease_of_the_flag(ends: str) -> None:
    server = FlagServer()
    server.on = {"dedup": True}
    with ExitStack() as stack:
        stack.callback(server.end)
        rig = stack.enter_context(gateway(sidecar_url=server.url, asks_flags=True))
        rig.engine.behave = stream_when_told
        rig.wait_for_metric("dedup_acting", "", 1)
        with rig.asking(" a"), rig.asking(" b") as follower:
            rig.wait_for_metric("held_requests", "", 1)
            match ends:
                case "killed":
                    server.end()
                case "off":
                    server.revision += 1
                    server.on = {"dedup": False}
                case "silent":
                    server.behave = lambda asked: None
            rig.engine.call(1).go()
            assert TOKEN in follower.whole()
        assert rig.metric("released_total", "flag_off") == 1


def test_the_sidecar_hears_of_arrivals_holds_and_who_left(short_dir: Path) -> None:
    tap, told = ObserverTap("observer", short_dir), []

    def hear(record: object, seconds: float, name: str) -> None:
        if isinstance(record, RequestArrived | RequestDeferred | RequestFinished):
            told.append(record)

    def heard(number: int) -> bool:
        tap.poll(0.05)
        return len(told) >= number

    tap.start(hear)
    try:
        with gateway(observer_dir=short_dir) as rig:

            def is_heard() -> bool:  # from when on is not ours to say
                rig.post({"prompt": "short"}, "/v1/chat/completions")
                return heard(1)

            wait_for(is_heard, "the tap's subscription")
            chats = len(rig.engine.calls)
            rig.flags.on = True
            rig.engine.behave = stream_when_told
            with rig.asking(" a") as leader:
                lead_call = rig.engine.call(chats)
                with rig.asking(" b"):
                    rig.wait_for_metric("held_requests", "", 1)
                rig.wait_for_metric("held_requests", "", 0)
                lead_call.go()
                leader.whole()
            wait_for(lambda: heard(5) and isinstance(told[-1], RequestFinished), "the records")
            assert rig.metric("records_dropped_total") == 0
    finally:
        tap.stop()
    chat, lead, follow, held, left = told[-5:]
    assert {one.surface for one in (chat, lead, follow)} == {Surface.GATEWAY}
    assert chat.request_id.startswith("chatcmpl-")
    assert not chat.block_hashes
    assert lead.request_id == f"cmpl-{lead_call.headers['x-request-id']}-0"
    assert lead.block_hashes == follow.block_hashes
    assert lead.prompt_tokens == len(LONG + " a") // 4
    assert (held.request_id, held.reason) == (follow.request_id, DeferReason.HOLD)
    assert (left.request_id, left.outcome) == (follow.request_id, Outcome.ABORTED)
    assert lead.arrived_seconds < follow.arrived_seconds <= held.deferred_seconds
    assert held.deferred_seconds < left.finished_seconds
    assert tap.coverage().level is Level.REQUESTS  # it tells of no scheduler


# As a process ---------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[StubEngine]:
    with gateway() as rig:  # for its stub alone
        yield rig.engine


def test_the_command_serves_obeys_and_stops(engine: StubEngine) -> None:
    server = FlagServer()
    server.on = {"dedup": True}
    metrics_port = free_port()
    command = ("gateway", "--engine", engine.url, "--sidecar", server.url, "--metrics-port",
               metrics_port)  # fmt: skip
    try:
        with serving(*command, port=free_port()) as served:

            def figures() -> str:
                return httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30.0).text

            served.wait_for(lambda: "kvready_gateway_dedup_acting 1.0" in figures())
            got = served.client.post("/v1/completions", json={"prompt": LONG})
            assert json.loads(got.json()["body"]) == {"prompt": LONG}
            assert 'passed_total{reason="first"} 1.0' in figures()
            code, said = served.end()
            assert code == 0, said
            assert "passing on http://127.0.0.1:" in said
    finally:
        server.end()


def _answer_waits_for_an_acknowledgement(listener: socket.socket) -> bool:
    async def run() -> bool:
        options: asyncio.Queue[int] = asyncio.Queue()

        async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected = writer.get_extra_info("socket")
            options.put_nowait(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(meet, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            found = await options.get()
            writer.close()
        return not found

    return asyncio.run(run())  # asyncio's own loop, which an install without extras has


def test_no_answer_waits_40_ms_to_be_acknowledged() -> None:
    with listening("127.0.0.1", 0) as front:
        assert not _answer_waits_for_an_acknowledgement(front)
    settings = Settings(api=ApiSettings(port=free_port()))
    with runner.listening(settings) as sidecar:
        assert not _answer_waits_for_an_acknowledgement(sidecar)


def _is_taken(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 60.0).close()
    except ConnectionError:
        return False
    return True


def test_a_second_signal_ends_it_whatever_is_under_way(engine: StubEngine) -> None:
    engine.behave = stream_when_told
    port = free_port()
    command = ("gateway", "--engine", engine.url, "--sidecar", engine.url, "--metrics-port",
               free_port())  # fmt: skip
    process = subprocess.Popen(
        [*KVREADY, *map(str, command), "--port", str(port)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("figures on"):
                break
        with socket.create_connection(("127.0.0.1", port), 60.0) as client:
            client.sendall(b"GET /stream HTTP/1.1\r\nHost: g\r\n\r\n")
            wait_for(lambda: any(one.target == "/stream" for one in engine.calls), "the call")
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: not _is_taken(port), "nobody new")
            assert process.poll() is None  # it waits for what is under way
            process.send_signal(signal.SIGTERM)
            assert process.wait(60.0) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"engine": "127.0.0.1:8000"}, "write http://HOST:PORT"),
        ({"engine": "http://h:99999"}, "write http://HOST:PORT"),
        ({"engine": "http://h:1/v1"}, "by http://HOST:PORT alone"),
        ({"sidecar": "x"}, "no URL of the sidecar"),
        ({"sidecar_token_file": Path("/none")}, "--sidecar-token-file"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_the_fix(changed, says: str) -> None:
    given = {"engine": "http://h:1", "sidecar": "http://h:2"} | changed
    with pytest.raises(SettingsError, match=re.escape(says)):
        Parts(GatewaySettings(**given))


def test_a_port_that_is_taken_is_named(kvready) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = kvready("gateway", "--engine", "http://127.0.0.1:1", "--port", port)
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
