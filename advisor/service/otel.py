"""What kvready exports over OTLP: its metrics each so many seconds, and spans of decisions.

Everything here runs in threads of its own. Metrics come from one snapshot per export, which the
ingest thread is asked for as it is for `/metrics`; decisions are left in a queue. A collector that
is slow, away or hostile costs exports, which are counted, and nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from kvready.advisor.contract import Answers, Question
from kvready.advisor.modes import Transition
from kvready.advisor.policies import Policy, Scope
from kvready.advisor.service import otel_decisions
from kvready.advisor.service.exposition import families
from kvready.advisor.service.otel_counts import ExportCounts, Result, Signal
from kvready.advisor.service.otel_courier import Courier
from kvready.advisor.service.otel_headers import read_headers
from kvready.advisor.service.otel_links import EngineTraces
from kvready.advisor.service.otel_metrics import Instruments
from kvready.advisor.service.otel_post import Post
from kvready.advisor.service.otel_spans import Sampling, SpanExport
from kvready.advisor.service.snapshot import Snapshot
from kvready.advisor.telemetry_settings import TelemetrySettings
from kvready.advisor.verdicts import GateReport
from kvready.advisor.version import VERSION
from kvready.advisor.window_tracker import Key
from kvready.advisor.windows import WindowSummary
from kvready.collectors.errors import ServiceError
from kvready.collectors.records import EngineDescribed, RequestReported

SERVICE = "kvready"
STOP_SECONDS = 5.0  # for what is left to be exported, metrics and spans together
# These log what they were given, headers among it; what went wrong we count, and say ourselves.
NOISY = ("opentelemetry.exporter", "opentelemetry.util.re")
MAX_VERDICTS = 256

Verdict = tuple[str, str]  # and finding

logger = logging.getLogger(__name__)


def resource() -> Resource:
    """Who exports; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
    ours = {
        "service.name": SERVICE,
        "service.version": VERSION,
        "service.instance.id": str(uuid.uuid4()),
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())


class Telemetry:
    """One sidecar's. `start`, then `stop` before the sidecar stops (safe twice)."""

    def __init__(
        self, settings: TelemetrySettings, counts: ExportCounts, sees_engine_spans: bool
    ) -> None:
        """Raises `SettingsError` for headers that cannot be read.

        `sees_engine_spans`: a tap takes the engine's spans, so that there is something to link to.
        """
        for name in NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.endpoint = str(settings.export_endpoint)
        self._counts = counts
        self._seconds = settings.export_seconds
        self._traces = EngineTraces() if sees_engine_spans else None
        headers = read_headers(settings.export_headers_file)
        who = resource()
        self._instruments = Instruments(who, self._traces)
        self._metrics_post = Post(Signal.METRICS, counts)
        self._metrics_exporter = OTLPMetricExporter(
            f"{self.endpoint}/v1/metrics", headers=headers, session=self._metrics_post
        )
        self._metrics_courier: Courier[MetricsData] = Courier(
            Signal.METRICS, self._export_metrics, lambda: self._metrics_post.problem, counts
        )
        self._sampling = Sampling(settings.span_ratio)
        self._spans_wanted = settings.span_ratio > 0
        self._spans_post = Post(Signal.TRACES, counts)
        self._spans_exporter = OTLPSpanExporter(
            f"{self.endpoint}/v1/traces", headers=headers, session=self._spans_post
        )
        courier: Courier[Sequence[ReadableSpan]] = Courier(
            Signal.TRACES, self._export_spans, lambda: self._spans_post.problem, counts
        )
        self._spans = SpanExport(who, courier, counts, self._traces)
        self._verdicts: dict[tuple[Policy, Scope, str], Verdict] = {}
        self._acting: set[Key] = set()
        self._take: Callable[[], Snapshot] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-metrics", daemon=True)

    def start(self, take: Callable[[], Snapshot]) -> None:
        """Begin. `take` answers within a bound, or raises `ServiceError`."""
        self._take = take
        self._thread.start()
        self._spans.start()

    def stop(self) -> None:
        """Export once more, within a bound."""
        ends_seconds = time.monotonic() + STOP_SECONDS
        already = self._stopping.is_set()
        self._stopping.set()
        if already:
            return
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._spans.stop(max(ends_seconds - time.monotonic(), 0.0))
        self._metrics_exporter.shutdown()  # ends what they still try
        self._spans_exporter.shutdown()  # type: ignore[no-untyped-call]

    @property
    def waiting_spans(self) -> int:
        """Decisions that are not exported yet."""
        return self._spans.waiting

    def wants_answer(self, traceparent: str) -> bool:
        """Whether this answer about readiness gets a span."""
        return self._spans_wanted and self._sampling.keeps(traceparent)

    def answered(
        self,
        question: Question,
        answers: Answers,
        engine: EngineDescribed | None,
        times_nanoseconds: tuple[int, int],
        trace: tuple[str, str],
    ) -> None:
        """An answer that is wanted was given."""
        self._spans.offer(
            otel_decisions.answered(question, answers, engine, times_nanoseconds, trace)
        )

    def moved(self, transition: Transition) -> None:
        """A policy moved. Ingest thread."""
        key = transition.policy, transition.scope
        if transition.after.mode.acts:
            self._acting.add(key)  # as many as there are policies and scopes
        else:
            self._acting.discard(key)
        if self._spans_wanted:
            self._spans.offer(otel_decisions.moved(transition, time.time_ns()))

    def judged(self, report: GateReport) -> None:
        """Gates gave their verdict. Ingest thread."""
        key = (report.policy, report.scope, report.policy_version)
        said = str(report.verdict), str(report.finding or "")
        is_news = self._verdicts.get(key) != said
        if len(self._verdicts) < MAX_VERDICTS or key in self._verdicts:
            self._verdicts[key] = said
        if self._spans_wanted and (is_news or self._sampling.keeps()):
            self._spans.offer(otel_decisions.judged(report, time.time_ns()))

    def windowed(self, key: Key, window: WindowSummary) -> None:
        """A window is over; of a policy that does not act it tells nothing. Ingest thread."""
        if self._spans_wanted and key in self._acting:
            self._spans.offer(otel_decisions.windowed(key, window, time.time_ns()))

    def reported(self, report: RequestReported) -> None:
        """The engine told of a request, perhaps with its trace. Ingest thread."""
        if self._traces is not None and report.traceparent:
            self._traces.told(report.request_id, report.traceparent)

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._export()
        self._export()  # what happened since
        self._instruments.close()

    def _export(self) -> None:
        assert self._take is not None
        try:
            told = families(self._take())
        except (ServiceError, KeyError) as error:
            if self._counts.exported(Signal.METRICS, Result.UNREAD, str(error)):
                logger.warning("exports of metrics: %s", error)
            return
        data = self._instruments.collect(told)
        if data is not None:
            self._metrics_courier.send(data)

    def _export_metrics(self, data: MetricsData) -> bool:
        return self._metrics_exporter.export(data) is MetricExportResult.SUCCESS

    def _export_spans(self, spans: Sequence[ReadableSpan]) -> bool:
        return self._spans_exporter.export(spans) is SpanExportResult.SUCCESS


def is_disabled() -> bool:
    """Whether the SDK is told to do nothing at all."""
    return os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true"
