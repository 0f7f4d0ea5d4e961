"""What an engine shows to the outside: the facts that attaching and diagnosing start from."""

from __future__ import annotations

import msgspec

from kvready.collectors.metrics_page import MetricsPage

SCHEDULER_SOCKET = "observer-scheduler-"
FRONTEND_SOCKET = "observer-frontend-"
GATEWAY_SOCKET = "observer-gateway-"


class RankSource(msgspec.Struct, frozen=True):
    """One rank's KV-event sockets, as the engine was given them and as we would use them."""

    rank: int
    configured: str
    configured_replay: str | None
    topic: str
    address: str | None  # None: nothing of ours can ever receive from it, see `problem`
    we_bind: bool
    replay_address: str | None
    problem: str = ""


class Surfaces(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as seen from outside, now."""

    url: str
    problem: str  # why nothing can be attached; empty where it can
    engine: str | None
    version: str | None
    models: tuple[str, ...]
    is_healthy: bool
    page: MetricsPage | None
    page_problem: str
    tells_sources: bool  # it answers /kv_event_sources, so no source means no KV events
    sources: tuple[RankSource, ...]
    observer_dir: str | None  # where its sockets were looked for
    observer_sockets: tuple[str, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that any surface shows."""
        found = {source.rank for source in self.sources}
        if self.page is not None:
            found |= set(self.page.engines)
        return tuple(sorted(found))

    @property
    def usable_sources(self) -> tuple[RankSource, ...]:
        """Those that can deliver to us."""
        return tuple(source for source in self.sources if source.address is not None)

    @property
    def scheduler_observed(self) -> bool:
        """Whether an observer publishes from inside a scheduler."""
        return any(name.startswith(SCHEDULER_SOCKET) for name in self.observer_sockets)

    @property
    def frontend_observed(self) -> bool:
        """Whether a stat logger publishes from an API server."""
        return any(name.startswith(FRONTEND_SOCKET) for name in self.observer_sockets)
