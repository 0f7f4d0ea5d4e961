"""The taps that the settings name, each with what to check when it stays silent."""

from __future__ import annotations

import msgspec

from kvready.advisor.service.replay_memory import ReplayMemory, state_directory
from kvready.advisor.settings import TapSettings
from kvready.collectors.collector import Collector
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.rank_sources import rank_source

OBSERVER_TAP = "observer"


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
                ObserverTap(OBSERVER_TAP, settings.observer_dir),
                "that the engine runs, has served a request, and was started with the observer and "
                f"KVREADY_OBSERVER={settings.observer_dir}",
            )
        )
    return taps
