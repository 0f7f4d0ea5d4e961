"""The taps that the settings name, each with what to check when it stays silent."""

from __future__ import annotations

import msgspec

from kvready.advisor.outside import METRICS_TAP, OBSERVER, SPANS_TAP
from kvready.advisor.service.replay_memory import ReplayMemory, state_directory
from kvready.advisor.tap_settings import TapSettings
from kvready.collectors.collector import Collector
from kvready.collectors.endpoint import bracketed
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.metrics_tap import MetricsTap
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.otlp import OtlpTap
from kvready.collectors.rank_sources import rank_source


class Tap(msgspec.Struct, frozen=True):
    """A tap, and advice for whoever waits for it in vain."""

    collector: Collector
    advice: str
    memory: ReplayMemory | None = None


def build_taps(settings: TapSettings) -> list[Tap]:
    """Every configured tap, not yet started."""
    taps: list[Tap] = []
    endpoints = settings.endpoints
    directory = state_directory(settings.state_dir)
    for rank, (endpoint, replay) in enumerate(endpoints):
        name = f"{settings.publisher}-{rank}" if len(endpoints) > 1 else settings.publisher
        memory = ReplayMemory(directory, replay) if replay else None
        source = rank_source(rank, endpoint, replay, host=settings.engine_host)
        collector = KvEventTap(
            name,
            source.address or endpoint,
            source.replay_address,
            rank=rank,
            engine_binds=not source.we_bind,
            with_content_keys=settings.content_keys,
            asked_seconds=memory.recall() if memory else (),
            on_asked=memory.keep if memory else None,
        )
        advice = (
            "that the engine runs, has served a request, and was started with --kv-events-config "
            f"whose endpoint is {endpoint}"
        )
        taps.append(Tap(collector, advice, memory))
    if settings.observer_dir is not None:
        taps.append(
            Tap(
                ObserverTap(OBSERVER, settings.observer_dir),
                "that the engine runs, has served a request, and was started with the observer and "
                f"KVREADY_OBSERVER={settings.observer_dir}",
            )
        )
    return taps + _outside_taps(settings)


def _outside_taps(settings: TapSettings) -> list[Tap]:
    """Those that need no restart of the engine, or tell of a request once it has ended."""
    taps: list[Tap] = []
    if settings.metrics_url is not None:
        url = settings.metrics_url
        advice = f"that the engine's HTTP server answers at {url}/metrics"
        taps.append(Tap(MetricsTap(METRICS_TAP, url, settings.metrics_seconds), advice))
    http_port, grpc_port = settings.otlp_http_port, settings.otlp_grpc_port
    if http_port is not None or grpc_port is not None:
        collector = OtlpTap(
            SPANS_TAP, http_port, grpc_port, settings.otlp_forward, settings.otlp_host
        )
        host = bracketed(settings.otlp_host)
        where = (
            f"grpc://{host}:{grpc_port}" if grpc_port else f"http://{host}:{http_port}/v1/traces"
        )
        advice = (
            "that the engine runs, has finished a request, and was started with "
            f"--otlp-traces-endpoint {where}"
        )
        if not grpc_port:
            advice += " and OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
        taps.append(Tap(collector, advice))
    return taps
