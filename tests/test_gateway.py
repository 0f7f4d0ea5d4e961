"""The gateway over real sockets: what passes, what waits, and what happens when somebody leaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import httpx
import hypothesis.strategies as st
import pytest
from gateway_rig import LONG, Rig, gateway
from hypothesis import given, settings
from stub_engine import (
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    answer,
    chunk,
    echo,
    stream_when_told,
    wait_for,
)

from kvready.advisor.gateway import app as app_module
from kvready.advisor.gateway.holds import Holds

TOKEN = b'"text": "a"'


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """One for tests that leave nothing behind."""
    with gateway() as rig:
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    shared.engine.behave = echo
    shared.engine.calls.clear()
    shared.flags.on = shared.flags.split = False
    shared.flags.untreated, shared.flags.excluded = set(), set()
    shared.costs.fixed = 600.0
    shared.parts.door.holds = Holds()
    yield shared
    wait_for(lambda: not shared.parts.door.guests, "an empty house")
    assert shared.parts.door.holds.held == shared.parts.door.holds.leading == 0
    wait_for(lambda: not shared.parts.counts.buffered_bytes, "no bodies kept")


@pytest.fixture
def holding(rig: Rig) -> Rig:
    rig.flags.on = True
    rig.engine.behave = stream_when_told
    return rig


# What passes ---------------------------------------------------------------------------------


def test_what_is_no_completion_passes_as_it_is(rig: Rig) -> None:
    told = httpx.get(f"{rig.url}/v1/models/a%2Fb?x=%20&y", headers={"X-Mine": "7"}).json()
    assert told["target"] == "/v1/models/a%2Fb?x=%20&y"
    assert told["headers"]["x-mine"] == "7"
    assert "x-request-id" not in told["headers"]
    assert told["headers"]["host"] == rig.engine.url.removeprefix("http://")


def test_a_completion_gets_a_name_that_the_engine_will_use(rig: Rig) -> None:
    named = rig.post({"prompt": LONG}, headers={"X-Request-Id": "mine"}).json()
    assert named["headers"]["x-request-id"] == "mine"
    unnamed = [rig.post({"prompt": LONG}).json()["headers"]["x-request-id"] for _ in range(2)]
    assert len({*unnamed, "mine"}) == 3


def test_headers_status_and_encoded_bytes_come_back_untouched(rig: Rig) -> None:
    packed = gzip.compress(b"hello" * 100)
    raw = answer(418, packed, b"Content-Encoding: gzip", b"X-Twice: 1", b"X-Twice: 2",
                 b"Connection: X-Hop", b"X-Hop: no", b"Date: then")  # fmt: skip

    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    rig.engine.behave = behave
    with httpx.stream("GET", f"{rig.url}/x") as got:
        assert got.status_code == 418
        assert b"".join(got.iter_raw()) == packed
        assert got.headers.get_list("x-twice") == ["1", "2"]
        assert got.headers.get_list("date") == ["then"]
        assert "x-hop" not in got.headers
        assert "server" not in got.headers


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/other"])
@settings(max_examples=25)
@given(
    cuts=st.lists(st.binary(min_size=1, max_size=5_000), max_size=6),
    chunked=st.booleans(),
    answered=st.lists(st.binary(min_size=1, max_size=5_000), max_size=6),
)
def test_bodies_are_equal_however_they_are_cut(rig: Rig, path, cuts, chunked, answered) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for part in answered:
            writer.write(chunk(part))
            await writer.drain()
        writer.write(LAST_CHUNK)

    rig.engine.behave = behave
    rig.engine.calls.clear()
    body = b"".join(cuts)
    content = iter(cuts) if chunked else body
    got = httpx.post(rig.url + path, content=content, timeout=60.0)
    assert got.content == b"".join(answered)
    assert rig.engine.call(0).body == body
    assert ("content-length" in rig.engine.call(0).headers) or chunked or not body


def test_parts_of_an_answer_come_as_they_are_made(rig: Rig) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await call.may_go()
        writer.write(chunk(b"data: 2\n\n") + LAST_CHUNK)

    rig.engine.behave = behave
    with rig.asking() as asking:
        early = asking.until(b"data: 1\n\n")
        assert b"data: 2" not in early
        assert b"Date: then\r\n" in early
        rig.engine.call(0).go()
        assert b"data: 2\n\n" in asking.whole()


def test_connections_are_kept_and_requests_may_be_sent_ahead(rig: Rig) -> None:
    before = rig.engine.connections
    body = json.dumps({"prompt": LONG}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % len(body)
    one = head + body
    with socket.create_connection(("127.0.0.1", rig.port), 60.0) as client:
        client.sendall(one + one + b"GET /last HTTP/1.1\r\nHost: g\r\n\r\n")
        got = b""
        while got.count(b"HTTP/1.1 200") < 3 or b"/last" not in got:
            part = client.recv(65_536)
            assert part
            got += part
    assert [call.target for call in rig.engine.calls] == ["/v1/completions"] * 2 + ["/last"]
    assert rig.engine.connections - before <= 1


def test_a_client_that_asks_first_whether_to_send_is_told_to(rig: Rig) -> None:
    body = json.dumps({"prompt": LONG}).encode()
    with socket.create_connection(("127.0.0.1", rig.port), 60.0) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body))  # fmt: skip
        assert received(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert received(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert "expect" not in rig.engine.call(0).headers


def test_head_and_empty_answers_pass(rig: Rig) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.head.startswith(b"HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    rig.engine.behave = behave
    assert httpx.head(f"{rig.url}/x").headers["content-length"] == "99"
    assert httpx.delete(f"{rig.url}/x").status_code == 204


def test_an_early_answer_to_an_upload_comes_through() -> None:
    def refuse(listener: socket.socket) -> None:
        engine, _ = listener.accept()
        with engine:
            engine.recv(65_536)
            engine.sendall(answer(413, b"no more", b"Connection: close"))
            while engine.recv(65_536):  # as a server does that lingers
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = threading.Thread(target=refuse, args=(listener,))
        refusing.start()
        with gateway(f"http://127.0.0.1:{listener.getsockname()[1]}") as rig:
            with socket.create_connection(("127.0.0.1", rig.port), 60.0) as client:
                client.sendall(b"POST /up HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\n\r\nhalf")
                assert b"no more" in received(client, b"no more")
            refusing.join(60.0)


def received(client: socket.socket, end: bytes) -> bytes:
    """All that came up to these bytes, or to the end."""
    got = b""
    while end not in got and (part := client.recv(65_536)):
        got += part
    return got


MUCH_BYTES = 128 << 20
KEPT_BYTES = 96 << 20  # far above what sockets and our own bounds hold


def test_an_engine_is_not_read_faster_than_its_client_reads(rig: Rig) -> None:
    part, written = b"x" * 65_536, [0]

    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MUCH_BYTES)
        while written[0] < MUCH_BYTES:
            writer.write(part)
            await writer.drain()
            written[0] += len(part)

    rig.engine.behave = behave
    with rig.asking() as asking:
        asking.until(b"\r\n\r\n")
        until_still(lambda: written[0])
        assert written[0] < KEPT_BYTES
        read = len(asking.got.partition(b"\r\n\r\n")[2])
        while read < MUCH_BYTES:
            read += len(asking.socket.recv(1 << 20))
        assert read == MUCH_BYTES


def test_a_client_is_not_read_faster_than_its_engine_reads() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        rig = stack.enter_context(gateway(url, body_bytes=MUCH_BYTES))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", rig.port), 60.0))
        client.sendall(b"POST /up HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n" % MUCH_BYTES)
        engine = stack.enter_context(listener.accept()[0])
        sent = [0]

        def send() -> None:
            while sent[0] < MUCH_BYTES:
                sent[0] += client.send(bytes(min(1 << 20, MUCH_BYTES - sent[0])))

        sending = threading.Thread(target=send)
        sending.start()
        until_still(lambda: sent[0])
        assert sent[0] < KEPT_BYTES
        _, _, body = received(engine, b"\r\n\r\n").partition(b"\r\n\r\n")
        got = len(body)
        while got < MUCH_BYTES:
            got += len(engine.recv(1 << 20))
        sending.join(60.0)
        engine.sendall(answer(200, b"all"))
        assert received(client, b"all").endswith(b"all")


def until_still(number: Callable[[], int]) -> None:
    """Return once it has not risen for a while."""
    seen, since = -1, 0
    while since < 40:
        time.sleep(0.01)
        since = since + 1 if number() == seen else 0
        seen = number()


# What the engine's side does wrong ------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 429, 500, 503, 504])
def test_an_engines_own_errors_are_passed_on(rig: Rig, status: int) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(status, b'{"error": 1}', b"Retry-After: 3"))

    rig.engine.behave = behave
    rig.flags.on = True
    got = rig.post({"prompt": LONG})
    assert (got.status_code, got.json(), got.headers["retry-after"]) == (status, {"error": 1}, "3")


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", b"what?\r\n\r\n"], ids=str)
def test_an_engine_that_breaks_off_before_its_answer_is_a_502(rig: Rig, said: bytes) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    rig.engine.behave = behave
    before = rig.metric("failed_total", "broken_off")
    got = rig.post({"prompt": LONG})
    assert got.status_code == 502
    assert got.json()["error"]["type"] == "kvready_gateway"
    assert rig.metric("failed_total", "broken_off") == before + 1


@pytest.mark.parametrize("reset", [False, True])
def test_an_engine_that_breaks_off_within_its_answer_is_cut_off_here_too(rig: Rig, reset) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await writer.drain()
        await call.may_go()
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    rig.engine.behave = behave
    with rig.asking() as asking:
        asking.until(b"data: 1\n\n")
        rig.engine.call(0).go()
        with pytest.raises((AssertionError, ConnectionError)):
            asking.whole()
    assert LAST_CHUNK not in asking.got


def test_an_answer_that_ends_with_its_connection_is_not_whole_when_that_breaks(rig: Rig) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall there is")
        await writer.drain()
        writer.close()

    rig.engine.behave = behave
    assert rig.post({"prompt": LONG}).text == "all there is"


def test_an_engine_that_is_not_there_is_a_502_that_names_it() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        with gateway(f"http://127.0.0.1:{port}") as rig:
            got = rig.post({"prompt": LONG})
            assert got.status_code == 502
            assert f"127.0.0.1:{port}" in got.json()["error"]["message"]
            assert rig.metric("failed_total", "unreachable") == 1


# Bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": 3}', b"\xff" * 99], ids=str)
def test_what_cannot_be_read_is_the_engines_to_refuse(rig: Rig, body: bytes) -> None:
    rig.flags.on = True
    before = rig.metric("passed_total", "unparsable")
    got = httpx.post(f"{rig.url}/v1/chat/completions", content=body, timeout=60.0)
    assert got.json()["body"] == body.decode("latin-1")
    assert rig.metric("passed_total", "unparsable") == before + 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_long_to_look_at_streams_through(rig: Rig, chunked, monkeypatch) -> None:
    monkeypatch.setattr(app_module, "MAX_LOOKED_BYTES", 10_000)
    rig.flags.on = True
    before = rig.metric("passed_total", "body_too_large")
    body = bytes(range(256)) * 400
    content = iter([body[:50_000], body[50_000:]]) if chunked else body
    httpx.post(f"{rig.url}/v1/completions", content=content, timeout=60.0)
    assert rig.engine.call(0).body == body
    assert rig.metric("passed_total", "body_too_large") == before + 1


def test_when_too_much_is_kept_bodies_stream_through(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(app_module, "MAX_BUFFERED_BYTES", -1)
    before = rig.metric("passed_total", "buffers_full")
    assert rig.post({"prompt": LONG}).json()["body"] == json.dumps({"prompt": LONG}).replace(
        " ", ""
    )
    assert rig.metric("passed_total", "buffers_full") == before + 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files"])
def test_a_body_beyond_the_bound_is_refused(chunked: bool, path: str) -> None:
    with gateway(body_bytes=100_000) as rig:
        body = b"x" * 300_000
        got = _refused(rig, path, chunk(body) if chunked else body, chunked, len(body))
        assert b"413" in got.split(b"\r\n")[0]
        assert rig.post({"prompt": LONG}).status_code == 200


def _refused(rig: Rig, path: str, body: bytes, chunked: bool, length: int) -> bytes:
    """The answer, read although not all may be taken."""
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
    with socket.create_connection(("127.0.0.1", rig.port), 60.0) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: g\r\n{framing}\r\n\r\n".encode())
        with suppress(ConnectionError):
            client.sendall(body)
        return client.recv(65_536)


def test_the_gateway_is_not_its_own_engine(rig: Rig) -> None:
    via = rig.post({"prompt": LONG}).json()["headers"]["via"].removeprefix("1.1 ")
    assert httpx.get(f"{rig.url}/x", headers={"Via": f"1.0 a, 1.1 {via}"}).status_code == 508


# Holding --------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_first_token(holding: Rig) -> None:
    before = holding.metric("released_total", "first_token")
    with holding.asking(" a") as leader:
        lead = holding.engine.call(0)
        leader.until(b": ping")  # what only keeps a stream open is no token
        with holding.asking(" b") as one, holding.asking(" c") as other:
            holding.wait_for_metric("held_requests", "", 2)
            assert len(holding.engine.calls) == 1
            lead.go()
            holding.engine.call(1).go()
            holding.engine.call(2).go()
            assert TOKEN in leader.whole()
            assert TOKEN in one.whole()
            assert TOKEN in other.whole()
    assert holding.metric("released_total", "first_token") == before + 2


def test_who_comes_after_the_first_token_does_not_wait(holding: Rig) -> None:
    with holding.asking(" a") as leader:
        holding.engine.call(0).go()
        leader.whole()
    with holding.asking(" b") as late:
        holding.engine.call(1).go()
        late.whole()


def test_others_are_not_held(holding: Rig) -> None:
    with holding.asking(" a"), holding.asking(prompt="y" * 4_000) as other:
        holding.engine.call(1).go()
        other.whole()


def test_an_answer_that_is_not_streamed_counts_with_its_first_byte(holding: Rig) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        await call.may_go()
        await echo(call, writer)

    holding.engine.behave = behave
    with holding.asking(" a", stream=False) as leader, holding.asking(" b", stream=False) as next_:
        holding.wait_for_metric("held_requests", "", 1)
        holding.engine.call(0).go()
        leader.until(b'"target"')
        holding.engine.call(1).go()
        next_.until(b'"target"')


def test_a_leader_that_fails_releases_its_followers(holding: Rig) -> None:
    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        await call.may_go()
        writer.write(answer(500, b"no"))

    holding.engine.behave = behave
    before = holding.metric("released_total", "leader_gone")
    with holding.asking(" a"), holding.asking(" b") as follower:
        holding.wait_for_metric("held_requests", "", 1)
        holding.engine.call(0).go()
        holding.engine.call(1).go()
        follower.until(b"no")
    assert holding.metric("released_total", "leader_gone") == before + 1


def test_a_client_that_leaves_is_gone_at_the_engine_too(holding: Rig) -> None:
    before = holding.metric("cancelled_total")
    with holding.asking(" a") as leader:
        call = holding.engine.call(0)
        with holding.asking(" b") as follower:
            holding.wait_for_metric("held_requests", "", 1)
            leader.leave()
            assert call.is_gone.wait(60.0)
            holding.engine.call(1).go()  # nobody leads any more
            assert TOKEN in follower.whole()
    assert holding.metric("cancelled_total") == before + 1


def test_a_follower_that_leaves_never_reaches_the_engine(holding: Rig) -> None:
    before = holding.metric("released_total", "client_gone")
    with holding.asking(" a") as leader:
        holding.engine.call(0)
        with holding.asking(" b"):
            holding.wait_for_metric("held_requests", "", 1)
        holding.wait_for_metric("held_requests", "", 0)
        holding.engine.call(0).go()
        leader.whole()
    assert len(holding.engine.calls) == 1
    assert holding.metric("released_total", "client_gone") == before + 1


def test_no_hold_outlasts_what_it_could_save(holding: Rig) -> None:
    holding.costs.fixed = 0.3
    before = holding.metric("released_total", "deadline")
    with holding.asking(" a"):
        holding.engine.call(0)
        began = time.monotonic()
        with holding.asking(" b") as follower:
            holding.engine.call(1).go()
            follower.whole()
        assert time.monotonic() - began >= 0.25  # it was held, and the leader still has no token
    assert holding.metric("released_total", "deadline") == before + 1


def test_a_flag_that_goes_off_releases_everybody(holding: Rig) -> None:
    with ExitStack() as stack:
        askings = [stack.enter_context(holding.asking(f" {n}")) for n in range(4)]
        holding.wait_for_metric("held_requests", "", 3)
        assert holding.metric("dedup_acting") == 1
        holding.flags.on = False
        for number in range(4):
            holding.engine.call(number).go()
        for asking in askings:
            assert TOKEN in asking.whole()
    assert holding.metric("dedup_acting") == 0


@pytest.mark.parametrize(
    ("setting", "why"),
    [("off", "flag_off"), ("control", "untreated"), ("cell", "excluded"),
     ("unknown", "no_prediction"), ("cheap", "no_benefit")],
)  # fmt: skip
def test_when_in_doubt_nobody_waits(holding: Rig, setting: str, why: str) -> None:
    flags = holding.flags
    with holding.asking(" a"):
        holding.engine.call(0)
        match setting:
            case "off":
                flags.on = False
            case "control":
                flags.split = True
                leaders = holding.parts.door.guests.values()
                flags.untreated = {leader.prompt.group for leader in leaders}
            case "cell":
                flags.excluded = {"inflight_ready: batch ≥512 tokens"}
            case "unknown":
                holding.costs.fixed = None
            case "cheap":
                holding.costs.fixed = 0.001
        before = holding.metric("passed_total", why)
        with holding.asking(" b") as other:
            holding.engine.call(1).go()
            other.whole()
        assert holding.metric("passed_total", why) == before + 1


def test_stopping_lets_everybody_go_and_finishes_what_is_under_way() -> None:
    with ExitStack() as stack:
        rig = stack.enter_context(gateway())
        rig.flags.on = True
        rig.engine.behave = stream_when_told
        askings = [stack.enter_context(rig.asking(f" {n}")) for n in range(2)]
        rig.wait_for_metric("held_requests", "", 1)
        rig.stop()
        for number in range(2):
            rig.engine.call(number).go()
        for asking in askings:
            assert TOKEN in asking.whole()


# All at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_at_once_everybody_is_answered_and_nothing_is_left(
    rig: Rig, seed: int
) -> None:
    chance = random.Random(seed)
    rig.flags.on = True
    rig.costs.fixed = 0.05

    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(chance.uniform(0.0, 0.03))
        fate = chance.random()
        if fate < 0.1:
            writer.close()
        elif fate < 0.2:
            writer.write(answer(503, b"busy"))
        else:
            writer.write(STREAM_HEAD + chunk(b"data: " + call.body[-9:] + b"\n\n"))
            await asyncio.sleep(chance.uniform(0.0, 0.02))
            writer.write(LAST_CHUNK)

    async def ask(number: int) -> bytes | None:
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        tail = f"{chance.choice('ab') * 1_000}{number:06d}"
        body = json.dumps({"stream": True, "prompt": LONG + tail}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # fmt: skip
        try:
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0.0, 0.05))
                return None
            return await reader.read()
        finally:
            writer.close()

    async def flip() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            rig.flags.on = not rig.flags.on

    async def run() -> list[bytes | None]:
        flipping = asyncio.create_task(flip())
        got = await asyncio.gather(*(ask(number) for number in range(150)))
        flipping.cancel()
        return got

    rig.engine.behave = behave
    for number, got in enumerate(asyncio.run(asyncio.wait_for(run(), 200.0))):
        if got is None:
            continue
        status = got.split(b" ", 2)[1]
        if status == b"200":
            assert f'{number:06d}"'.encode() in got
            assert got.endswith(LAST_CHUNK)
        else:
            assert status in (b"502", b"503"), got
