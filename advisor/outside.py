"""What taps outside the engine tell, made into backcasts and contradictions."""

from __future__ import annotations

from kvready.advisor.backcasts import Backcaster
from kvready.advisor.contradictions import Contradictions, Facts
from kvready.advisor.inventory import MAX_PUBLISHERS, Inventory
from kvready.advisor.latency_groups import PrefillLatencies
from kvready.advisor.service_account import ServiceAccount
from kvready.advisor.totals import Totals
from kvready.collectors.clock import ClockMap
from kvready.collectors.records import (
    BlocksRemoved,
    BlocksStored,
    CountersScraped,
    PromptTokensReported,
    RequestReported,
    TapEvent,
    TapState,
    TapStatus,
    Tick,
    Tier,
    TierCleared,
)

METRICS_TAP = "metrics"
SPANS_TAP = "spans"
FRONTEND_STREAM = "observer-frontend"
GATEWAY_STREAM = "observer-gateway"
OBSERVER = "observer"
SCHEDULER_STREAM = f"{OBSERVER}-scheduler"
RECORDER_TAP = "recorder"


def leans_on(tap: str) -> bool:
    """Whether forecasts use what this stream tells: not where it only tells of what has ended."""
    if tap in (METRICS_TAP, SPANS_TAP):
        return False
    return FRONTEND_STREAM not in tap and GATEWAY_STREAM not in tap


def is_event_tap(tap: str) -> bool:
    """Whether a stream should tell of KV blocks."""
    return leans_on(tap) and not tap.startswith(OBSERVER) and tap != RECORDER_TAP


class Outside:
    """Reports, counters and the clock that places them."""

    def __init__(self, inventory: Inventory, totals: Totals, service: ServiceAccount) -> None:
        self.clock = ClockMap()
        self.backcaster = Backcaster(service.report)
        self.latencies = PrefillLatencies()
        self.contradictions = Contradictions(self.latencies)
        self.reports = 0
        self.scrapes = 0
        self.counters: CountersScraped | None = None
        self._inventory = inventory
        self._totals = totals
        self._event_taps: dict[str, TapState] = {}
        self._event_messages = 0
        self._host_stored_blocks = 0
        self._reported_prompt_tokens = 0
        self._reported_cached_tokens = 0
        self._wrong_steps = 0
        self._wrong_step = ""

    def tick(self, tick: Tick, received_seconds: float) -> None:
        """A second passed."""
        self.clock.observe(tick.tick_seconds, tick.tick_wall_seconds)
        self.backcaster.tick(received_seconds, self.clock)

    def report(self, report: RequestReported, received_seconds: float) -> None:
        """A request ended, as an outside tap tells."""
        self.reports += 1
        self.backcaster.report(report, received_seconds)
        if report.prompt_tokens is None:
            return
        if report.prefill_seconds is not None:
            self.latencies.add(report.prompt_tokens, report.prefill_seconds)
        if report.cached_tokens is not None:
            self._reported_prompt_tokens += report.prompt_tokens
            self._reported_cached_tokens += report.cached_tokens

    def step(self, step: PromptTokensReported) -> None:
        """Prompt tokens of one engine step by source."""
        parts = (step.computed_tokens, step.hbm_tokens, step.loaded_tokens)
        told = [part for part in parts if part is not None]
        if step.prompt_tokens is None or len(told) < len(parts) or sum(told) == step.prompt_tokens:
            return
        self._wrong_steps += 1
        self._wrong_step = (
            f"{told[0]:,} computed + {told[1]:,} in HBM + {told[2]:,} loaded, "
            f"of {step.prompt_tokens:,}"
        )

    def blocks(self, event: BlocksStored | BlocksRemoved | TierCleared) -> None:
        """A KV event."""
        self._event_messages += 1
        if event.publisher not in self._event_taps:
            self._event_tap(event.publisher, TapState.LIVE)
        if isinstance(event, BlocksStored) and event.tier is Tier.HOST:
            self._host_stored_blocks += len(event.block_hashes)

    def scrape(self, scrape: CountersScraped) -> None:
        """The engine's counters."""
        self.scrapes += 1
        self.counters = scrape
        self.backcaster.scrape(scrape)
        self.contradictions.judge(scrape, self._facts())

    def tap_status(self, status: TapStatus) -> None:
        """News of a tap."""
        if status.tap == METRICS_TAP and status.event is TapEvent.EPOCH:
            self.contradictions.restart()
            self.latencies.clear()
        elif is_event_tap(status.tap):
            self._event_tap(status.tap, status.state)

    def _event_tap(self, tap: str, state: TapState) -> None:
        if tap in self._event_taps or len(self._event_taps) < MAX_PUBLISHERS:
            self._event_taps[tap] = state

    def _facts(self) -> Facts:
        totals = self._totals
        doubtful = self._inventory.degraded or any(
            state in (TapState.DEGRADED, TapState.CLOSED) for state in self._event_taps.values()
        )
        return Facts(
            event_taps=len(self._event_taps),
            events_doubtful=doubtful,
            event_messages=self._event_messages,
            host_stored_blocks=self._host_stored_blocks,
            observed_prompt_tokens=totals.prompt_tokens,
            nominal_tokens=totals.nominal_hit_tokens,
            lost_tokens=totals.lost_hit_tokens,
            delay_tokens=totals.delay_hit_tokens,
            unknown_residency=totals.unknown_residency,
            reported_prompt_tokens=self._reported_prompt_tokens,
            reported_cached_tokens=self._reported_cached_tokens,
            wrong_steps=self._wrong_steps,
            wrong_step=self._wrong_step,
        )
