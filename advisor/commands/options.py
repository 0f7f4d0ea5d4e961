"""The flags that commands share, one per setting, and the settings that they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvready.advisor.settings import EffectiveSettings, load_settings

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings; flags override it.")
]
KvEvents = Annotated[
    list[str] | None,
    typer.Option("--kv-events", help="Endpoint of KV events, once per rank.", metavar="ENDPOINT"),
]
Replay = Annotated[
    list[str] | None,
    typer.Option(
        "--replay",
        help="Replay endpoint, once per rank, in the order of --kv-events.",
        metavar="ENDPOINT",
    ),
]
EngineHost = Annotated[
    str | None,
    typer.Option("--engine-host", help="Host that * in an endpoint stands for.", metavar="HOST"),
]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", help="Data-parallel ranks behind one tcp endpoint, a port each."),
]
StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Directory that remembers replay requests over restarts."),
]
ObserverDir = Annotated[
    Path | None, typer.Option("--observer-dir", help="Directory of the observer's sockets.")
]
MetricsUrl = Annotated[
    str | None, typer.Option("--metrics-url", help="The engine's HTTP server, to be scraped.")
]
MetricsSeconds = Annotated[
    float | None, typer.Option("--metrics-seconds", help="Time between two scrapes.")
]
OtlpHttpPort = Annotated[
    int | None, typer.Option("--otlp-http-port", help="Port that takes spans over HTTP.")
]
OtlpGrpcPort = Annotated[
    int | None, typer.Option("--otlp-grpc-port", help="Port that takes spans over gRPC.")
]
OtlpHost = Annotated[str | None, typer.Option("--otlp-host", help="Address to take spans on.")]
OtlpForward = Annotated[
    str | None,
    typer.Option("--otlp-forward", help="Collector to pass spans on to.", metavar="URL"),
]
ContentKeys = Annotated[
    bool | None,
    typer.Option("--content-keys/--no-content-keys", help="Hash each block's tokens on arrival."),
]
Publisher = Annotated[
    str | None, typer.Option("--publisher", help="Name that this engine's blocks get.")
]
SilenceSeconds = Annotated[
    float | None,
    typer.Option("--silence-seconds", help="A tap that delivered nothing for so long is silent."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the token of POST /v1/readiness.")
]
RequireToken = Annotated[
    bool | None,
    typer.Option("--require-token/--no-require-token", help="Want it on loopback too, or never."),
]
OperatorTokenFile = Annotated[
    Path | None,
    typer.Option("--operator-token-file", help="File with the token of who may hold policies."),
]
AdminTokenFile = Annotated[
    Path | None,
    typer.Option("--admin-token-file", help="File with the token of who may let policies act."),
]
TlsCertificateFile = Annotated[
    Path | None, typer.Option("--tls-certificate-file", help="PEM chain to answer over TLS with.")
]
TlsKeyFile = Annotated[
    Path | None, typer.Option("--tls-key-file", help="PEM key of that certificate.")
]
TlsClientCaFile = Annotated[
    Path | None,
    typer.Option("--tls-client-ca-file", help="PEM authorities that callers must come from."),
]
ReadinessSocket = Annotated[
    Path | None, typer.Option("--readiness-socket", help="Unix socket that answers readiness.")
]
RecordingPath = Annotated[
    Path | None, typer.Option("--recording", help="File that gets every record.")
]
LinkProfile = Annotated[
    str | None,
    typer.Option(
        "--link-profile",
        help="Link profile of this machine, as `kvready calibrate` writes it, or published:NAME.",
        metavar="FILE",
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", help="GPU whose data sheet batches start from; needs --model."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="The model on that GPU: a config.json, or a preset."),
]
TensorParallel = Annotated[
    int | None, typer.Option("--tensor-parallel", help="GPUs that share that model.")
]
Dedup = Annotated[
    str | None, typer.Option("--dedup", help="Highest mode that dedup starts in.", metavar="MODE")
]
Balance = Annotated[
    str | None,
    typer.Option("--balance", help="Highest mode that balance starts in.", metavar="MODE"),
]
GpuCopy = Annotated[
    str | None,
    typer.Option("--gpu-copy", help="Highest mode that gpu_copy starts in.", metavar="MODE"),
]
DedupAutoPromote = Annotated[
    bool | None,
    typer.Option(
        "--dedup-auto-promote/--no-dedup-auto-promote",
        help="Let dedup go up to enforce by itself once its gates pass.",
    ),
]
BalanceAutoPromote = Annotated[
    bool | None,
    typer.Option("--balance-auto-promote/--no-balance-auto-promote", help="Let balance, likewise."),
]
GpuCopyAutoPromote = Annotated[
    bool | None,
    typer.Option(
        "--gpu-copy-auto-promote/--no-gpu-copy-auto-promote", help="Let gpu_copy, likewise."
    ),
]
CanaryPercent = Annotated[
    int | None,
    typer.Option("--canary-percent", help="Per cent that a canary treats: 1, 5, 20 or 50."),
]
ControlPercent = Annotated[
    int | None,
    typer.Option(
        "--control-percent", help="Per cent that stays untreated when a policy is enforced."
    ),
]
PolicyFolder = Annotated[
    Path | None,
    typer.Option("--policy-folder", help="Folder of modes, gate reports and audit."),
]
KillFile = Annotated[
    Path | None,
    typer.Option("--kill-file", help="File that switches every policy off while it exists."),
]
ExportEndpoint = Annotated[
    str | None,
    typer.Option("--export-endpoint", help="Collector that gets metrics and spans over OTLP/HTTP."),
]
ExportSeconds = Annotated[
    float | None, typer.Option("--export-seconds", help="Time between two exports of metrics.")
]
ExportHeadersFile = Annotated[
    Path | None,
    typer.Option("--export-headers-file", help="File of headers for that collector."),
]
SpanRatio = Annotated[
    float | None, typer.Option("--span-ratio", help="Share of decisions that get a span.")
]
TargetTtftSeconds = Annotated[
    float | None,
    typer.Option("--target-ttft-seconds", help="Time to first token that counts as served."),
]
TargetOutputTokensPerSecond = Annotated[
    float | None,
    typer.Option(
        "--target-output-tokens-per-second",
        help="Output tokens per second of one request that count as served.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def effective(config: Path | None, **given: object) -> EffectiveSettings:
    """Settings from all layers; `given` are flags by the setting's dotted name, `.` as `__`."""
    # A list option that was not given arrives empty from some versions of typer.
    flags = {
        name.replace("__", "."): None if value == [] else value for name, value in given.items()
    }
    return load_settings(config, flags)
