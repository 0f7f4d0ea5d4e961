"""Readiness on a unix socket: one line of JSON in, one line out, for callers on the same machine.

Only the user that runs the sidecar may open it. A line is answered as `POST /v1/readiness` answers
the same body; what HTTP says by its status is a problem document here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

from kvready.advisor.service import problems
from kvready.advisor.service.calls import Calls
from kvready.advisor.service.models import Problem
from kvready.advisor.service.readiness_desk import MAX_BODY_BYTES, ReadinessDesk
from kvready.advisor.service.sidecar import Sidecar
from kvready.collectors.errors import QuestionError, ServiceError

MAX_CLIENTS = 32
LINE_SECONDS = 5.0  # from the first byte of a question to its end
IDLE_SECONDS = 300.0
WRITE_SECONDS = 5.0  # a client that does not read its answer for so long is dropped
STOP_SECONDS = 5.0
SETTLE_SECONDS = 0.01
MODE = 0o600
READ_BYTES = 65_536

logger = logging.getLogger(__name__)


@contextmanager
def readiness_socket(path: Path | None, sidecar: Sidecar) -> Iterator[SocketServer | None]:
    """Answer on `path`, if there is one, while the block runs."""
    if path is None:
        yield None
        return
    listener = _listen(path)
    server = SocketServer(listener, ReadinessDesk(sidecar), sidecar.calls)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        listener.close()
        path.unlink(missing_ok=True)


class SocketServer:
    """Runs an event loop of its own, so that it waits for nobody's HTTP."""

    def __init__(self, listener: socket.socket, desk: ReadinessDesk, calls: Calls) -> None:
        self.refused = 0  # clients beyond the bound
        self.dropped = 0  # clients that were too slow
        self._listener = listener
        self._desk = desk
        self._calls = calls
        self._clients: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="readiness-socket")

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Drop all clients. Safe twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._client, sock=self._listener)
        await self._stopping.wait()
        # Who was let in just now is no client yet. Where the server closes or the task is cancelled
        # before it begins, its connection would stay open: let nobody in, and wait.
        self._loop.remove_reader(self._listener.fileno())
        deadline = self._loop.time() + STOP_SECONDS
        while (others := _other_tasks()) and self._loop.time() < deadline:
            for task in self._clients & others:
                task.cancel()
            await asyncio.wait(others, timeout=SETTLE_SECONDS)
        server.close()
        await asyncio.sleep(0.0)  # the clients' connections close

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._clients) >= MAX_CLIENTS:
                self.refused += 1
                return
            self._clients.add(task)
            await self._converse(reader, writer)
        except TimeoutError:
            self.dropped += 1
        except (ConnectionError, asyncio.CancelledError):
            return  # it went away, or we do
        finally:
            self._clients.discard(task)
            writer.transport.abort()  # what it has not read by now it does not want

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = _Lines(reader)
        while (line := await lines.next()) is not None:
            whole = len(line) <= MAX_BODY_BYTES
            answer = await self._answer(line) if whole else _encoded(_too_long())
            writer.write(answer + b"\n")
            await asyncio.wait_for(writer.drain(), WRITE_SECONDS)
            if not whole:
                return
        await asyncio.wait_for(_flushed(writer), WRITE_SECONDS)

    async def _answer(self, line: bytes) -> bytes:
        try:
            with self._calls.answering():
                return await self._desk.answer(line)
        except QuestionError as error:
            return _encoded(problems.of_question(error))
        except TimeoutError:
            return _encoded(_problem(504, "the sidecar is too busy to answer in time; ask less"))
        except ServiceError as error:
            return _encoded(_problem(503, str(error)))


class _Lines:
    """Cuts what a client sends into lines, with a bound on their length and on their time."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    async def next(self) -> bytes | None:
        """The next line; None at the end. One beyond the bound comes cut off, over the bound."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_BODY_BYTES:
                return bytes(self._buffer)
            patience = LINE_SECONDS if self._buffer else IDLE_SECONDS
            part = await asyncio.wait_for(self._reader.read(READ_BYTES), patience)
            if not part:
                return None
            self._buffer += part
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _other_tasks() -> set[asyncio.Task[None]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """A client that half-closed still wants its last answer."""
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()


def _listen(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, MODE)  # before anybody can connect
        listener.listen(MAX_CLIENTS)
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"cannot listen on {path}: {error.strerror or error}; name a path of less than 100 "
            "characters in a writable folder (--readiness-socket)"
        ) from None
    return listener


def _remove_stale(path: Path) -> None:
    """What a run that was killed left behind; never a file, and never a socket in use."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServiceError(f"{path} exists and is no socket; name another --readiness-socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except OSError as error:
                if error.errno != errno.ECONNREFUSED:
                    raise ServiceError(f"cannot use {path}: {error.strerror}") from None
            else:
                raise ServiceError(f"{path} is in use by another process; stop it, or name another")
        path.unlink()


def _too_long() -> Problem:
    return _problem(413, f"the question is over {MAX_BODY_BYTES >> 20} MiB; ask in parts")


def _problem(status: int, detail: str) -> Problem:
    return Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)


def _encoded(problem: Problem) -> bytes:
    return problem.model_dump_json().encode()
