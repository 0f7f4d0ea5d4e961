"""The level-2 tap on spans: an OTLP receiver that stands where the engine exports to."""

from __future__ import annotations

import threading

from kvready.collectors.collector import Coverage, Level, Sink, Stability
from kvready.collectors.errors import TapError
from kvready.collectors.otlp_exchange import Exchange
from kvready.collectors.otlp_forward import Forwarder
from kvready.collectors.otlp_grpc import OtlpGrpcServer
from kvready.collectors.otlp_http import OtlpHttpServer
from kvready.collectors.records import RequestReported, TapEvent, TapState, TapStatus
from kvready.collectors.spans import load_messages

LOOPBACK = "127.0.0.1"
ACCEPT_SECONDS = 0.1  # how soon the HTTP server notices that it was stopped
BLIND_TO = (
    "requests that were aborted: they have no span",
    "the waiting queue",
    "when loads started and ended",
    "cached tokens of a request",
)


class OtlpTap:
    """Takes `llm_request` spans over HTTP, gRPC or both, and passes exports on where asked to.

    `stop` closes the ports; counts go on after another start.
    """

    def __init__(
        self,
        name: str,
        http_port: int | None = None,
        grpc_port: int | None = None,
        forward: str | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self.name = name
        self.http_port: int | None = None  # that is listened on
        self.grpc_port: int | None = None
        self.forwarder: Forwarder | None = None
        self._wanted = (http_port, grpc_port, forward, host)
        self._exchange = Exchange()
        self._http: OtlpHttpServer | None = None
        self._http_thread: threading.Thread | None = None
        self._grpc: OtlpGrpcServer | None = None
        self._sink: Sink | None = None
        self._state = TapState.CLOSED
        self._heard = False
        self._records = self._messages = self._errors = self._past_dropped = 0
        self._last_received: float | None = None

    def start(self, sink: Sink) -> None:
        """Listen. Raises TapError where a port is taken, or a package is missing."""
        if self._sink is not None:
            return
        http_port, grpc_port, forward, host = self._wanted
        try:
            load_messages()
        except ImportError:
            raise TapError(
                "OTLP needs opentelemetry-proto; pip install 'kvready[sidecar]'"
            ) from None
        try:
            if forward is not None:
                self.forwarder = Forwarder(forward)
            self._exchange = Exchange(self.forwarder.put if self.forwarder else None)
            if http_port is not None:
                self._listen_http(host, http_port)
            if grpc_port is not None:
                self._grpc = OtlpGrpcServer(host, grpc_port, self._exchange)
                self.grpc_port = self._grpc.port
        except TapError:
            self._close()
            raise
        self._sink = sink
        self._state = TapState.LIVE  # listening is all that there is to be: exporters connect to us

    def poll(self, budget_seconds: float) -> int:
        """Deliver what was exported, waiting at most the budget for something."""
        if self._sink is None:
            return 0
        arrivals, refusals = self._exchange.collect(budget_seconds)
        for arrival in arrivals:
            now = self._last_received = arrival.received_seconds
            self._messages += 1
            if not self._heard:
                self._heard = True
                self._tell(TapEvent.CONNECTED, now)
            if arrival.malformed:
                self._errors += 1
                detail = f"{arrival.malformed} llm_request spans without an id, or too many at once"
                self._tell(TapEvent.DECODE_ERROR, now, detail)
            for report in arrival.reports:
                self._deliver(report, now)
        if refusals:
            self._messages += refusals
            self._errors += refusals
            now = self._last_received = self._exchange.refused_seconds
            self._tell(TapEvent.DECODE_ERROR, now, self._exchange.last_refusal)
        return len(arrivals) + refusals

    def stop(self) -> None:
        """Close the ports, pass on what is queued. Safe twice, and before `start`."""
        self._close()
        self._past_dropped += self._exchange.dropped
        self._exchange = Exchange()
        self._sink = None
        self._state = TapState.CLOSED

    def coverage(self) -> Coverage:
        """What this tap can and cannot see, now."""
        return Coverage(
            tap=self.name,
            level=Level.REQUESTS,
            state=self._state,
            stability=Stability.BETA,
            records=self._records,
            messages=self._messages,
            gaps=0,
            decode_errors=self._errors,
            dropped=self._past_dropped + self._exchange.dropped,
            last_received_seconds=self._last_received,
            blind_to=BLIND_TO,
        )

    def _listen_http(self, host: str, port: int) -> None:
        try:
            server = OtlpHttpServer(host, port, self._exchange)
        except OSError as error:
            raise TapError(
                f"cannot listen on {host}:{port} for OTLP: {error.strerror or error}; stop what "
                "uses it, or choose another port"
            ) from None
        self._http = server
        self.http_port = int(server.server_address[1])
        self._http_thread = threading.Thread(
            target=server.serve_forever, args=(ACCEPT_SECONDS,), name="otlp-http", daemon=True
        )
        self._http_thread.start()

    def _close(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None
        if self._grpc is not None:
            self._grpc.close()
            self._grpc = None
        if self.forwarder is not None:
            self.forwarder.close()

    def _tell(self, event: TapEvent, now: float, detail: str = "") -> None:
        self._deliver(TapStatus(self.name, 0, event, TapState.LIVE, detail=detail), now)

    def _deliver(self, record: RequestReported | TapStatus, now: float) -> None:
        if self._sink is not None:
            self._sink(record, now, self.name)
            self._records += 1
