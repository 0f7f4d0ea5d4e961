"""OTLP over gRPC, the exporters' default: one method, taking the bytes as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from kvready.collectors.errors import TapError
from kvready.collectors.otlp_exchange import MAX_EXPORT_BYTES, Exchange, Export, Refusal
from kvready.collectors.otlp_http import is_loopback

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
METHOD = "Export"
WORKERS = 4
MAX_CALLS = 32  # at once; more are refused, and exporters try again
STOP_SECONDS = 1.0
TAKEN = b""  # an empty ExportTraceServiceResponse


class OtlpGrpcServer:
    """Serves one Exchange. Raises TapError where gRPC or the port is missing."""

    def __init__(self, host: str, port: int, exchange: Exchange) -> None:
        grpc = load_grpc()
        self._grpc = grpc
        self._exchange = exchange
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="otlp-grpc"),
            maximum_concurrent_rpcs=MAX_CALLS,
            # Without it two sidecars would share a port, each getting half of the spans.
            options=(
                ("grpc.max_receive_message_length", MAX_EXPORT_BYTES),
                ("grpc.so_reuseport", 0),
            ),
        )
        handlers = {METHOD: grpc.unary_unary_rpc_method_handler(self._export)}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise TapError(f"cannot listen on {where} for gRPC: {error}; choose another") from None
        self._server.start()

    def close(self) -> None:
        """Stop taking exports and wait for those under way."""
        self._server.stop(STOP_SECONDS).wait()

    def _export(self, payload: bytes, context: Any) -> bytes:
        try:
            self._exchange.take(Export(payload, "", payload), is_local_peer(context.peer()))
        except Refusal as refusal:
            self._exchange.refuse(refusal)
            context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, refusal.reason)
        return TAKEN


def load_grpc() -> Any:
    """The grpc package. Raises TapError that names the extra."""
    try:
        import grpc
    except ImportError:
        raise TapError(
            "OTLP over gRPC needs grpcio; pip install 'kvready[sidecar]', or export over HTTP"
        ) from None
    return grpc


def is_local_peer(peer: str) -> bool:
    """Whether gRPC's name of a peer (`ipv4:127.0.0.1:4`, `ipv6:%5B::1%5D:4`) is on this host."""
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind == "unix"
    return is_loopback(address.rpartition(":")[0].strip("[]"))
