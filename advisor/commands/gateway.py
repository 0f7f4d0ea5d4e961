"""`kvready gateway`: a reverse proxy that holds followers of a prefix being computed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvready.advisor.gateway.server import GatewaySettings, run
from kvready.advisor.policies import Scope
from kvready.advisor.strata import PAPER
from kvready.collectors.commanded import EVERYWHERE

MIB = 1 << 20


def gateway(
    engine: Annotated[
        str, typer.Option("--engine", help="The engine's HTTP server.", metavar="URL")
    ],
    sidecar: Annotated[
        str, typer.Option("--sidecar", help="The sidecar whose flags are obeyed.", metavar="URL")
    ] = "http://127.0.0.1:8430",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port to listen on.", min=1, max=65_535)
    ] = 8431,
    metrics_port: Annotated[
        int,
        typer.Option(
            "--metrics-port", help="Loopback port of its own /metrics.", min=1, max=65_535
        ),
    ] = 8432,
    sidecar_token_file: Annotated[
        Path | None,
        typer.Option("--sidecar-token-file", help="File with a token that the sidecar wants."),
    ] = None,
    observer_dir: Annotated[
        Path | None,
        typer.Option(
            "--observer-dir",
            help="Folder of the observer's sockets, where the sidecar hears of holds.",
        ),
    ] = None,
    engine_name: Annotated[
        str, typer.Option("--engine-name", help="Engine whose flags are asked for.")
    ] = EVERYWHERE,
    pool: Annotated[str, typer.Option("--pool", help="Pool, likewise.")] = EVERYWHERE,
    request_class: Annotated[
        str, typer.Option("--request-class", help="Request class, likewise.")
    ] = EVERYWHERE,
    tokenizer: Annotated[
        bool,
        typer.Option("--tokenizer/--no-tokenizer", help="Confirm by the engine's /tokenize."),
    ] = True,
    hold_seconds: Annotated[
        float,
        typer.Option("--hold-seconds", help="Cap of a hold.", min=0.0, max=PAPER.hold_seconds),
    ] = PAPER.hold_seconds,
    body_mib: Annotated[
        int, typer.Option("--body-mib", help="Longest body, in MiB.", min=1, max=4_096)
    ] = 64,
) -> None:
    """Pass on requests to the engine; hold those that wait for a prefix, while dedup is ON."""
    settings = GatewaySettings(
        engine=engine,
        sidecar=sidecar,
        host=host,
        port=port,
        metrics_port=metrics_port,
        sidecar_token_file=sidecar_token_file,
        observer_dir=observer_dir,
        scope=Scope(engine_name, pool, request_class),
        has_tokenizer=tokenizer,
        hold_seconds=hold_seconds,
        body_bytes=body_mib * MIB,
    )
    run(settings, lambda text: typer.echo(text, err=True))
