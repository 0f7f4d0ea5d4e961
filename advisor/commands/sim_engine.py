"""`sim-engine`: an engine that is none, to attach to; or its recording, made at once."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from kvready.advisor.hooks.flag_client import FlagClient
from kvready.advisor.policies import Scope
from kvready.advisor.settings import OPERATOR_VARIABLE
from kvready.advisor.whatif.sim_engine import recorded
from kvready.advisor.whatif.sim_engine.clock import RealClock
from kvready.advisor.whatif.sim_engine.engine import SimEngine
from kvready.advisor.whatif.sim_engine.faults import LASTS, Faults, parse_fault
from kvready.advisor.whatif.sim_engine.flags import LiveFlags, parse_flags
from kvready.advisor.whatif.sim_engine.machine import vllm_like
from kvready.advisor.whatif.sim_engine.mix import NAME as MIX
from kvready.advisor.whatif.sim_engine.surfaces import Addresses, Surfaces
from kvready.advisor.whatif.sim_engine.workloads import drawn
from kvready.advisor.whatif.traces import read_workload
from kvready.advisor.whatif.workload import Workload
from kvready.collectors.endpoint import bracketed
from kvready.collectors.errors import SettingsError
from kvready.collectors.names import SIMULATED_ENGINE

PAGE_TOKENS = 32
LATE_SECONDS = 0.25  # behind its clock, from which on it is said

Asked = Annotated[
    str,
    typer.Option(
        "--workload",
        help=f"{MIX} (documents and conversations), a shape or SHAPE:ORDER, or a trace.",
        metavar="NAME|FILE",
    ),
]
Speed = Annotated[
    float, typer.Option("--speed", min=0.01, max=1_000, help="Simulated seconds in a real one.")
]
Rate = Annotated[float, typer.Option("--rate", min=1e-3, help="Requests a simulated second.")]
Requests = Annotated[int, typer.Option("--requests", min=1, help="How many; then it idles.")]
Seed = Annotated[int, typer.Option("--seed", help="Draws the workload and the hidden costs.")]
FaultsGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help=f"What goes wrong and when, in simulated seconds; repeatable: {', '.join(LASTS)}.",
        metavar="NAME@SECONDS[:LASTS]",
    ),
]
PoliciesGiven = Annotated[
    list[str] | None,
    typer.Option("--policy", help="dedup, balance or gpu_copy.", metavar="POLICY=on|off"),
]

FlagsFrom = Annotated[
    str | None,
    typer.Option("--flags", help="Obey what this sidecar says, as long as it does.", metavar="URL"),
]


def sim_engine(
    workload: Asked = MIX,
    rate: Rate = 4.0,
    requests: Requests = 2_500,
    seed: Seed = 0,
    speed: Speed = 1.0,
    fault: FaultsGiven = None,
    policy: PoliciesGiven = None,
    flags: FlagsFrom = None,
    model: Annotated[str, typer.Option("--model", help="Preset or config.json.")] = "llama-3.1-8b",
    machine: Annotated[str, typer.Option("--machine", help="h200 or gh200.")] = "h200",
    hbm_gib: Annotated[float, typer.Option("--hbm-gib", min=0.1, help="HBM for KV.")] = 4.0,
    host_gib: Annotated[float, typer.Option("--host-gib", min=0, help="Host tier.")] = 16.0,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Of its sockets; default: a new one, removed at the end."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address of its pages.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port of its pages; 0: any.")] = 8431,
    spans: Annotated[
        str | None,
        typer.Option("--spans", help="Where request spans go, as OTLP.", metavar="URL"),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Write a recording at once instead of being attached to."),
    ] = None,
) -> None:
    """Pretend to be an engine: vLLM's surfaces, simulated time, costs that nobody is told.

    All that it feeds is labelled SIMULATED.
    """
    if flags is not None and (policy or record):
        raise SettingsError("--flags says what is obeyed, live: leave out --policy and --record")
    faults = Faults(map(parse_fault, fault or []))
    asked = _workload(workload, rate, requests, seed)
    engine = SimEngine(
        vllm_like(model, machine, hbm_gib, host_gib, PAGE_TOKENS),
        asked,
        faults,
        parse_flags(policy or []),
        seed,
    )
    client = None if flags is None else _client(flags)
    if client is not None:
        engine.flags = LiveFlags(client)
    if record is not None:
        _say(recorded.write(record, engine, asked.name, seed))
        return
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    stopping = threading.Event()
    with _signals(stopping), _folder(folder) as where:
        clock = RealClock(speed, stopping)
        surfaces = Surfaces(engine.described, Addresses(where, host, port, spans), clock, faults)
        _say(f"SIMULATED {asked.name}: {engine.requests} requests at speed {speed:g}")
        _say(f"attach with: kvready attach http://{bracketed(host)}:{surfaces.port}")
        if client is not None:
            client.start()
            _say(f"policies: as {flags} says, OFF where it does not")
        try:
            if engine.run(clock, surfaces):
                _say("all is served; idle until stopped")
                stopping.wait()
        finally:
            surfaces.close()
            if client is not None:
                client.stop()
    if clock.behind_seconds > LATE_SECONDS:
        _say(f"the engine fell {clock.behind_seconds:.2f} s behind its clock: lower --speed")


def _client(url: str) -> FlagClient:
    token = os.environ.get(OPERATOR_VARIABLE, "")
    try:
        return FlagClient(url, "sim-engine", Scope(engine=SIMULATED_ENGINE), token=token)
    except ValueError as error:
        raise SettingsError(f"--flags: {error}") from None


def _workload(name: str, rate: float, requests: int, seed: int) -> Workload:
    path = Path(name)
    return read_workload(path) if path.is_file() else drawn(name, rate, requests, seed)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    made = Path(tempfile.mkdtemp(prefix="kvready-sim-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT stop the engine between two moments of its time."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    typer.echo(text, err=True)
