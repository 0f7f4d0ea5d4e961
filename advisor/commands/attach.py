"""`attach`: from an engine's URL to a sidecar that serves, with every tap that it offers."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import urlsplit

import typer

from kvready.advisor.commands import options
from kvready.advisor.commands.outside import Url, found_at
from kvready.advisor.levels import level_now, next_step
from kvready.advisor.service import runner
from kvready.advisor.service.taps import build_taps
from kvready.advisor.settings import Settings
from kvready.collectors.errors import TapError
from kvready.collectors.surfaces import Surfaces


def attach(
    url: Url,
    config: options.Config = None,
    kv_events: options.KvEvents = None,
    replay: options.Replay = None,
    observer_dir: options.ObserverDir = None,
    host: options.Host = None,
    port: options.Port = None,
    recording: options.RecordingPath = None,
    link_profile: options.LinkProfile = None,
    gpu: options.Gpu = None,
    model: options.Model = None,
    tensor_parallel: options.TensorParallel = None,
) -> None:
    """Find out what an engine offers, say so, and serve on http://127.0.0.1:8430 until stopped."""
    surfaces = found_at(url, observer_dir, kv_events, replay)
    _say_found(surfaces)
    settings = _settings(
        surfaces,
        config,
        api__host=host,
        api__port=port,
        recording__path=recording,
        calibration__link_profile=link_profile,
        calibration__gpu=gpu,
        calibration__model=model,
        calibration__tensor_parallel=tensor_parallel,
    )
    for tap in build_taps(settings.taps):
        blind = "; ".join(tap.collector.coverage().blind_to)
        _say(f"tap {tap.collector.name} cannot see {blind}")
    step = next_step(surfaces)
    if step is not None:
        because = f" ({step.because})" if step.because else ""
        _say(f"level {step.level} would add {step.adds}{because}: {step.change}")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    runner.serve(settings, _say)


def _settings(surfaces: Surfaces, config: Path | None, **flags: object) -> Settings:
    """Settings that attach every tap there is. Raises TapError where there is none."""
    if level_now(surfaces) is None:
        raise TapError(
            f"{surfaces.url} offers no tap: {surfaces.page_problem or 'it shows no metrics'}"
        )
    sources = surfaces.usable_sources
    replays = [source.configured_replay for source in sources]
    whole = all(replays)
    if any(replays) and not whole:
        _say("some ranks have no replay endpoint, so none is used; see `kvready doctor`")
    return options.effective(
        config,
        taps__kv_events=[source.configured for source in sources],
        taps__replay=replays if whole else [],
        taps__engine_host=urlsplit(surfaces.url).hostname,
        taps__metrics_url=surfaces.url if surfaces.page is not None else None,
        taps__observer_dir=surfaces.observer_dir if surfaces.observer_sockets else None,
        **flags,
    ).settings


def _say_found(surfaces: Surfaces) -> None:
    ranks = len(surfaces.ranks) or 1
    _say(
        f"vLLM {surfaces.version or 'of unknown version'} at {surfaces.url}, "
        f"{', '.join(surfaces.models) or 'unknown model'}, {ranks} rank{'s' if ranks > 1 else ''}"
        + ("" if surfaces.is_healthy else "; /health does not say that it is well")
    )
    for source in surfaces.sources:
        _say(f"KV events of rank {source.rank}: {source.problem or source.configured}")
    if surfaces.observer_sockets:
        _say(f"observer: {', '.join(surfaces.observer_sockets)} in {surfaces.observer_dir}")


def _say(text: str) -> None:
    typer.echo(text, err=True)
