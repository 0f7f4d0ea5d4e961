"""Watches an engine with every tap that it offers, for a short while, and gathers the evidence."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from kvready.advisor.diagnosis import Evidence, TapEvidence
from kvready.advisor.outside import OBSERVER
from kvready.collectors.collector import Collector
from kvready.collectors.errors import TapError
from kvready.collectors.http_get import get
from kvready.collectors.kv_events import KvEventTap
from kvready.collectors.metrics_page import MetricsPage, read_page
from kvready.collectors.observer_tap import ObserverTap
from kvready.collectors.records import (
    AnyRecord,
    BatchPlanned,
    BlocksRemoved,
    BlocksStored,
    EngineDescribed,
    LoadDecided,
    RequestScheduled,
    TapStatus,
    Tier,
)
from kvready.collectors.surfaces import RankSource, Surfaces

KV_TAP = "kv-events"
SETTLE_SECONDS = 1.5  # to connect, and to ask for what was published before
TRAIL_SECONDS = 1.0  # what the last scrape counted is on its way
POLL_SECONDS = 0.05
MAX_NEWS = 256


class _Seen:
    """What one tap told of one rank."""

    def __init__(self) -> None:
        self.tiers: Counter[Tier] = Counter()
        self.placeholders: Counter[Tier] = Counter()
        self.news: deque[TapStatus] = deque(maxlen=MAX_NEWS)
        self.unsupported = ""

    def take(self, record: AnyRecord) -> None:
        if isinstance(record, TapStatus):
            self.news.append(record)
        elif isinstance(record, BlocksStored):
            self.tiers[record.tier] += len(record.block_hashes)
            if not record.block_tokens:
                self.placeholders[record.tier] += 1
            if record.group:
                self.unsupported = "several KV-cache groups"
        elif isinstance(record, BlocksRemoved):
            self.tiers[record.tier] += len(record.block_hashes)
        elif isinstance(record, LoadDecided):
            self.tiers[record.source] += 1
            self.tiers[record.destination] += 1
        elif isinstance(record, BatchPlanned | RequestScheduled):
            self.tiers[Tier.HBM] += 1
        elif isinstance(record, EngineDescribed) and not record.supported_kv_state:
            self.unsupported = "not dense attention in one group"


class _Watch:
    """The taps of one examination."""

    def __init__(self) -> None:
        self.seen: defaultdict[tuple[str, int], _Seen] = defaultdict(_Seen)
        self.open: list[Collector] = []
        self._rank_of: dict[str, int] = {}

    def add(self, tap: Collector, rank: int | None = None) -> str:
        """Open a tap of one rank, or of all (None). Why it cannot be opened, or nothing."""
        if rank is not None:
            self._rank_of[tap.name] = rank
        try:
            tap.start(self._take)
        except TapError as error:
            return str(error)
        self.open.append(tap)
        return ""

    def poll_for(self, seconds: float, on_passed: Callable[[], None]) -> None:
        """Take what arrives."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            taken = [tap.poll(POLL_SECONDS / len(self.open)) for tap in self.open]
            if not taken:
                time.sleep(POLL_SECONDS)
            on_passed()

    def _take(self, record: AnyRecord, received_seconds: float, tap: str) -> None:
        rank = self._rank_of.get(tap, getattr(record, "rank", 0))
        self.seen[tap, rank].take(record)


def examine(
    surfaces: Surfaces,
    seconds: float,
    *,
    observer_wanted: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Evidence:
    """Open every tap, scrape before and after, and close them: subscriptions and GETs only."""
    watch = _Watch()
    began = time.monotonic()

    def passed() -> None:
        if on_progress is not None:
            on_progress(time.monotonic() - began)

    kv_taps = [(source, _kv_tap(source)) for source in surfaces.usable_sources]
    problems = {tap.name: watch.add(tap, source.rank) for source, tap in kv_taps}
    observer = None
    if surfaces.observer_sockets and surfaces.observer_dir is not None:
        observer = ObserverTap(OBSERVER, surfaces.observer_dir)
        problems[observer.name] = watch.add(observer)
    try:
        watch.poll_for(min(SETTLE_SECONDS, seconds / 2), passed)
        before, from_seconds = _page(surfaces), time.monotonic()
        watch.poll_for(seconds, passed)
        after, watched = _page(surfaces), time.monotonic() - from_seconds
        watch.poll_for(TRAIL_SECONDS, passed)
        return Evidence(
            surfaces=surfaces,
            seconds=watched,
            before=before,
            after=after,
            kv_taps=tuple(
                _told(watch, tap, source.rank, source.address or "", problems[tap.name], KV_TAP)
                for source, tap in kv_taps
            ),
            observer_taps=_observed(watch, observer, problems, surfaces),
            observer_wanted=observer_wanted,
        )
    finally:
        for tap in watch.open:
            tap.stop()


def _kv_tap(source: RankSource) -> KvEventTap:
    return KvEventTap(
        f"{KV_TAP}-{source.rank}",
        source.address or "",
        source.replay_address,
        rank=source.rank,
        topic=source.topic,
        engine_binds=not source.we_bind,
    )


def _observed(
    watch: _Watch, observer: ObserverTap | None, problems: dict[str, str], surfaces: Surfaces
) -> tuple[TapEvidence, ...]:
    """The one tap of all ranks, told rank by rank."""
    if observer is None:
        return ()
    ranks = sorted({rank for tap, rank in watch.seen if tap == observer.name}) or [0]
    address = surfaces.observer_dir or ""
    problem = problems[observer.name]
    return tuple(_told(watch, observer, rank, address, problem, OBSERVER) for rank in ranks)


def _told(
    watch: _Watch, tap: Collector, rank: int, address: str, problem: str, shown: str
) -> TapEvidence:
    seen = watch.seen[tap.name, rank]
    return TapEvidence(
        tap=shown,
        rank=rank,
        address=address,
        coverage=None if problem else tap.coverage(),
        problem=problem,
        seen=dict(seen.tiers),
        placeholders=dict(seen.placeholders),
        news=tuple(seen.news),
        unsupported=seen.unsupported,
    )


def _page(surfaces: Surfaces) -> MetricsPage | None:
    if surfaces.page is None:
        return None
    answer = get(surfaces.url, "/metrics")
    if not answer.ok:
        raise TapError(
            f"{surfaces.url}/metrics answers no more ({answer.problem or answer.status}); "
            "see whether the engine runs"
        )
    return read_page(answer.body.decode("utf-8", "replace"), surfaces.version)
