"""OTLP over HTTP: POST /v1/traces with protobuf, gzip or plain, on a server bounded in all ways."""

from __future__ import annotations

import socket
import zlib
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Any

from kvready.collectors.bounded_server import BoundedServer
from kvready.collectors.otlp_exchange import MAX_EXPORT_BYTES, Exchange, Export, Refusal

TRACES_PATH = "/v1/traces"
MAX_CONNECTIONS = 32
SOCKET_SECONDS = 30.0  # exporters keep connections open between exports of some seconds
GZIP_WINDOW = 16 + zlib.MAX_WBITS
PROTOBUF = "application/x-protobuf"
SAY_PROTOBUF = "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
MESSAGE_FIELD = 0x12  # field 2 of google.rpc.Status, a string


class OtlpHttpServer(BoundedServer):
    """Serves one Exchange until closed."""

    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, exchange: Exchange) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.exchange = exchange
        super().__init__((host, port), _Handler, MAX_CONNECTIONS)

    def turned_away(self) -> None:
        """Counted."""
        self.exchange.refuse(Refusal(503, f"more than {MAX_CONNECTIONS} connections"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is counted, not printed."""
        self.exchange.refuse(Refusal(400, "a connection broke while it was read"))


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS
    server: OtlpHttpServer
    server_version = "kvready"
    sys_version = ""

    def do_POST(self) -> None:
        """Take one export."""
        exchange = self.server.exchange
        try:
            export = self._export()
            exchange.take(export, is_loopback(self.client_address[0]))
        except Refusal as refusal:
            exchange.refuse(refusal)
            # The body may not have been read; what follows on this connection would be taken for
            # another request.
            self.close_connection = True
            self._answer(refusal.status, status_message(refusal.reason))
        else:
            self._answer(200, b"")  # an empty ExportTraceServiceResponse: all was taken

    def do_GET(self) -> None:
        """Say what belongs here."""
        self._answer(405, status_message(f"POST an export to {TRACES_PATH}"))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: exports are counted, not logged."""

    def _export(self) -> Export:
        if self.path.partition("?")[0] != TRACES_PATH:
            raise Refusal(404, f"traces are taken at {TRACES_PATH}; this is {self.path[:100]}")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != PROTOBUF:
            raise Refusal(415, f"content type {kind[:100] or 'missing'!r}; {SAY_PROTOBUF}")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise Refusal(411, "an export needs a Content-Length; chunked bodies are not taken")
        if int(length) > MAX_EXPORT_BYTES:
            raise Refusal(413, f"{length} bytes; at most {MAX_EXPORT_BYTES} are taken at once")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refusal(400, "the body ended early")
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return Export(body, "", body)
        if encoding != "gzip":
            raise Refusal(415, f"content encoding {encoding[:100]!r}; use gzip or none")
        return Export(body, encoding, gunzip(body))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", PROTOBUF)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def gunzip(body: bytes) -> bytes:
    """The content of one gzip member, never more than MAX_EXPORT_BYTES of it. Raises Refusal."""
    unpacker = zlib.decompressobj(GZIP_WINDOW)
    try:
        payload = unpacker.decompress(body, MAX_EXPORT_BYTES + 1)
    except zlib.error as error:
        raise Refusal(400, f"the body is not gzip: {error}") from None
    if len(payload) > MAX_EXPORT_BYTES:
        raise Refusal(413, f"more than {MAX_EXPORT_BYTES} bytes once decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise Refusal(400, "the gzip body is cut short, or more follows it")
    return payload


def status_message(reason: str) -> bytes:
    """A google.rpc.Status with a message, as OTLP wants its refusals."""
    text = reason.encode()[:1_000]
    size = len(text)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([MESSAGE_FIELD]) + length + text


def is_loopback(address: str) -> bool:
    """Whether a peer is on this host, so that its wall clock is ours."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
