"""Commands that attach to an engine: `serve` and `record`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kvready.advisor.commands import options
from kvready.advisor.service import runner
from kvready.advisor.service.sidecar import Sidecar
from kvready.advisor.settings import (
    ApiSettings,
    CalibrationSettings,
    PolicySettings,
    Settings,
)
from kvready.advisor.tap_settings import Section, TapSettings
from kvready.advisor.target_settings import TargetSettings
from kvready.advisor.telemetry_settings import TelemetrySettings
from kvready.collectors.errors import ServiceError, SettingsError, TapError


def serve(
    config: options.Config = None,
    kv_events: options.KvEvents = None,
    replay: options.Replay = None,
    ranks: options.Ranks = None,
    engine_host: options.EngineHost = None,
    observer_dir: options.ObserverDir = None,
    metrics_url: options.MetricsUrl = None,
    metrics_seconds: options.MetricsSeconds = None,
    otlp_http_port: options.OtlpHttpPort = None,
    otlp_grpc_port: options.OtlpGrpcPort = None,
    otlp_host: options.OtlpHost = None,
    otlp_forward: options.OtlpForward = None,
    content_keys: options.ContentKeys = None,
    publisher: options.Publisher = None,
    silence_seconds: options.SilenceSeconds = None,
    state_dir: options.StateDir = None,
    host: options.Host = None,
    port: options.Port = None,
    token_file: options.TokenFile = None,
    require_token: options.RequireToken = None,
    operator_token_file: options.OperatorTokenFile = None,
    admin_token_file: options.AdminTokenFile = None,
    tls_certificate_file: options.TlsCertificateFile = None,
    tls_key_file: options.TlsKeyFile = None,
    tls_client_ca_file: options.TlsClientCaFile = None,
    readiness_socket: options.ReadinessSocket = None,
    recording: options.RecordingPath = None,
    link_profile: options.LinkProfile = None,
    gpu: options.Gpu = None,
    model: options.Model = None,
    tensor_parallel: options.TensorParallel = None,
    dedup: options.Dedup = None,
    balance: options.Balance = None,
    gpu_copy: options.GpuCopy = None,
    dedup_auto_promote: options.DedupAutoPromote = None,
    balance_auto_promote: options.BalanceAutoPromote = None,
    gpu_copy_auto_promote: options.GpuCopyAutoPromote = None,
    canary_percent: options.CanaryPercent = None,
    control_percent: options.ControlPercent = None,
    policy_folder: options.PolicyFolder = None,
    kill_file: options.KillFile = None,
    target_ttft_seconds: options.TargetTtftSeconds = None,
    target_output_tokens_per_second: options.TargetOutputTokensPerSecond = None,
    export_endpoint: options.ExportEndpoint = None,
    export_seconds: options.ExportSeconds = None,
    export_headers_file: options.ExportHeadersFile = None,
    span_ratio: options.SpanRatio = None,
) -> None:
    """Attach to an engine, predict, and answer on http://127.0.0.1:8430 until stopped."""
    settings = options.effective(
        config,
        recording__path=recording,
        **_given(
            locals(),
            taps=TapSettings,
            api=ApiSettings,
            calibration=CalibrationSettings,
            policies=PolicySettings,
            targets=TargetSettings,
            telemetry=TelemetrySettings,
        ),
    ).settings
    _log_to_stderr()
    _need_a_tap(settings)
    runner.serve(settings, _say)


def record(
    file: Annotated[Path, typer.Argument(help="New recording; never overwritten.")],
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Stop after so long.", min=0)
    ] = None,
    config: options.Config = None,
    kv_events: options.KvEvents = None,
    replay: options.Replay = None,
    ranks: options.Ranks = None,
    engine_host: options.EngineHost = None,
    observer_dir: options.ObserverDir = None,
    metrics_url: options.MetricsUrl = None,
    metrics_seconds: options.MetricsSeconds = None,
    otlp_http_port: options.OtlpHttpPort = None,
    otlp_grpc_port: options.OtlpGrpcPort = None,
    otlp_host: options.OtlpHost = None,
    otlp_forward: options.OtlpForward = None,
    content_keys: options.ContentKeys = None,
    publisher: options.Publisher = None,
    silence_seconds: options.SilenceSeconds = None,
    state_dir: options.StateDir = None,
) -> None:
    """Attach to an engine and keep what it does in FILE, without an API, until stopped."""
    settings = options.effective(
        config,
        recording__path=file,
        **_given(locals(), taps=TapSettings),
    ).settings
    _log_to_stderr()
    _need_a_tap(settings)
    sidecar = runner.record(settings, seconds, _say)
    kept = sidecar.recorder.recording
    nothing = _why_nothing(sidecar)
    if nothing:
        file.unlink(missing_ok=True)  # it holds our own ticks, and would only take the name
        raise TapError(nothing)
    for name, reason in sidecar.recorder.refused.items():
        _say(f"warning: not all of what tap {name} received could be read: {reason}")
    if kept.problem:
        raise ServiceError(f"{file}: {kept.problem}")
    _say(f"{kept.records} records, {kept.written_bytes:,} bytes in {file}")


def _why_nothing(sidecar: Sidecar) -> str:
    """Why no tap told anything of the engine; empty where one did, or had nothing to tell."""
    recorder = sidecar.recorder
    if recorder.spoke:
        return ""
    if recorder.refused:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in recorder.refused.items())
        return f"nothing that arrived could be read; {reasons}"
    if any(collector.coverage().messages for collector in sidecar.collectors):
        return ""
    advice = "; ".join(f"{name}: check {text}" for name, text in sidecar.advice.items())
    return f"nothing arrived on any tap; {advice}"


def _given(flags: Mapping[str, object], **sections: type[Section]) -> dict[str, object]:
    """The settings of these sections among a command's flags, which carry the same names."""
    return {
        f"{section}__{name}": flags[name]
        for section, model in sections.items()
        for name in model.model_fields
    }


def _need_a_tap(settings: Settings) -> None:
    if not settings.taps.names_a_tap:
        raise SettingsError(
            "no tap is configured; name the engine's KV events (--kv-events ipc:///path) "
            "or the observer's directory (--observer-dir DIR)"
        )


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
