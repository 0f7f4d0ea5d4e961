"""What the gateway counts, and how `/metrics` tells it: a catalogue of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family

from kvready.advisor.gateway.holds import Release
from kvready.advisor.gateway.prompts import Unheld
from kvready.advisor.service.metric import Kind, Label, Metric, counter, gauge, histogram


class Passed(StrEnum):
    """Why a request for a completion was passed on at once."""

    FLAG_OFF = "flag_off"  # or the lease is over, or the sidecar is lost
    UNTREATED = "untreated"  # its prefix group is a control
    EXCLUDED = "excluded"  # predictions of its kind are persistently bad now
    FIRST = "first"  # nobody brings enough of its prefix
    KNOWN = "known"  # somebody does, but it was brought of late
    NO_PREDICTION = "no_prediction"  # the sidecar does not say what computing it takes
    NO_BENEFIT = "no_benefit"  # computing it takes less than a hold is worth
    MAP_FULL = "map_full"
    CLOSED = "closed"  # the gateway stops, or a defect stopped what looks after those held
    UNPARSABLE = Unheld.UNPARSABLE.value
    SEVERAL_PROMPTS = Unheld.SEVERAL_PROMPTS.value
    UNCACHED = Unheld.UNCACHED.value
    SHORT = Unheld.SHORT.value
    BODY_TOO_LARGE = "body_too_large"  # to be looked at; it is passed on as it comes
    BUFFERS_FULL = "buffers_full"


class Failure(StrEnum):
    """What went wrong with the engine's side of a request."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    BROKEN_OFF = "broken_off"  # before its answer was whole


class Asked(StrEnum):
    """What became of a question to the engine's tokenizer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"


HELD_SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUESTS = counter(
    "gateway_requests_total", "", "Requests by whether they ask for a completion.",
    Label("kind", ("completion", "other")),
)  # fmt: skip
_PASSED = counter(
    "gateway_passed_total", "", "Requests for completions that were passed on at once, by why.",
    Label("reason", tuple(Passed)),
)  # fmt: skip
_RELEASED = counter(
    "gateway_released_total", "", "Holds that ended, by why.", Label("reason", tuple(Release))
)
_HELD_SECONDS = histogram(
    "gateway_held_seconds", "seconds", "How long requests were held.", HELD_SECONDS_BUCKETS
)
_HELD = gauge("gateway_held_requests", "", "Requests that are held now.")
_LEADING = gauge("gateway_leading_requests", "", "Requests that bring a prefix now.")
_FAILED = counter(
    "gateway_failed_total", "", "Requests that the engine's side failed, by how.",
    Label("reason", tuple(Failure)),
)  # fmt: skip
_CANCELLED = counter(
    "gateway_cancelled_total", "", "Requests whose client left before the answer was whole."
)
_TOKENIZED = counter(
    "gateway_tokenized_total", "", "Questions to the engine's tokenizer, by outcome.",
    Label("outcome", tuple(Asked)),
)  # fmt: skip
_BUFFERED = gauge("gateway_buffered_bytes", "bytes", "Bodies that are kept now.")
_RECORDS_DROPPED = counter(
    "gateway_records_dropped_total", "", "Records for the sidecar that could not be sent."
)
_ACTING = gauge("gateway_dedup_acting", "", "Whether dedup may act on some requests now.")
CATALOGUE: tuple[Metric, ...] = (
    _REQUESTS, _PASSED, _RELEASED, _HELD_SECONDS, _HELD, _LEADING, _FAILED, _CANCELLED,
    _TOKENIZED, _BUFFERED, _RECORDS_DROPPED, _ACTING,
)  # fmt: skip


class Counts:
    """Counted where it happens. The event loop's thread only."""

    def __init__(self) -> None:
        self.completions = 0
        self.others = 0
        self.passed: Counter[Passed] = Counter()
        self.released: Counter[Release] = Counter()
        self.failed: Counter[Failure] = Counter()
        self.tokenized: Counter[Asked] = Counter()
        self.cancelled = 0
        self.buffered_bytes = 0
        self._held_by_bucket = [0] * (len(HELD_SECONDS_BUCKETS) + 1)
        self._held_seconds = 0.0

    def held(self, seconds: float) -> None:
        """A hold ended after so long."""
        self._held_by_bucket[bisect_left(HELD_SECONDS_BUCKETS, seconds)] += 1
        self._held_seconds += seconds

    def values(
        self, held: int, leading: int, acting: bool, dropped: int
    ) -> dict[str, dict[str, float]]:
        """Every metric's children by their label's value, histograms apart."""
        return {
            _REQUESTS.name: {"completion": self.completions, "other": self.others},
            _PASSED.name: {one: self.passed[one] for one in Passed},
            _RELEASED.name: {one: self.released[one] for one in Release},
            _HELD.name: {"": held},
            _LEADING.name: {"": leading},
            _FAILED.name: {one: self.failed[one] for one in Failure},
            _CANCELLED.name: {"": self.cancelled},
            _TOKENIZED.name: {one: self.tokenized[one] for one in Asked},
            _BUFFERED.name: {"": self.buffered_bytes},
            _RECORDS_DROPPED.name: {"": dropped},
            _ACTING.name: {"": float(acting)},
        }

    def families(self, values: dict[str, dict[str, float]]) -> Iterator[Family]:
        """All of the catalogue."""
        for metric in CATALOGUE:
            if metric.kind is Kind.HISTOGRAM:
                yield self._held_family()
                continue
            names = [label.name for label in metric.labels]
            make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=names)
            for child, value in values[metric.name].items():
                family.add_metric([child] if names else [], value)
            yield family

    def _held_family(self) -> Family:
        bounds = [*(f"{bound:g}" for bound in HELD_SECONDS_BUCKETS), "+Inf"]
        buckets, total = [], 0
        for bound, count in zip(bounds, self._held_by_bucket, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(_HELD_SECONDS.name, _HELD_SECONDS.help)
        family.add_metric([], buckets, self._held_seconds)
        return family
