"""`kvready serve`: everything composed once, in the order in which data flows, and taken down."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec
from urllib.parse import urlsplit

import uvicorn

from kvready.advisor.compute import GENERIC_PRIOR, ComputePrior
from kvready.advisor.link_curves import priors_of
from kvready.advisor.load_priors import NO_PROFILE, LoadPriors
from kvready.advisor.pipeline import Pipeline
from kvready.advisor.roofline import GPUS, Roofline
from kvready.advisor.service.access import check_bind
from kvready.advisor.service.app import create_app
from kvready.advisor.service.otel_counts import ExportCounts
from kvready.advisor.service.policy_desk import PolicyDesk
from kvready.advisor.service.readiness_socket import readiness_socket
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.service.tally import PairTally
from kvready.advisor.service.taps import build_taps
from kvready.advisor.service.tls import tls_options
from kvready.advisor.service.web_server import WebServer
from kvready.advisor.settings import CalibrationSettings, Settings
from kvready.advisor.version import VERSION
from kvready.collectors.endpoint import bracketed
from kvready.collectors.errors import ServiceError, SettingsError, TapError
from kvready.collectors.recording import Provenance, RecordingHeader, RecordingWriter
from kvready.collectors.service_targets import NO_TARGETS, ServiceTargets
from kvready.kernels.model_source import model_from
from kvready.kernels.profile_source import profile_from

if TYPE_CHECKING:
    from kvready.advisor.service.otel import Telemetry

MAX_CONNECTIONS = 64
GRACE_SECONDS = 2
BACKLOG = 64

Say = Callable[[str], None]
P = ParamSpec("P")


def serve(settings: Settings, say: Say) -> None:
    """Attach, answer, and go on until SIGTERM or SIGINT; then flush the recording."""
    desk = PolicyDesk(settings)
    with (
        desk.kill_switch.listening(),
        listening(settings) as listener,
        attached(settings, desk) as sidecar,
    ):
        taps = ", ".join(collector.name for collector in sidecar.collectors)
        say(f"taps: {taps}")
        say(f"loads start from {sidecar.pipeline.priors.described}")
        say(f"compute starts from {sidecar.pipeline.compute_prior.described}")
        if sidecar.telemetry is not None:
            say(f"metrics and spans go to {sidecar.telemetry.endpoint}")
        answer(sidecar, listener, say)


def record(settings: Settings, seconds: float | None, say: Say) -> Sidecar:
    """Attach and keep what is seen, without an API; returns the stopped sidecar."""
    over = threading.Event()
    with attached(settings) as sidecar, _signals(over.set):
        sidecar.on_fault = sidecar.recorder.on_end = over.set
        say(f"recording to {settings.recording.path}")
        if sidecar.recorder.recording.active:  # else its disk was full before we listened
            over.wait(seconds)
    _raise_fault(sidecar)
    return sidecar


def answer(sidecar: Sidecar, listener: socket.socket, say: Say) -> None:
    """Run the API over a started sidecar until a signal comes or a thread fails."""
    tls = tls_options(sidecar.settings.api)
    config = uvicorn.Config(
        create_app(sidecar),
        **tls,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = WebServer(config)

    def end() -> None:
        server.should_exit = True

    sidecar.on_fault = end
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    say(f"serving on {scheme}://{bracketed(host)}:{port}")
    path = sidecar.settings.api.readiness_socket
    with readiness_socket(path, sidecar), _signals(end):
        _forget_start()
        server.run(sockets=[listener])
    _raise_fault(sidecar)


@contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """The API's socket, bound. Raises `ServiceError` or `SettingsError` that names the fix."""
    api = settings.api
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    # The protocol is named, since asyncio turns Nagle's wait off only for sockets that name it.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((api.host, api.port))
            check_bind(api)  # bound to an address that exists; nobody is heard yet
            listener.listen(BACKLOG)
        except socket.gaierror:
            raise ServiceError(
                f"host {api.host} cannot be resolved; give --host an address of this machine"
            ) from None
        except OSError as error:
            raise ServiceError(
                f"cannot listen on {bracketed(api.host)}:{api.port}: {error.strerror or error}; "
                "stop what uses it, or choose another with --port or --host"
            ) from None
        yield listener


@contextmanager
def attached(settings: Settings, desk: PolicyDesk | None = None) -> Iterator[Sidecar]:
    """A started sidecar, stopped at the end whatever happens. `desk`: that keeps its policies."""
    place = settings.calibration.link_profile
    priors = NO_PROFILE if place is None else priors_of(profile_from(place))
    taps = build_taps(settings.taps)
    path = settings.recording.path
    tally = PairTally()
    compute = compute_prior(settings.calibration)
    exports = ExportCounts()
    telemetry = telemetry_of(settings, exports) if desk else None
    targets = settings.targets.service_targets
    writer = open_recording(path, priors, compute, targets) if path else None
    keeper = desk.keeper if desk else None
    pipeline = Pipeline(
        tally,
        priors,
        compute_prior=compute,
        targets=targets or NO_TARGETS,
        on_transition=each(
            keeper.heard if keeper else None, telemetry.moved if telemetry else None
        ),
        on_report=each(
            keeper.reported if keeper else None, telemetry.judged if telemetry else None
        ),
    )
    canaries = pipeline.canaries
    canaries.on_window = each(canaries.on_window, telemetry.windowed if telemetry else None)
    sidecar = Sidecar(
        settings, pipeline, tally, taps, writer, desk=desk, telemetry=telemetry, exports=exports
    )
    try:
        try:
            if desk is not None:
                desk.open()
            sidecar.start()
            if telemetry is not None:
                telemetry.start(sidecar.take_snapshot)
        except (TapError, ServiceError):
            if writer is not None:
                writer.discard()  # nothing is in it, and the next try may want its name
            raise
        yield sidecar
    finally:
        if telemetry is not None:
            telemetry.stop()  # while there is somebody to ask for a last snapshot
        sidecar.stop()


def telemetry_of(settings: Settings, exports: ExportCounts) -> Telemetry | None:
    """What exports over OTLP; None unless a collector is configured. Raises `SettingsError`."""
    endpoint, taps = settings.telemetry.export_endpoint, settings.taps
    if endpoint is None:
        return None
    to = urlsplit(endpoint)
    own_port = taps.otlp_http_port
    if own_port and own_port == to.port and to.hostname in (taps.otlp_host, "localhost"):
        raise SettingsError(
            f"{endpoint} is where this sidecar takes the engine's spans (taps.otlp_http_port); "
            "name the collector behind it in telemetry.export_endpoint (--export-endpoint)"
        )
    try:
        from kvready.advisor.service import otel  # a tenth of a second, for those who export
    except ImportError:
        raise SettingsError(
            "exporting needs packages that are missing; pip install 'kvready[sidecar]'"
        ) from None
    receives = taps.otlp_http_port is not None or taps.otlp_grpc_port is not None
    return None if otel.is_disabled() else otel.Telemetry(settings.telemetry, exports, receives)


def each(*listeners: Callable[P, None] | None) -> Callable[P, None] | None:
    """One listener for all that are; None where there are none."""
    present = [one for one in listeners if one is not None]
    if len(present) < 2:
        return present[0] if present else None

    def told(*news: P.args, **more: P.kwargs) -> None:
        for listener in present:
            listener(*news, **more)

    return told


def compute_prior(calibration: CalibrationSettings) -> ComputePrior:
    """What batches are believed to cost before any was seen. Raises `LayoutError`."""
    if calibration.gpu is None and calibration.model is None:
        return GENERIC_PRIOR
    if calibration.gpu is None or calibration.model is None:
        given, absent = ("gpu", "model") if calibration.gpu else ("model", "gpu")
        raise SettingsError(
            f"calibration.{given} says nothing without calibration.{absent}; set both, or neither"
        )
    shape, ranks = model_from(calibration.model), calibration.tensor_parallel
    roofline = Roofline(shape, GPUS[calibration.gpu.lower()], ranks)
    return roofline.prior(f"{shape.name} on {ranks} {calibration.gpu.lower()}")


def open_recording(
    path: Path,
    priors: LoadPriors,
    compute: ComputePrior = GENERIC_PRIOR,
    targets: ServiceTargets | None = None,
) -> RecordingWriter:
    """A new recording of a real engine."""
    header = RecordingHeader(
        provenance=Provenance.REAL,
        created_wall_seconds=time.time(),
        kvready_version=VERSION,
        conditions={"loads start from": priors.described},
        load_start=priors.told(),
        compute_start=compute.told(),
        targets=targets,
    )
    return RecordingWriter(path, header)


def _forget_start() -> None:
    """What was loaded by now stays: the collector of garbage need not walk it again (50 ms)."""
    gc.collect()
    gc.freeze()


def _raise_fault(sidecar: Sidecar) -> None:
    if sidecar.fault is not None:
        raise ServiceError(
            f"a defect stopped the sidecar ({type(sidecar.fault).__name__}: {sidecar.fault}); "
            "the engine is not affected; restart, and report the log above"
        ) from sidecar.fault


@contextmanager
def _signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at SIGTERM and SIGINT; a second one ends the process at once."""
    asked = False

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            sys.exit(128 + number)
        asked = True
        end()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
