"""A sidecar's flags on a real socket, that answers well, wrongly, slowly or not at all."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable


class FlagServer:
    """`behave` says what becomes of the next request: bytes to send, None: nothing, ever."""

    def __init__(self) -> None:
        self.revision, self.boot = 1, "boot-1"
        self.on: dict[str, bool] = {"dedup": True}
        self.asked: list[str] = []
        self.behave: Callable[[str], bytes | None] = self.answer
        self.byte_seconds = 0.0  # between two bytes of an answer
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def answer(self, asked: str) -> bytes:
        """The right answer."""
        if f'If-None-Match: "{self.boot}.{self.revision}"' in asked:
            return self.message(304, b"")
        flags = [
            {"key": key, "value": value, "reason": "SPLIT", "variant": "x", "metadata": {}}
            for key, value in self.on.items()
        ]
        return self.message(200, json.dumps({"flags": flags}).encode())

    def message(self, status: int, body: bytes, **changed: str) -> bytes:
        """With all headers, some of them changed; an empty value leaves one out."""
        headers = {
            "Kvready-Boot-Id": self.boot,
            "Kvready-Revision": str(self.revision),
            "Kvready-Lease-Seconds": "2.0",
            "ETag": f'"{self.boot}.{self.revision}"',
            "Content-Length": str(len(body)),
        }
        headers |= {name.replace("_", "-"): value for name, value in changed.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body

    def end(self) -> None:
        """Close everything."""
        self._stopping.set()
        self._listener.close()
        for one in self._open:
            one.close()
        self._thread.join(5.0)

    def _accept(self) -> None:
        self._listener.settimeout(0.05)
        while not self._stopping.is_set():
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self._open.append(caller)
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            while not self._stopping.is_set():
                asked = self._request(caller)
                if not asked:
                    return
                self.asked.append(asked)
                said = self.behave(asked)
                if said is None:
                    self._stopping.wait(20.0)
                elif self.byte_seconds:
                    for one in said:
                        caller.sendall(bytes([one]))
                        time.sleep(self.byte_seconds)
                else:
                    caller.sendall(said)
                if said is not None and b"Content-Length" not in said:
                    return
        except OSError:
            return
        finally:
            caller.close()

    def _request(self, caller: socket.socket) -> str:
        caller.settimeout(30.0)
        got = b""
        while b"\r\n\r\n" not in got:
            part = caller.recv(65_536)
            if not part:
                return ""
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += caller.recv(65_536)
        return (head + b"\r\n\r\n" + body).decode()
