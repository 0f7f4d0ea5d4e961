"""The taps that the settings name, each with what to check when it stays silent."""

from __future__ import annotations

import msgspec

from kvready.advisor.settings import TapSettings
from kvready.collectors.collector import Collector
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.observer_tap import ObserverTap

OBSERVER_TAP = "observer"


class Tap(msgspec.Struct, frozen=True):
    """A tap, and advice for whoever waits for it in vain."""

    collector: Collector
    advice: str


def build_taps(settings: TapSettings) -> list[Tap]:
    """Every configured tap, not yet started."""
    taps: list[Tap] = []
    several = len(settings.kv_events) > 1
    for rank, endpoint in enumerate(settings.kv_events):
        name = f"{settings.publisher}-{rank}" if several else settings.publisher
        replay = settings.replay[rank] if settings.replay else None
        collector = KvEventTap(
            name, endpoint, replay, rank=rank, with_content_keys=settings.content_keys
        )
        advice = (
            "that the engine runs, has served a request, and was started with --kv-events-config "
            f"whose endpoint is {endpoint}"
        )
        taps.append(Tap(collector, advice))
    if settings.observer_dir is not None:
        taps.append(
            Tap(
                ObserverTap(OBSERVER_TAP, settings.observer_dir),
                "that the engine runs, has served a request, and was started with the observer and "
                f"KVREADY_OBSERVER={settings.observer_dir}",
            )
        )
    return taps
